"""Where the time of a fine-tuning step goes: by operator, and by part of the step.

Usage::

    python benchmarks/profile_train.py [--data DIR] [--steps 8]
"""

import argparse
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from train_vs_sentence_transformers import STARTER, embedkit_steps, read_pairs

from embedkit.data.pairs.contrastive_batches import Batches
from embedkit.data.pairs.records import Records
from embedkit.models.embedder import Embedder
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.training.flops import wait


class Stopwatch:
    """Seconds spent in functions, by the names given to them."""

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
    with torch_profile(activities=kinds) as found:
        embedkit_steps(pairs, len(STARTER) + 1, "eager", device)
    print(found.key_averages().table(sort_by=f"self_{device.type}_time_total", row_limit=15))
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
    print("| part | ms a step | share |\n|---|---:|---:|")
    for name, seconds in sorted(parts.items(), key=lambda part: -part[1]):
        print(f"| {name} | {1e3 * seconds / steps:.1f} | {seconds / total:.1%} |")


def main() -> None:
    """Profile some steps and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pairs = read_pairs(options.data, max(options.steps, len(STARTER)) + 2)
    profile(pairs, options.steps, device)


if __name__ == "__main__":
    main()
