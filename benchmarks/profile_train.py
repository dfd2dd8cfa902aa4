"""Profiles fine-tuning steps: prints the time of each operator and of each part of a step.

Usage::

    python benchmarks/profile_train.py [--data DIR] [--steps 8]
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import torch
from training_steps import STARTER, embedkit_steps, read_pairs

from embedkit.data.pairs.contrastive_batches import Batches
from embedkit.data.pairs.records import Records
from embedkit.distributed import local_device
from embedkit.models.embedder import Embedder
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.training.flops import wait


class Stopwatch:
    """Counts the seconds spent in functions, by the names given to them."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._device = device

    def watch(self, owner: Any, function: str, name: str) -> None:
        """From now on, time every call of ``owner.function``."""
        call = getattr(owner, function)

        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                wait(self._device)
                self.seconds[name] += time.perf_counter() - began

        setattr(owner, function, timed)


def profile(pairs: Records, steps: int, device: torch.device) -> None:
    """Print where the time of embedkit's steps goes, by operator and by part of a step."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    kinds = [ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    with torch_profile(activities=kinds) as profiled:
        embedkit_steps(pairs, len(STARTER) + 1, "eager", device)
    print(profiled.key_averages().table(sort_by=f"self_{device.type}_time_total", row_limit=15))
    watch = Stopwatch(device)
    watch.watch(Batches, "__getitem__", "tokenization")
    watch.watch(Embedder, "forward", "forward")
    watch.watch(ContrastiveObjective, "_loss", "loss")
    watch.watch(ContrastiveObjective, "backward", "objective")
    watch.watch(torch.nn.utils, "clip_grad_norm_", "clipping")
    watch.watch(torch.optim.AdamW, "step", "optimizer")
    began = time.perf_counter()
    # Without workers, so that tokenization does not hide behind the step before.
    embedkit_steps(pairs, steps, "eager", device, workers=0)
    total = time.perf_counter() - began
    parts = dict(watch.seconds)
    parts["backward"] = parts.pop("objective") - parts["forward"] - parts["loss"]
    parts["loading, last checkpoint, rest"] = total - sum(parts.values())
    rows = [
        (name, f"{1e3 * seconds / steps:.1f}", f"{seconds / total:.1%}")
        for name, seconds in sorted(parts.items(), key=lambda part: -part[1])
    ]
    print(harness.stamp(device))
    print(harness.markdown(("part", "ms a step", "share"), rows))


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--data", type=Path, help="A folder of parquet files. Default: starter.")
    parser.add_argument("--steps", type=int, default=8)
    return parser.parse_args(words)


def main() -> None:
    """Profile some steps and print two tables."""
    options = read_options()
    profile(read_pairs(options.data, options.steps), options.steps, local_device())


if __name__ == "__main__":
    main()
