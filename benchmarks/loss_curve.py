"""Draw the losses of pretraining runs: of every step, smoothed, and of the held-out documents.

Usage::

    python benchmarks/loss_curve.py runs/open-mlm [RUN ...] --output docs/pictures/open-mlm.svg
"""

from needs import require

if __name__ == "__main__":
    require("plot", "matplotlib")

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
from matplotlib.figure import Figure

SMOOTHED = 25
"""Steps whose mean is one point of the curve."""


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Read the records of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def draw(runs: list[Path], output: Path) -> None:
    """Draw a line for the training loss of each run, and points for its held-out losses."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, run in enumerate(runs):
        color = f"C{number}"
        tokens = np.cumsum([line["tokens"] for line in lines_of(run / "metrics.jsonl")]) / 1e6
        losses = np.array([line["loss"] for line in lines_of(run / "metrics.jsonl")])
        whole = len(losses) // SMOOTHED * SMOOTHED
        smooth = losses[:whole].reshape(-1, SMOOTHED).mean(axis=1)
        ends = tokens[:whole].reshape(-1, SMOOTHED)[:, -1]
        axes.plot(ends, smooth, color=color, alpha=0.5, label=f"{run.name}, training")
        held_out = lines_of(run / "held_out.jsonl")
        for source in dict.fromkeys(line["source"] for line in held_out):
            lines = [line for line in held_out if line["source"] == source]
            read = [tokens[line["step"] - 1] if line["step"] else 0.0 for line in lines]
            losses = np.array([line["loss"] for line in lines])
            axes.plot(read, losses, "o-", color=color, label=f"{source}, held out")
            color = f"C{int(color[1:]) + 1}"
    axes.set_xlabel("million tokens read")
    axes.set_ylabel("loss, nats a masked token")
    axes.grid(alpha=0.3)
    axes.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output)


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = harness.make_parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="Folders of embedkit pretrain.")
    parser.add_argument("--output", type=Path, required=True, help="The picture, such as x.svg.")
    return parser.parse_args(words)


def main() -> None:
    """Read the runs and draw."""
    options = read_options()
    draw(options.runs, options.output)


if __name__ == "__main__":
    main()
