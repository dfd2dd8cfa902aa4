"""Losses of documents on disk, the points of a curve that follow from them, and their plot."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from statistics import fmean, stdev

from embedkit.evaluation.tables import as_csv


@dataclass(frozen=True, slots=True)
class Scored:
    """Losses of a document at one length under one model: a line of the results."""

    key: str
    """Hash of all that the loss depends on: the model, the tokens and the positions."""
    model: str
    length: int
    document: int
    """Number of the document in the data, from 1."""
    maskable: int
    """Number of tokens that are not special."""
    positions: int
    """Number of tokens that were masked, one at a time."""
    loss: float
    variance: float
    """Variance of the losses of the positions; 0 for a single one."""


@dataclass(frozen=True, slots=True)
class Point:
    """A row of the CSV: one model at one length."""

    model: str
    length: int
    documents: int
    positions: int
    loss: float
    stderr: float | None
    """Standard error of the loss over documents; ``None`` for a single one."""
    pseudo_perplexity: float
    pseudo_perplexity_stderr: float | None
    sampling_stderr: float
    """Standard error of the loss over positions, if the documents are the whole population."""

    def __str__(self) -> str:
        spread = self.pseudo_perplexity_stderr
        measured = f"{self.pseudo_perplexity:.4g}" + ("" if spread is None else f" ± {spread:.3g}")
        sizes = f"{self.documents} documents, {self.positions} positions"
        return f"{self.model}, {self.length} tokens: pseudo-perplexity {measured} ({sizes})"


def summarise(scored: Sequence[Scored]) -> Point:
    """Return the point of a curve that documents of one length make under one model.

    The loss is the mean over documents. They are clusters of positions, so that its standard error
    is that of a mean over documents, whatever share of their positions was masked; that of the
    pseudo-perplexity follows by the delta method.
    """
    count, losses = len(scored), [document.loss for document in scored]
    loss = fmean(losses)
    perplexity = math.exp(min(loss, 700.0))
    stderr = stdev(losses) / math.sqrt(count) if count > 1 else None
    unseen = math.fsum((1 - s.positions / s.maskable) * s.variance / s.positions for s in scored)
    return Point(
        model=scored[0].model,
        length=scored[0].length,
        documents=count,
        positions=sum(document.positions for document in scored),
        loss=loss,
        stderr=stderr,
        pseudo_perplexity=perplexity,
        pseudo_perplexity_stderr=None if stderr is None else perplexity * stderr,
        sampling_stderr=math.sqrt(unseen) / count,
    )


class ResultFile(dict[str, Scored]):
    """Results of documents by key, each kept as a line of a file when it is added."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        # A kill may have cut the last line short: what follows must not be glued to it.
        self._start = "" if text.endswith("\n") or not text else "\n"
        for line in text.split("\n"):
            with suppress(ValueError, TypeError):
                scored = Scored(**json.loads(line))
                self[scored.key] = scored

    def add(self, scored: Scored) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(self._start + json.dumps(asdict(scored)) + "\n")
        self._start = ""
        self[scored.key] = scored


def write_csv(points: Sequence[Point], path: Path) -> None:
    """Write one row per model and length; unknown values are left empty."""
    heads = [field.name for field in fields(Point)]
    path.write_text(as_csv(heads, map(astuple, points)), encoding="utf-8", newline="")


def plot(points: Sequence[Point], path: Path) -> str | None:
    """Draw ``path``.png and ``path``.svg, one line a model, as in the paper's figures 2 and 6.

    Returns a remark instead if matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return 'no plot without matplotlib: pip install "embedkit-neobert[plot]"'
    # Text stays text, and equal points give equal files.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "perplexity"}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        for model in dict.fromkeys(point.model for point in points):
            line = sorted((p for p in points if p.model == model), key=lambda point: point.length)
            values = [point.pseudo_perplexity for point in line]
            errors = [point.pseudo_perplexity_stderr or 0.0 for point in line]
            lengths = [point.length for point in line]
            axes.errorbar(lengths, values, yerr=errors, marker="o", capsize=3, label=model)
        axes.set(yscale="log", xlabel="Sequence length (tokens)", ylabel="Pseudo-perplexity")
        axes.grid(alpha=0.3, which="both")
        axes.legend()
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return None
