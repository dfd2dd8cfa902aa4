"""Losses of documents on disk, and the points of a curve that are made of them."""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Scored:
    """What is known of one document at one length under one model: a line of the results."""

    key: str
    """A hash of all that the loss depends on: the model, the tokens and the positions."""
    model: str
    length: int
    document: int
    """Its number in the data, from 1."""
    maskable: int
    """Tokens that are not special."""
    positions: int
    """How many of them were masked, each in its turn."""
    loss: float
    variance: float
    """Of the losses of the positions around their mean; 0 if there is but one."""


@dataclass(frozen=True, slots=True)
class Point:
    """A row of the CSV: one model at one length."""

    model: str
    length: int
    documents: int
    positions: int
    loss: float
    stderr: float | None
    """Of the loss, over documents; ``None`` for a single one."""
    pseudo_perplexity: float
    pseudo_perplexity_stderr: float | None
    sampling_stderr: float
    """Of the loss, if the documents are all there is and only their positions a sample."""


def summarise(scored: Sequence[Scored]) -> Point:
    """The point of a curve that documents of one length make under one model.

    Every document counts alike: the loss is the mean of their losses. The documents are clusters
    of positions, so its standard error is that of a mean over documents, whatever share of their
    positions was masked; that of the pseudo-perplexity follows by the delta method.
    """
    count, first = len(scored), scored[0]
    loss = math.fsum(each.loss for each in scored) / count
    perplexity = math.exp(min(loss, 700.0))
    stderr = None
    if count > 1:
        squares = math.fsum((each.loss - loss) ** 2 for each in scored)
        stderr = math.sqrt(squares / (count * (count - 1)))
    unseen = math.fsum(
        (1 - each.positions / each.maskable) * each.variance / each.positions for each in scored
    )
    return Point(
        model=first.model,
        length=first.length,
        documents=count,
        positions=sum(each.positions for each in scored),
        loss=loss,
        stderr=stderr,
        pseudo_perplexity=perplexity,
        pseudo_perplexity_stderr=None if stderr is None else perplexity * stderr,
        sampling_stderr=math.sqrt(unseen) / count,
    )


class ResultFile:
    """Documents that are scored, one JSON object a line, found again by their keys."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
        self._found = {each.key: each for each in map(_parse, lines) if each}
        # A kill may have cut the last line short: what follows must not be glued to it.
        self._torn = lines[-1] != ""

    def get(self, key: str) -> Scored | None:
        return self._found.get(key)

    def add(self, scored: Scored) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" * self._torn + json.dumps(asdict(scored)) + "\n")
        self._torn = False
        self._found[scored.key] = scored


def write_csv(points: Sequence[Point], path: Path) -> None:
    """One row per model and length; what is not known is left empty."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Point))
        writer.writerows(astuple(point) for point in points)


def _parse(line: str) -> Scored | None:
    """A line of the results; ``None`` for one that is cut short."""
    try:
        return Scored(**json.loads(line))
    except (ValueError, TypeError):
        return None
