"""Finds which columns of a source's rows are used, ignored or unused."""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from embedkit import distributed
from embedkit.data.concepts import held_out_share
from embedkit.data.manifests.columns import ColumnPath, Columns, RowFilter
from embedkit.data.manifests.manifest import Description
from embedkit.data.pairs.recognition import (
    SCORE_LIKE,
    are_negatives,
    check_pair,
    fold,
    is_telling,
    reason,
    with_recognised,
)
from embedkit.errors import DataError

_BY_LABEL = "another text of the label"


@dataclass
class ColumnLayout:
    """The parts that columns of a source turn out to play; it is kept beside the rows."""

    rows_read: int = 0
    """Rows of the source itself, including those that the filter leaves out."""
    columns: dict[str, list[str]] = field(default_factory=dict)
    """The paths of the columns that play each part, over all rows."""
    unused: list[str] = field(default_factory=list)
    """Columns that play no part and are not ignored."""
    unpaired: int = 0
    """Rows that score below ``negative_below`` and became no negatives, and so are left out."""

    def stored(self) -> dict[str, object]:
        """Return the fields as they are stored; ``unpaired`` only where there are such rows."""
        return {name: value for name, value in vars(self).items() if value or name != "unpaired"}

    def add(self, names: Sequence[str], description: Description) -> Columns:
        """Find, and keep, which parts the columns ``names`` of a row play.

        Raises:
            DataError: a column that would change training plays no part, or a held-out split lacks
                the concepts of negatives.
        """
        columns, ignore = description.columns, description.ignore
        if description.same_label:
            # The positives are made of the queries.
            columns = columns.model_copy(update={"positive": columns.query})
        # A query or positive that nobody named may be another column than that of its name.
        named = columns.model_fields_set | ({"positive"} if description.same_label else set())
        taken = _starts({part: p for part, p in columns.paths().items() if part in named}, names)
        left_out = set(ignore)
        if "negatives" in ignore:
            left_out.update(filter(are_negatives, names))
        free = [name for name in names if name not in taken and name not in left_out]
        if not description.same_label:
            columns = with_recognised(columns, free)
            check_pair(columns, names)
        held_out = held_out_share(description) is not None
        if held_out and columns.negatives and not columns.negative_concepts:
            raise DataError(
                "held_out needs columns.negative_concepts for the negatives in "
                f'{_quoted(columns.negatives)}, or ignore = ["negatives"]'
            )
        used = _starts(columns.paths(), names)
        if description.filter:
            filtered = _start(RowFilter(description.filter).path.text, names)
            if columns.label != description.columns.label and columns.label == filtered:
                # Rows that are kept for one label would not be negatives of each other.
                raise DataError(
                    f"the filter reads {filtered!r}, which would also be taken for the label: set "
                    f'columns.label = "{filtered}" if that is meant, else ignore = ["{filtered}"]'
                )
            used.add(filtered)
        unused = [name for name in free if name not in used]
        # Reading the row refuses a named column that is missing, which may be there, renamed.
        telling = [name for name in unused if is_telling(name)]
        if telling and taken.issubset(names):
            them, they = ("it", "it is") if len(telling) == 1 else ("them", "they are")
            raise DataError(
                f"nothing uses {_quoted(telling)}: give {them} a part in columns, or say that "
                f"{they} left out: ignore = {json.dumps(telling, ensure_ascii=False)}"
                + _of_scores(telling)
            )
        self.unused += [name for name in unused if name not in self.unused]
        for role, paths in columns.paths().items():
            known = self.columns.setdefault(role, [])
            known += [path for path in paths if path not in known]
        return columns

    def reasons(self, description: Description) -> dict[str, str]:
        """Say for each part why its columns were taken for it."""
        reasons = {
            part: "; ".join(dict.fromkeys(reason(part, p, description.columns) for p in paths))
            for part, paths in self.columns.items()
        }
        if description.same_label:
            reasons["positive"] = _BY_LABEL
        return reasons

    def tell_unused(self, name: str) -> None:
        """Warn of the columns of the source ``name`` that play no part, and of rows left out."""
        if not distributed.is_main():
            return
        if self.unpaired:
            warnings.warn(
                f"{name}: {self.unpaired:,} rows that score below negative_below are left out, "
                "since no row with their query scores higher, or one with the same texts does",
                stacklevel=2,
            )
        if self.unused:
            warnings.warn(
                f"{name}: nothing uses the columns {_quoted(self.unused)}: give them a part in "
                "columns, or list them in ignore",
                stacklevel=2,
            )


def _of_scores(names: Sequence[str]) -> str:
    """Say what else may be done with a column of scores, if there is one among ``names``."""
    score = next((name for name in names if fold(name).startswith(SCORE_LIKE)), None)
    if score is None:
        return ""
    return (
        f'. For objective.kind = "cosent" or negative_below, set columns.score = "{score}"; a '
        f'filter such as "{score} > 4" keeps the pairs that match'
    )


def one_line(
    name: str,
    parts: Mapping[str, Sequence[str]],
    unused: Sequence[str],
    rows: int,
    *,
    same_label: bool,
) -> str:
    """Say which column of a source became which part, what is unused, and how many rows it has."""
    parts = {**parts, "positive": [_BY_LABEL]} if same_label else parts
    played = ", ".join(f"{part} <- {' + '.join(paths)}" for part, paths in parts.items() if paths)
    left_out = f"; unused: {', '.join(unused)}" if unused else ""
    return f"{name}: {played}{left_out}; {rows:,} rows"


def _starts(parts: Mapping[str, Sequence[str]], names: Sequence[str]) -> set[str]:
    """Return the columns that the paths of parts start in."""
    return {_start(path, names) for paths in parts.values() for path in paths}


def _start(path: str, names: Sequence[str]) -> str:
    return path if path in names else ColumnPath(path).column


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
