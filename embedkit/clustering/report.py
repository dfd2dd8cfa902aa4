"""Report on the batches of every source: a table in Markdown, and a picture."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedkit.clustering.quality import Comparison, Quality
from embedkit.data.batch_table import BatchTable

_COLUMNS = ("source", "way", "batches", "size", "cohesion", "mean negative", "hardest negative",
            "false negatives")  # fmt: skip
_LEGEND = """\
Of each way at most 256 batches of a source are measured, on the surrogate's whole vectors:

- cohesion: mean cosine of a batch's pairs (directions of query + document) to their mean;
- mean and hardest negative: a query's similarity to the documents of its batch's other rows, the
  mean and the highest, over all queries;
- false negatives: the share of rows with such a document at least as near as their own: a filter
  with this surrogate takes them out.
"""


def markdown(table: BatchTable, comparisons: Sequence[Comparison]) -> str:
    """Return the report as a page, which names the hash of its table."""
    surrogate, settings = table.header["surrogate"], table.header["settings"]
    shown = ", ".join(f"{key} {value}" for key, value in settings.items())
    count = sum(map(len, table.sources.values()))
    rows = [row for comparison in comparisons for row in rows_of(comparison)]
    frame = [_COLUMNS, ("---",) * 2 + ("---:",) * (len(_COLUMNS) - 2)]
    lines = [
        "# Contextual batches",
        "",
        f"Table {table.hash}",
        "",
        f"{count} batches of {len(table.sources)} sources; surrogate {surrogate['name']} "
        f"({surrogate['identity'][:12]}); {shown}.",
        "",
        *(f"| {' | '.join(row)} |" for row in [*frame, *rows]),
        "",
        *(f"- {name}: {len(batches.left_out)} rows in no batch"
          for name, batches in table.sources.items() if len(batches.left_out)),
        "",
        _LEGEND,
    ]  # fmt: skip
    return "\n".join(lines)


def rows_of(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row for random batches and one for ours, under the columns of the report."""
    batches, size = comparison.batches, comparison.batches.size
    name, (full, rest) = batches.facts.name, divmod(batches.facts.rows, size)
    sizes = f"{rest} to {size}" if len(batches) > full else str(size)
    return [
        (name, "random", str(full), str(size), *numbers_of(comparison.random)),
        (name, "ours", str(len(batches)), sizes, *numbers_of(comparison.ours)),
    ]


def numbers_of(quality: Quality) -> tuple[str, ...]:
    """Return how hard some batches are, under the last four columns of the report."""
    measured = (quality.cohesion, quality.negative, quality.hardest)
    return (*(f"{_mean(values):.3f}" for values in measured), f"{_mean(quality.false):.1%}")


def plot(comparisons: Sequence[Comparison], path: Path) -> str | None:
    """Draw ``path``.png and ``path``.svg, or return a remark where matplotlib is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return 'no picture without matplotlib: pip install "embedkit-neobert[plot]"'
    # Text stays text, and the same batches always make the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "clusters"}):
        figure = Figure(figsize=(9.0, 6.4), layout="constrained")
        cohesion, negative, hardest, false = figure.subplots(2, 2).flat
        histograms = (
            (cohesion, "cohesion", 40, "Cohesion of a batch"),
            (negative, "negative", 60, "Mean negative of a query (cosine)"),
            (hardest, "hardest", 60, "Hardest negative of a query (cosine)"),
        )
        for way, color in (("random", "C0"), ("ours", "C2")):
            qualities: list[Quality] = [getattr(comparison, way) for comparison in comparisons]
            for axes, kind, bins, label in histograms:
                values = np.concatenate([getattr(quality, kind) for quality in qualities])
                axes.hist(values, bins, histtype="step", density=True, label=way, color=color)
                axes.set(xlabel=label, ylabel="Density")
                axes.legend()
            share = _mean(np.concatenate([quality.false for quality in qualities]))
            false.bar(way, share, color=color)
        false.set(ylabel="Rows with a false negative", ylim=(0, 1))
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return None


def _mean(values: NDArray[np.float64] | NDArray[np.bool_]) -> float:
    """Return the mean, or nan where there is nothing."""
    return float(values.mean()) if len(values) else float("nan")
