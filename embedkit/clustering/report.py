"""What became of every source: a table in Markdown, and a picture."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embedkit.clustering.comparison import Comparison, mean
from embedkit.clustering.quality import Quality
from embedkit.data.batch_table import BatchTable

_WAYS = ("random", "published", "ours")
_COLUMNS = ("source", "way", "batches", "size", "cohesion", "mean negative", "hardest negative",
            "false negatives", "clusters")  # fmt: skip
_LEGEND = """\
Of each way at most 256 batches of a source are measured, on the surrogate's whole vectors:

- cohesion: mean cosine of a batch's pairs (directions of query + document) to their mean;
- mean and hardest negative: a query's similarity to the documents of its batch's other rows, the
  mean and the highest, over all queries;
- false negatives: the share of rows with such a document at least as near as their own: a filter
  with this surrogate takes them out;
- clusters: smallest, median and largest; for the published way also the share of a batch that comes
  from its largest cluster.

The published way is paired k-means, clusters end to end along a greedy tour, and batches cut off
that line. It is left out for sources of one batch and for large ones.
"""


def markdown(table: BatchTable, comparisons: Sequence[Comparison]) -> str:
    """The report as a page; it names the hash of the table that it is of."""
    surrogate, settings = table.header["surrogate"], table.header["settings"]
    shown = ", ".join(f"{key} {value}" for key, value in settings.items())
    lines = [
        "# Contextual batches",
        "",
        f"Table {table.hash}",
        "",
        f"{table.num_batches} batches of {len(table.sources)} sources; surrogate "
        f"{surrogate['name']} ({surrogate['identity'][:12]}); {shown}.",
        "",
        *_markdown_rows(comparisons),
        "",
        *(f"- {each.name}: {each.left_out} rows in no batch" for each in comparisons
          if each.left_out),
        "",
        _LEGEND,
    ]  # fmt: skip
    return "\n".join(lines)


def cells_of(each: Comparison) -> list[tuple[str, ...]]:
    """A row for each way in which the source was cut, under the columns of the report."""
    exact = f"{each.sizes.min()}/{int(np.median(each.sizes))}/{each.sizes.max()}"
    size, count = str(each.sizes[0]), each.rows // int(each.sizes[0])
    rows = [(each.name, "random", str(count), size, *_numbers(each.random), "")]
    if found := each.published:
        low, middle, high = np.percentile(found.cluster_sizes, (0, 50, 100))
        clusters = f"{low:.0f}/{middle:.0f}/{high:.0f}, {found.own_share:.0%}"
        rows.append((each.name, "published", str(count), size, *_numbers(found.quality), clusters))
    sizes = size if each.sizes.min() == each.sizes.max() else f"{each.sizes.min()} to {size}"
    rows.append((each.name, "ours", str(len(each.sizes)), sizes, *_numbers(each.ours), exact))
    return rows


def plot(comparisons: Sequence[Comparison], path: Path) -> str | None:
    """Draw ``path``.png and ``path``.svg; a remark instead where matplotlib is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return 'no picture without matplotlib: pip install "embedkit-neobert[plot]"'
    pooled = {way: [q for each in comparisons if (q := _quality(each, way))] for way in _WAYS}
    published = [each.published for each in comparisons if each.published]
    # Text stays text, and one set of batches makes one file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "clusters"}):
        figure = Figure(figsize=(9.0, 6.4), layout="constrained")
        sizes, cohesion, hardest, false = figure.subplots(2, 2).flat
        colors = dict(zip(_WAYS, ("C0", "C1", "C2"), strict=True))
        for way, found in pooled.items():
            if not found:
                continue
            style = {"histtype": "step", "density": True, "label": way, "color": colors[way]}
            cohesion.hist(np.concatenate([q.cohesion for q in found]), bins=40, **style)
            hardest.hist(np.concatenate([q.hardest for q in found]), bins=60, **style)
            false.bar(way, mean(np.concatenate([q.false for q in found])), color=colors[way])
        ours = np.concatenate([each.sizes for each in comparisons])
        clusters = [np.empty(0, dtype=np.int64), *(each.cluster_sizes for each in published)]
        two = {"label": _WAYS[1:], "color": [colors[way] for way in _WAYS[1:]]}
        sizes.hist([np.concatenate(clusters), ours], bins=40, log=True, **two)
        sizes.set(xlabel="Rows of a cluster", ylabel="Clusters")
        cohesion.set(xlabel="Cohesion of a batch", ylabel="Density")
        hardest.set(xlabel="Hardest negative of a query (cosine)", ylabel="Density")
        false.set(ylabel="Rows with a false negative", ylim=(0, 1))
        for axes in (sizes, cohesion, hardest):
            axes.legend()
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return None


def _quality(each: Comparison, way: str) -> Quality | None:
    if way == "published":
        return each.published.quality if each.published else None
    return each.random if way == "random" else each.ours


def _numbers(quality: Quality) -> tuple[str, ...]:
    measured = (quality.cohesion, quality.negative, quality.hardest)
    return (*(f"{mean(values):.3f}" for values in measured), f"{mean(quality.false):.1%}")


def _markdown_rows(comparisons: Sequence[Comparison]) -> list[str]:
    rows = [row for each in comparisons for row in cells_of(each)]
    frame = [_COLUMNS, ("---",) * 3 + ("---:",) * (len(_COLUMNS) - 3)]
    return [f"| {' | '.join(row)} |" for row in [*frame, *rows]]
