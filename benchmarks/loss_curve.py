"""Draw the losses of pretraining runs: of every step, smoothed, and of the held-out documents.

Usage::

    python benchmarks/loss_curve.py runs/open-mlm [RUN ...] --output docs/pictures/open-mlm.svg
"""

from needs import require

if __name__ == "__main__":
    require("plot", "matplotlib")

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

SMOOTHED = 25
"""Steps whose mean is one point of the curve."""


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def draw(runs: list[Path], output: Path) -> None:
    """One colour a run: a line for the training loss, points for the held-out losses."""
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
            own = [line for line in held_out if line["source"] == source]
            places = [tokens[line["step"] - 1] if line["step"] else 0.0 for line in own]
            found = [line["loss"] for line in own]
            axes.plot(places, found, "o-", color=color, label=f"{source}, held out")
            color = f"C{int(color[1:]) + 1}"
    axes.set_xlabel("million tokens read")
    axes.set_ylabel("loss, nats a masked token")
    axes.grid(alpha=0.3)
    axes.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output)


def main() -> None:
    """Read the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    draw(options.runs, options.output)


if __name__ == "__main__":
    main()
