"""Pseudo-perplexity against length, one line a model, as in the paper's figures 2 and 6."""

from collections.abc import Sequence
from pathlib import Path

from embedkit.evaluation.perplexity.results import Point


def plot(points: Sequence[Point], path: Path) -> str | None:
    """Draw ``path``.png and ``path``.svg; a remark instead where matplotlib is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return 'no plot without matplotlib: pip install "embedkit-neobert[plot]"'
    # Text stays text, and one set of points makes one file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "perplexity"}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        for model in dict.fromkeys(point.model for point in points):
            own = sorted((p for p in points if p.model == model), key=lambda point: point.length)
            axes.errorbar(
                [point.length for point in own],
                [point.pseudo_perplexity for point in own],
                yerr=[point.pseudo_perplexity_stderr or 0.0 for point in own],
                marker="o",
                capsize=3,
                label=model,
            )
        axes.set_yscale("log")
        axes.set_xlabel("Sequence length (tokens)")
        axes.set_ylabel("Pseudo-perplexity")
        axes.grid(alpha=0.3, which="both")
        axes.legend()
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return None
