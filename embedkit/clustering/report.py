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
    rows = [row for comparison in comparisons for row in rows_of(comparison)]
    frame = [_COLUMNS, ("---",) * 2 + ("---:",) * (len(_COLUMNS) - 2)]
    lines = [
        "# Contextual batches",
        "",
        f"Table {table.hash}",
        "",
        f"{table.num_batches} batches of {len(table.sources)} sources; surrogate "
        f"{surrogate['name']} ({surrogate['identity'][:12]}); {shown}.",
        "",
        *(f"| {' | '.join(row)} |" for row in [*frame, *rows]),
        "",
        *(f"- {comparison.name}: {comparison.left_out} rows in no batch"
          for comparison in comparisons if comparison.left_out),
        "",
        _LEGEND,
    ]  # fmt: skip
    return "\n".join(lines)


def rows_of(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row for random batches and one for ours, under the columns of the report."""
    name, sizes = comparison.name, comparison.sizes
    full, last = int(sizes[0]), int(sizes[-1])
    shown = str(full) if last == full else f"{last} to {full}"
    random_count = str(comparison.rows // full)
    return [
        (name, "random", random_count, str(full), *numbers_of(comparison.random)),
        (name, "ours", str(len(sizes)), shown, *numbers_of(comparison.ours)),
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
        for way, color in (("random", "C0"), ("ours", "C2")):
            qualities: list[Quality] = [getattr(comparison, way) for comparison in comparisons]
            style = {"histtype": "step", "density": True, "label": way, "color": color}
            cohesion.hist(np.concatenate([q.cohesion for q in qualities]), bins=40, **style)
            negative.hist(np.concatenate([q.negative for q in qualities]), bins=60, **style)
            hardest.hist(np.concatenate([q.hardest for q in qualities]), bins=60, **style)
            false.bar(way, _mean(np.concatenate([q.false for q in qualities])), color=color)
        cohesion.set(xlabel="Cohesion of a batch", ylabel="Density")
        negative.set(xlabel="Mean negative of a query (cosine)", ylabel="Density")
        hardest.set(xlabel="Hardest negative of a query (cosine)", ylabel="Density")
        false.set(ylabel="Rows with a false negative", ylim=(0, 1))
        for axes in (cohesion, negative, hardest):
            axes.legend()
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return None


def _mean(values: NDArray[np.float64] | NDArray[np.bool_]) -> float:
    """Return the mean, or nan where there is nothing."""
    return float(values.mean()) if len(values) else float("nan")
