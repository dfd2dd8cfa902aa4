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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import harness
import torch
from harness import Spread
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from training_steps import (
    BATCH,
    LENGTH,
    TEMPERATURE,
    embedkit_steps,
    read_pairs,
    sentence_transformers_steps,
)

from embedkit.data.pairs.records import Records
from embedkit.distributed import local_device
from embedkit.models import hub
from embedkit.models.precision import has_bf16
from embedkit.objectives.losses import info_nce
from embedkit.tokens.tokenizer import Tokenize
from embedkit.training.flops import matmul_peak

TRAINERS = {"embedkit": embedkit_steps, "sentence-transformers": sentence_transformers_steps}
VERSIONS = ("torch", "transformers", "sentence-transformers")
COLUMNS = (
    *("date", "processor", "precision", "data"),
    *("embedkit pairs/s", "sentence-transformers pairs/s", "ratio", "embedkit tokens/s"),
    *("fp32 GFLOP/s", "bf16 GFLOP/s", *VERSIONS),
)
TrainerSteps = Callable[[Records, int, str, torch.device], list[float]]


def largest_difference(pairs: Records, device: torch.device) -> float:
    """Return how far the two losses differ at most over the first batches, dropout off."""
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


def measure(pairs: Records, rounds: int, steps: int, device: torch.device) -> dict[str, Spread]:
    """Measure the seconds of a step of every trainer and attention, taking turns."""
    runs = {
        f"{trainer} ({attention})": partial(mean_step, run, pairs, steps, attention, device)
        for attention in ("eager", "sdpa")
        for trainer, run in TRAINERS.items()
    }
    timings = harness.in_turns(runs, rounds)
    return {name: Spread.of(means) for name, means in timings.items()}


def mean_step(
    run: TrainerSteps, pairs: Records, steps: int, attention: str, device: torch.device
) -> float:
    """Return the mean step of a run: steps differ in length, so a round is one figure."""
    # The first step of a run pays for starting workers and warming up.
    mean = fmean(run(pairs, steps + 2, attention, device)[1 : steps + 1])
    print(f"{run.__name__}, {attention}: {mean:.3f} s a step", flush=True)
    return mean


def count_tokens(pairs: Records, steps: int) -> float:
    """Return the tokens of a timed step, on average; both read these, and pad them or not."""
    tokenize = Tokenize(hub.load_tokenizer("starter"))
    rows = pairs.take(range(BATCH, (steps + 1) * BATCH))
    sides = ([row.query for row in rows], [row.positive for row in rows])
    return sum(tokenize(side, "", LENGTH).num_tokens for side in sides) / steps


def summary_of(
    seconds: Mapping[str, Spread], tokens: float, device: torch.device
) -> dict[str, Any]:
    """Return what the record says of the two trainers; the best attention of each counts."""
    step = {name: spread.median for name, spread in seconds.items()}
    best = {
        trainer: min((name for name in step if name.startswith(trainer)), key=step.__getitem__)
        for trainer in TRAINERS
    }
    ours, peer = (step[best[trainer]] for trainer in TRAINERS)
    return {
        "seconds_a_step": {name: asdict(spread) for name, spread in seconds.items()},
        "tokens_a_step": tokens,
        "tokens_a_second": {name: tokens / value for name, value in step.items()},
        "pairs_a_second": {name: BATCH / value for name, value in step.items()},
        "best": best,
        "ratio": peer / ours,
        "gflops": {
            "fp32": matmul_peak(device, torch.float32) / 1e9,
            "bf16": matmul_peak(device, torch.bfloat16) / 1e9,
        },
    }


def row_of(record: Mapping[str, Any]) -> list[str]:
    """Return a row of the table of all results."""
    best, speed = record["best"], record["pairs_a_second"]
    return [
        *(record[key] for key in ("date", "processor", "precision", "data")),
        *(f"{speed[best[trainer]]:.1f}" for trainer in TRAINERS),
        f"{record['ratio']:.2f}",
        f"{record['tokens_a_second'][best['embedkit']]:.0f}",
        *(f"{record['gflops'][dtype]:.1f}" for dtype in ("fp32", "bf16")),
        *record["versions"].values(),
    ]


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = harness.make_parser(__doc__, "train.md")
    parser.add_argument("--data", type=Path, help="A folder of parquet files. Default: starter.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    return parser.parse_args(words)


def main() -> None:
    """Measure, and keep the result as JSON and as a row of the table."""
    options, device = read_options(), local_device()
    pairs = read_pairs(options.data, options.steps)
    difference = largest_difference(pairs, device)
    assert difference < 1e-4, f"the losses differ by {difference}"
    seconds = measure(pairs, options.rounds, options.steps, device)
    record = {
        "date": harness.today(),
        "processor": harness.machine(device),
        "precision": "bf16 autocast" if has_bf16(device) else "fp32",
        "versions": {name: version(name) for name in VERSIONS},
        "data": options.data.name if options.data else "starter",
        "loss_difference": difference,
        **summary_of(seconds, count_tokens(pairs, options.steps), device),
    }
    harness.write_record(options.results, record, device.type, record["data"])
    harness.append_row(options.results, COLUMNS, row_of(record))


if __name__ == "__main__":
    main()
