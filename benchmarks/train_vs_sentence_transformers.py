"""Training speed beside sentence-transformers: the same model, texts, loss and batches in one run.

Both trainers take the same steps on the same pairs of real text at their natural lengths, in turns,
each through its own whole path: tokenization, forward, backward, clipping, optimizer. A step is
what lies between the ends of two steps. sentence-transformers is tried with eager and sdpa
attention, and bf16 autocast where the device has it natively; its best counts.

Usage::

    python benchmarks/train_vs_sentence_transformers.py [--data DIR] [--rounds 3] [--steps 8]

``DIR`` holds parquet files with the columns query and positive; by default the starter's sources
are read. The result goes to ``benchmarks/results/``, as JSON and as a row of ``train.md``.
"""

from needs import require

if __name__ == "__main__":
    require("dev", "accelerate")

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
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
from embedkit.objectives.losses import info_nce
from embedkit.recipe import Contrastive, ModelSettings, Recipe
from embedkit.tokens.tokenizer import Tokenize
from embedkit.training.flops import matmul_peak, wait
from embedkit.training.metrics import Metrics
from embedkit.training.trainer import Trainer

BATCH = 64
TEMPERATURE = 0.07
LENGTH = 256
LR = 2e-5
STARTER = ("hpo_synonym", "hpo_definition", "icd10_inclusion", "code_sympy")
RESULTS = Path(__file__).parent / "results"
_VERSIONS = ("torch", "transformers", "sentence-transformers")
_COLUMNS = (
    *("date", "processor", "precision", "data"),
    *("embedkit pairs/s", "sentence-transformers pairs/s", "ratio", "embedkit tokens/s"),
    *("fp32 GFLOP/s", "bf16 GFLOP/s", *_VERSIONS),
)


@dataclass(frozen=True)
class Contender:
    """A trainer with its attention."""

    trainer: str
    attention: str

    @property
    def name(self) -> str:
        return f"{self.trainer} ({self.attention})"


class InOrder:
    """A schedule that reads one source from the first row on."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, batch: int) -> BatchRows:
        return BatchRows(0, np.arange(batch * BATCH, (batch + 1) * BATCH))


def read_pairs(folder: Path | None, batches: int) -> Records:
    """``batches`` batches of pairs, each batch of one source, the sources in turns."""
    if folder is None:
        sources = [open_records(name) for name in STARTER]
    else:
        sources = [Records.from_file(path) for path in sorted(folder.glob("*.parquet"))]
    rows = []
    for batch in range(batches):
        source = sources[batch % len(sources)]
        first = batch // len(sources) * BATCH
        rows += [
            {"query": each.query, "positive": each.positive}
            for each in source.take(range(first, first + BATCH))
        ]
    return Records.from_rows(rows, name="pairs")


def embedkit_steps(
    pairs: Records, steps: int, attention: str, device: torch.device, *, workers: int = 1
) -> list[float]:
    """Seconds of each step of embedkit's trainer but the last."""
    embedder = hub.load(
        "starter",
        settings=ModelSettings.model_validate({"attention": attention}),
        autocast=autocast_dtype("auto", device),
        device=device,
    )
    recipe = Recipe.model_validate(
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
    batches = Batches(
        cast(BatchSampler, InOrder(steps)), [pairs], embedder.tokenizer, recipe.data, seed=0
    )
    ends = [time.perf_counter()]

    def ended(_done: int) -> None:
        wait(device)
        ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer[ContrastiveBatch](
            embedder,
            ContrastiveObjective(Contrastive(temperature=TEMPERATURE)),
            partial(stream, batches, workers=workers),
            recipe=recipe,
            folder=Path(folder),
            facts={},
            metrics=Metrics(Path(folder) / "metrics.jsonl", []),
            after_step=ended,
        )
        trainer.fit()
    return list(np.diff(ends))


class _Ends(TrainerCallback):
    def __init__(self, device: torch.device) -> None:
        self.device, self.times = device, [time.perf_counter()]

    def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
        wait(self.device)
        self.times.append(time.perf_counter())


def in_order_batches(
    dataset: Dataset, batch_size: int, drop_last: bool, **_: Any
) -> DefaultBatchSampler:
    """What sentence-transformers takes for a batch sampler; it must be picklable."""
    return DefaultBatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def sentence_transformers_steps(
    pairs: Records, steps: int, attention: str, device: torch.device
) -> list[float]:
    """Seconds of each step of sentence-transformers' trainer."""
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


def check_same_loss(pairs: Records, device: torch.device) -> float:
    """The largest difference of the two losses over the first batches, dropout off."""
    embedder = hub.load("starter", device=device)
    model = SentenceTransformer(hub.resolve("starter"), device=str(device))
    loss = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    worst = 0.0
    for batch in range(min(4, len(pairs) // BATCH)):
        rows = pairs.take(range(batch * BATCH, (batch + 1) * BATCH))
        sides = [[row.query for row in rows], [row.positive for row in rows]]
        queries, documents = (torch.from_numpy(embedder.encode(side)) for side in sides)
        mine = info_nce(queries, documents, torch.arange(BATCH), temperature=TEMPERATURE)
        theirs = [torch.from_numpy(model.encode(side)) for side in sides]
        unused = torch.empty(0)
        expected = loss.compute_loss_from_embeddings(theirs, labels=unused)
        worst = max(worst, abs(float(mine) - float(expected)))
    return worst


def measure(pairs: Records, rounds: int, steps: int, device: torch.device) -> dict[str, Any]:
    """Median seconds of a step for every contender, taking turns."""
    contenders = [Contender(t, a) for a in ("eager", "sdpa") for t in ("embedkit", "peer")]
    seconds: dict[str, list[list[float]]] = {each.name: [] for each in contenders}
    for number, contender in _turns(contenders, rounds):
        run = embedkit_steps if contender.trainer == "embedkit" else sentence_transformers_steps
        # The first step of a run pays for starting workers and warming up.
        taken = run(pairs, steps + 2, contender.attention, device)[1 : steps + 1]
        seconds[contender.name].append(taken)
        print(f"round {number + 1}: {contender.name}: {np.mean(taken):.3f} s a step", flush=True)
    # Steps differ in length, so a round is one figure: its mean step.
    return {
        name: statistics.median(statistics.fmean(run) for run in runs)
        for name, runs in seconds.items()
    }


def _turns(contenders: list[Contender], rounds: int) -> Iterator[tuple[int, Contender]]:
    for number in range(rounds):
        for contender in contenders:
            yield number, contender


def count_tokens(pairs: Records, steps: int) -> float:
    """Real tokens of a timed step, on average; both trainers read these and pad them or not."""
    tokenize = Tokenize(hub.load_tokenizer("starter"))
    rows = pairs.take(range(BATCH, (steps + 1) * BATCH))
    sides = ([row.query for row in rows], [row.positive for row in rows])
    return sum(tokenize(side, "", LENGTH).num_tokens for side in sides) / steps


def keep(result: dict[str, Any], name: str) -> None:
    """Write the result as JSON, and as a row of the table of all results."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    table = RESULTS / "train.md"
    if not table.exists():
        table.write_text(f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}\n")
    best, speed = result["best"], result["pairs_a_second"]
    cells = [
        *(result[key] for key in ("date", "processor", "precision", "data")),
        *(f"{speed[best[each]]:.1f}" for each in ("embedkit", "sentence-transformers")),
        f"{result['ratio']:.2f}",
        f"{result['tokens_a_second'][best['embedkit']]:.0f}",
        *(f"{result['gflops'][each]:.1f}" for each in ("fp32", "bf16")),
        *result["versions"].values(),
    ]
    with table.open("a") as file:
        file.write(f"| {' | '.join(cells)} |\n")


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{names[0] if names else platform.processor()}, {torch.get_num_threads()} threads"


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pairs = read_pairs(options.data, max(options.steps, len(STARTER)) + 2)
    difference = check_same_loss(pairs, device)
    assert difference < 1e-4, f"the losses differ by {difference}"
    step = measure(pairs, options.rounds, options.steps, device)
    tokens = count_tokens(pairs, options.steps)
    ours = min((value, name) for name, value in step.items() if name.startswith("embedkit"))
    peers = min((value, name) for name, value in step.items() if name.startswith("peer"))
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": _processor(device),
        "precision": "bf16 autocast" if has_bf16(device) else "fp32",
        "versions": {name: version(name) for name in _VERSIONS},
        "data": str(options.data.name if options.data else "starter"),
        "loss_difference": difference,
        "seconds_a_step": step,
        "tokens_a_step": tokens,
        "tokens_a_second": {name: tokens / value for name, value in step.items()},
        "pairs_a_second": {name: BATCH / value for name, value in step.items()},
        "best": {"embedkit": ours[1], "sentence-transformers": peers[1]},
        "ratio": peers[0] / ours[0],
        "gflops": {
            "fp32": matmul_peak(device, torch.float32) / 1e9,
            "bf16": matmul_peak(device, torch.bfloat16) / 1e9,
        },
    }
    keep(result, f"train_{result['date']}_{device.type}_{result['data']}")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
