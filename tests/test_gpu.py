"""What only a CUDA device can show."""

import shutil
from pathlib import Path

import pytest
import torch

from embedkit import api, load_recipe
from embedkit.data.batch_sampler import BatchSampler, Source
from embedkit.data.pairs.contrastive_batches import Batches
from embedkit.data.pairs.records import Records
from embedkit.models import hub
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.recipe import Contrastive, Data, Mix

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_step_on_the_gpu_has_the_gradients_of_the_cpu(tiny_model: Path) -> None:
    rows = [{"query": f"query {'word ' * n}", "positive": f"answer {n}"} for n in range(16)]
    records = Records.from_rows(rows, name="rows")
    gradients = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        embedder = hub.load(str(tiny_model), device=device)
        data = Data(batch_size=16, mix=(Mix(manifest="rows"),))
        schedule = BatchSampler([Source("rows", 16, 16)], [1.0], steps=1, seed=0)
        batch = Batches(schedule, [records], embedder.tokenizer, data, seed=0)[0].to(device)
        ContrastiveObjective(Contrastive()).backward(embedder, batch, key=0, scale=1.0)
        gradients.append(
            {
                name: parameter.grad.cpu()
                for name, parameter in embedder.named_parameters()
                if parameter.grad is not None
            }
        )
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-3)


def test_a_resumed_run_on_the_gpu_is_the_unbroken_run(small_recipe: Path, tmp_path: Path) -> None:
    recipe = load_recipe(
        str(small_recipe), ["checkpoints.every=2", "checkpoints.keep=9", "precision=bf16"]
    )
    unbroken = api.finetune(recipe, tmp_path / "unbroken")
    shutil.copytree(tmp_path / "unbroken", tmp_path / "resumed")
    newest = sorted((tmp_path / "resumed" / "checkpoints").iterdir())[-1]
    shutil.rmtree(newest)
    resumed = api.finetune(recipe, tmp_path / "resumed", resume=True)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (unbroken, resumed)]
    assert weights[0] == weights[1]
