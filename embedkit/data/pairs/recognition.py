"""Recognises which part of a pair each column plays, by its name and, where need be, its values.

Names are compared without regard to case, spaces, ``_`` and ``-``. A column that is called exactly
like its part comes before all other names; two of the other names for one part are an error.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from embedkit.data.manifests.columns import ColumnPath, Columns, list_in
from embedkit.errors import DataError

QUERIES = (
    *("query", "queries", "question", "question1", "anchor", "prompt"),
    *("sentence1", "sent1", "text1", "premise"),
)
POSITIVES = (
    *("positive", "positives", "pos", "answer", "answers", "response", "chosen", "question2"),
    *("sentence2", "sent2", "text2", "hypothesis", "document", "passage", "context"),
)
BODIES = ("body", "text", "content", "abstract")
"""Columns that are documents beside a query, or beside a title which stands for the query."""
_LABELLED = ("text", "sentence")
_COMPARED = frozenset(("sentence1", "sent1", "text1", "premise", "question1"))
"""Queries of layouts whose label says how the two texts relate."""
SCORE_LIKE = ("score", "similar", "relevan", "isdup", "isparaphrase", "posscore", "negscore")
"""Beginnings of folded names of columns that say how well two texts match."""
_TELLING = ("neg", "label", *SCORE_LIKE)
_NEGATIVES = re.compile(r"(?:negatives?|negs?)(\d*)")
_JUDGEMENTS = frozenset(("0", "1", "0.0", "1.0", "false", "true", ""))


MATCH = "whether the two texts match (it is 0 or 1 throughout)"


def fold(name: str) -> str:
    """Return a name without differences of case, spaces, ``_`` and ``-``."""
    return re.sub(r"[\s_-]+", "", name).casefold()


def are_negatives(name: str) -> bool:
    """Whether a column of this name is taken for negatives."""
    return _NEGATIVES.fullmatch(fold(name)) is not None


def is_telling(name: str) -> bool:
    """Whether a column would change training, so that it is left out by intent alone."""
    return fold(name).startswith(_TELLING)


def with_recognised(columns: Columns, names: Collection[str]) -> Columns:
    """Return ``columns`` and, for each part that they do not name, the columns among ``names``.

    Raises:
        DataError: two columns could play one part, or a label says how two texts relate.
    """
    named = columns.model_fields_set
    found: dict[str, Any] = {}
    if "query" not in named and (query := _called("query", QUERIES, names)):
        found["query"] = (query,)
    if "positive" not in named and (positive := _called("positive", POSITIVES, names)):
        found["positive"] = (positive,)
    found = _with_bodies(found, named, names)
    for mark in {"concept", "topic"}.intersection(names):
        if getattr(columns, mark) is None:
            found[mark] = mark
    if columns.label is None and (label := _called("label", ("label",), names)):
        found["label"] = label
    negatives = columns.negatives or tuple(sorted(filter(are_negatives, names), key=_order))
    if not negatives and any(fold(name) == "chosen" for name in found.get("positive", ())):
        negatives = tuple(_candidates(("rejected",), names))
    found["negatives"] = negatives
    if negatives and not columns.negative_concepts and "negative_concepts" in names:
        found["negative_concepts"] = ("negative_concepts",)
    chosen = columns.model_copy(update=found)
    if "label" in found and _COMPARED.intersection(map(fold, chosen.query)):
        raise DataError(judged(chosen.label or "", "how the two texts relate"))
    return chosen


def judged(label: str, what: str) -> str:
    """Return the error of a label that was recognised and is no class, with the remedies."""
    return (
        f"{label!r} says {what}, and is not taken for a class: for the pairs that match alone, set "
        f"filter = '{label} == 1' and ignore = [\"{label}\"]; for a loss that goes by scores, set "
        f'columns.score = "{label}"; if rows of one value belong together, set columns.label = '
        f'"{label}"; else leave it out with ignore = ["{label}"]'
    )


def is_judgement(value: object) -> bool:
    """Whether a label of this value may be the judgement of a pair: 0, 1 or nothing."""
    return value is None or str(value).strip().casefold() in _JUDGEMENTS


def labelled(names: Collection[str]) -> tuple[str, str] | None:
    """Return the columns of texts and of labels where rows are texts with a label, and no pairs."""
    texts, labels = _candidates(_LABELLED, names), _candidates(("label",), names)
    of_pairs = _candidates((*QUERIES, *POSITIVES, "title", "body"), names)
    return (texts[0], labels[0]) if len(texts) == len(labels) == 1 and not of_pairs else None


def reason(part: str, path: str, columns: Columns) -> str:
    """Say in a few words why a column plays a part; ``columns`` are those that were named."""
    if part in columns.model_fields_set:
        return "columns names it"
    if path == part:
        return "it is called so"
    return "by its name, and it holds lists" if path.endswith("[]") else "by its name"


@dataclass(frozen=True, slots=True)
class Recognition:
    """The parts that columns were found to play, as a manifest would name them."""

    columns: Columns
    same_label: bool = False
    """Whether rows are texts with labels, so that pairs have to be made by ``same_label``."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why the columns of each part were taken for it."""
    unused: tuple[str, ...] = ()
    """Columns that play no part."""

    @property
    def telling(self) -> tuple[str, ...]:
        """Unused columns that would change training, so that ``ignore`` has to list them."""
        return tuple(filter(is_telling, self.unused))

    @property
    def scores(self) -> tuple[str, ...]:
        """Unused columns that, by their names, say how well two texts match."""
        return tuple(name for name in self.unused if fold(name).startswith(SCORE_LIKE))


def recognised(
    names: Iterable[str],
    rows: Sequence[Mapping[str, Any]] = (),
    named: Columns | None = None,
    ignore: Collection[str] = (),
) -> Recognition:
    """Find the parts that columns play.

    Args:
        names: the names of all columns.
        rows: some rows, by whose values a positive that holds lists is read as ``name[]``, and
            labels of 0 and 1 alone are refused.
        named: columns that the user named; they win.
        ignore: names of columns that play no part.

    Raises:
        DataError: two columns could play one part, a part has no column, or a label says how two
            texts relate.
    """
    all_names, given = list(dict.fromkeys(names)), named or Columns()
    taken = {ColumnPath(path).column for paths in given.paths().values() for path in paths}
    taken -= {"query", "positive"} - given.model_fields_set
    left_out = set(ignore) | taken
    if "negatives" in ignore:
        left_out.update(filter(are_negatives, all_names))
    free = [name for name in all_names if name not in left_out]
    texts = labelled(free) if not {"query", "positive"} & given.model_fields_set else None
    if texts is not None:
        text, label = texts
        columns, same_label = Columns(query=(text,), label=label), True
        used = {text, label}
        reasons = {part: reason(part, getattr(columns, part), given) for part in ("label",)}
        reasons |= {"query": "by its name", "positive": "another text of the label"}
    else:
        columns, same_label = with_recognised(given, free), False
        used = {ColumnPath(path).column for paths in columns.paths().values() for path in paths}
        check_pair(columns, all_names)
        columns = _with_lists(columns, given, rows)
        name = columns.label
        labels = [row.get(name) for row in rows] if name and given.label is None else []
        some = any(label not in (None, "") for label in labels)
        if name and some and all(map(is_judgement, labels)):
            raise DataError(judged(name, MATCH))
        reasons = {
            part: "; ".join(dict.fromkeys(reason(part, path, given) for path in paths))
            for part, paths in columns.paths().items()
        }
    unused = tuple(name for name in free if name not in used)
    # Only what was found is written into a manifest.
    found = {part: getattr(columns, part) for part, paths in columns.paths().items() if paths}
    if same_label:
        del found["positive"]
    return Recognition(Columns(**found), same_label, reasons, unused)


def check_pair(columns: Columns, names: Collection[str]) -> None:
    """Verify that rows have a query and a positive, if these are not named.

    Raises:
        DataError: a part has no column; the message names the columns and the remedy.
    """
    missing = [
        part
        for part in ("query", "positive")
        if part not in columns.model_fields_set
        and getattr(columns, part) == (part,)
        and part not in names
    ]
    if not missing:
        return
    there = ", ".join(map(repr, names))
    if texts := labelled(names):
        text, label = texts
        raise DataError(
            f"the columns are {there}, which are texts and their labels: to make pairs of texts of "
            f'one label, set columns = {{ query = "{text}", label = "{label}" }} and same_label = '
            "{ seed = 0 }"
        )
    parts = " and ".join(f"columns.{part}" for part in missing)
    raise DataError(
        f"no column {missing[0]!r} (there are {there}), and none whose name stands for it: name it "
        f"in {parts}"
    )


def _called(part: str, aliases: Sequence[str], names: Collection[str]) -> str | None:
    """Return the column that is called ``part`` or, if just one is, by one of the aliases."""
    return part if part in names else _one(part, _candidates(aliases, names))


def _one(part: str, candidates: Sequence[str]) -> str | None:
    """Return the only candidate for a part, or none where there is none."""
    if len(candidates) > 1:
        one, *others = candidates
        raise DataError(
            f"{' and '.join(map(repr, candidates))} could each be the {part}: name the one that is "
            f'meant, as in columns.{part} = "{one}", and list the other in ignore if nothing is to '
            f"read it: ignore = {json.dumps(others, ensure_ascii=False)}"
        )
    return candidates[0] if candidates else None


def _candidates(aliases: Sequence[str], names: Iterable[str]) -> list[str]:
    return [name for name in names if fold(name) in aliases]


def _with_bodies(
    found: dict[str, Any], named: Collection[str], names: Collection[str]
) -> dict[str, Any]:
    """Add a title and a body: as query and positive, or both as the positive of a query."""
    title = _one("query", _candidates(("title",), names))
    has_query = "query" in found or "query" in named
    if "positive" in found or "positive" in named:
        if not has_query and title:
            return {**found, "query": (title,)}
        return found
    body = _one("positive", _candidates(BODIES, names))
    if body is None:
        return found
    if has_query:
        return {**found, "positive": (title, body) if title else (body,)}
    return {**found, "query": (title,), "positive": (body,)} if title else found


def _with_lists(columns: Columns, given: Columns, rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Write a recognised positive that holds lists as ``name[]``."""
    if "positive" in given.model_fields_set or len(columns.positive) > 1:
        return columns
    (name,) = columns.positive
    if any(list_in(row, row.get(name)) is not None for row in rows):
        return columns.model_copy(update={"positive": (f"{name}[]",)})
    return columns


def _order(name: str) -> tuple[bool, int]:
    """Sort ``negatives``, ``negative``, ``negative_1``, ``negative_2``, ``negative_10``."""
    match = _NEGATIVES.fullmatch(fold(name))
    assert match is not None
    return fold(name) not in ("negatives", "negs"), int(match[1] or -1)
