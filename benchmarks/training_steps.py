"""Steps of two trainers, embedkit's and sentence-transformers', on the same pairs and batches."""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback

from embedkit.data.batch_sampler import BatchRows, BatchSampler
from embedkit.data.loading import stream
from embedkit.data.pairs.contrastive_batches import Batches, ContrastiveBatch
from embedkit.data.pairs.records import Records, open_records
from embedkit.models import hub
from embedkit.models.precision import autocast_dtype, has_bf16
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.recipe import Contrastive, ModelSettings, Recipe
from embedkit.training.flops import wait
from embedkit.training.interfaces import Stop
from embedkit.training.metrics import Metrics
from embedkit.training.trainer import Trainer, TrainingJob

BATCH = 64
TEMPERATURE = 0.07
LENGTH = 256
LR = 2e-5
STARTER = ("hpo_synonym", "hpo_definition", "icd10_inclusion", "code_sympy")


def read_pairs(folder: Path | None, steps: int) -> Records:
    """Read pairs for ``steps`` steps and two more, each batch of one source, the sources in turns.

    The sources are the parquet files in ``folder``, or else those of the starter.
    """
    if folder is None:
        sources = [open_records(name) for name in STARTER]
    else:
        sources = [Records.from_file(path) for path in sorted(folder.glob("*.parquet"))]
    rows = []
    for batch in range(max(steps, len(STARTER)) + 2):
        source = sources[batch % len(sources)]
        first = batch // len(sources) * BATCH
        pairs = source.take(range(first, first + BATCH))
        rows += [{"query": pair.query, "positive": pair.positive} for pair in pairs]
    return Records.from_rows(rows, name="pairs")


class InOrder:
    """A schedule that reads one source from the first row on."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, batch: int) -> BatchRows:
        return BatchRows(0, np.arange(batch * BATCH, (batch + 1) * BATCH))


def recipe_of(steps: int) -> Recipe:
    """Return a recipe of as many steps, without evaluation and with a single checkpoint."""
    return Recipe.model_validate(
        {
            "steps": steps,
            "model": "starter",
            "data": {
                "batch_size": BATCH,
                "mix": [{"manifest": "pairs"}],
                "max_query_tokens": LENGTH,
                "max_document_tokens": LENGTH,
            },
            "optim": {"lr": LR, "weight_decay": 0.0},
            "checkpoints": {"every": 10**6},
        }
    )


def embedkit_steps(
    pairs: Records, steps: int, attention: str, device: torch.device, *, workers: int = 1
) -> list[float]:
    """Return the seconds of each step of embedkit's trainer but the last."""
    embedder = hub.load(
        "starter",
        settings=ModelSettings.model_validate({"attention": attention}),
        autocast=autocast_dtype("auto", device),
        device=device,
    )
    recipe = recipe_of(steps)
    sampler = cast(BatchSampler, InOrder(steps))
    batches = Batches(sampler, [pairs], embedder.tokenizer, recipe.data, seed=0)
    ends = [time.perf_counter()]

    class Ends:
        """Notes when each step ends."""

        def before(self, _start: int, _stop: Stop) -> None: ...

        def takes_long(self, _done: int) -> bool:
            return False

        def after_step(self, _done: int, _stop: Stop) -> bool:
            wait(device)
            ends.append(time.perf_counter())
            return False

        def best_step(self) -> None: ...

    job = TrainingJob[ContrastiveBatch](
        recipe=recipe,
        facts={},
        model=embedder,
        objective=ContrastiveObjective(Contrastive(temperature=TEMPERATURE)),
        batches=partial(stream, batches, workers=workers),
        evaluator=Ends(),
        finish=lambda _stop: True,
    )
    with tempfile.TemporaryDirectory() as folder:
        Trainer(job, Path(folder), {}, Metrics(Path(folder) / "metrics.jsonl", [])).fit()
    return list(np.diff(ends))


class _Ends(TrainerCallback):
    """Notes when each step ends."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.times = device, [time.perf_counter()]

    def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
        wait(self.device)
        self.times.append(time.perf_counter())


def in_order_batches(
    dataset: Dataset, batch_size: int, drop_last: bool, **_: Any
) -> DefaultBatchSampler:
    """Make what sentence-transformers takes for a batch sampler; it must be picklable."""
    return DefaultBatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def sentence_transformers_steps(
    pairs: Records, steps: int, attention: str, device: torch.device
) -> list[float]:
    """Return the seconds of each step of sentence-transformers' trainer."""
    model = SentenceTransformer(
        hub.resolve("starter"),
        device=str(device),
        model_kwargs={"attn_implementation": attention},
    )
    model.max_seq_length = LENGTH
    rows = pairs.take(range(steps * BATCH))
    dataset = Dataset.from_dict(
        {"anchor": [row.query for row in rows], "positive": [row.positive for row in rows]}
    )
    ends = _Ends(device)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            batch_sampler=in_order_batches,
            learning_rate=LR,
            bf16=has_bf16(device),
            use_cpu=device.type == "cpu",
            dataloader_num_workers=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer = SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=dataset,
            loss=MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE),
            callbacks=[ends],
        )
        trainer.train()
    return list(np.diff(ends.times))
