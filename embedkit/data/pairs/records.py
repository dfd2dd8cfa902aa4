"""Opens training pairs, which are memory-mapped, and cached by what they were made from."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from embedkit.config import validated
from embedkit.data.concepts import Split, held_out_share, splits
from embedkit.data.manifests.manifest import Description, Manifest, Options, Prompts, load_manifest
from embedkit.data.manifests.sources import HubSource
from embedkit.data.pairs import from_rows
from embedkit.data.pairs.known_answers import KnownAnswers, open_known_answers
from embedkit.data.pairs.layout import ColumnLayout, one_line
from embedkit.data.pairs.table import Sample, Table, TableWriter
from embedkit.data.sources import open_source
from embedkit.data.sources.rows import RowSource, RowStream, errors_named
from embedkit.errors import DataError
from embedkit.storage import cache
from embedkit.storage.hashing import sha256_of_json

FORMAT = 1
"""Part of every key: raise it when rows become other pairs, or pairs are written otherwise."""
_KIND, _LAYOUT = "records", "layout.json"
_NEGATIVES = 4
"""Hard negatives of a query that are read by default: each takes as long to encode as a positive,
and rows of some sources have a hundred."""


@dataclass(frozen=True, slots=True)
class Record:
    query: str
    positive: str
    negatives: tuple[str, ...] = ()
    label: str | None = None
    score: float | None = None
    scores: Sequence[float] | None = None
    """A teacher's scores of the positive and of each negative."""


class Records(RowSource):
    """Rows of one source, read from disk when asked for. Pickles small, for worker processes.

    Usage::

        records = Records.from_file("pairs.jsonl", columns={"query": "q", "positive": "answer"})
        records[0].query
    """

    def __init__(
        self, name: str, table: Table, description: Description, layout: ColumnLayout
    ) -> None:
        self.name = name
        self.table = table
        self.description = description
        self.layout = layout
        """The part that each column of the source plays."""

    @classmethod
    def _from_stream(cls, name: str, stream: RowStream, options: Options) -> Self:
        description = validated(Description, options, name)
        with cache.scratch(_KIND) as aside:
            # Not of the folder that stays: equal rows may be made of other columns.
            layout = _write(aside, name, [stream], description)
            content = Table(aside / "train.arrow").facts.content
            folder = aside.with_name(f"rows-{FORMAT}-{content[:32]}")
            cache.publish(aside, folder)
        layout.tell_unused(name)
        return cls(name, Table(folder / "train.arrow"), description, layout)

    def renamed(self, name: str) -> Self:
        """Return the same rows under another name."""
        return type(self)(name, self.table, self.description, self.layout)

    def reading(self, table: Table) -> Self:
        """Return the same source with the rows of another table, such as a part of its own."""
        return type(self)(self.name, table, self.description, self.layout)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> Record:
        return self.take([row])[0]

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> list[Record]:
        """Return the records of ``rows``, in their order.

        Raises:
            IndexError: a row lies outside ``range(len(self))``.
        """
        extra = [name for name, has in self._extra.items() if has]
        taken = self.table.take(
            [int(row) for row in rows], ["query", "positive", "negatives", "label", *extra]
        )
        return [
            Record(query, positive, tuple(negatives), label, **dict(zip(extra, rest, strict=True)))
            for query, positive, negatives, label, *rest in taken
        ]

    @property
    def _extra(self) -> dict[str, bool]:
        """Whether the table has each column that only some tables have."""
        return {"score": self.has_scores, "scores": self.has_teacher}

    def texts(self) -> Iterator[str]:
        """Yield every query, positive and negative, from the first row to the last."""
        for query, positive, negatives in self.table.scan(("query", "positive", "negatives")):
            yield query
            yield positive
            yield from negatives

    @cached_property
    def known_answers(self) -> KnownAnswers:
        """The answers that the rows of the source, taken together, know of a query."""
        return open_known_answers(self.name, self.table)

    @cached_property
    def fingerprint(self) -> str:
        """A hash that changes with anything that changes training: the rows, and their use."""
        limits = {"in_batch_negatives", "batch_size", "max_query_tokens", "max_document_tokens"}
        facts = {
            "content": self.table.facts.content,
            "negatives_per_query": self.negatives_per_query,
            **self.description.model_dump(include={"prompts", *limits}),
        }
        return sha256_of_json(facts)

    @property
    def summary(self) -> str:
        """A line that names the columns of each part, the unused ones, and the number of rows."""
        same_label = self.description.same_label is not None
        layout = self.layout
        return one_line(self.name, layout.columns, layout.unused, len(self), same_label=same_label)

    @property
    def license(self) -> str:
        return self.description.license

    @property
    def prompts(self) -> Prompts:
        return self.description.prompts

    @property
    def batch_size(self) -> int | None:
        return self.description.batch_size

    @cached_property
    def negatives_given(self) -> int:
        """The largest number of hard negatives that a row of the source has."""
        return self.table.most_negatives()

    @property
    def negatives_per_query(self) -> int:
        """Number of hard negatives that a query is trained on, of those that its row has."""
        asked = self.description.negatives_per_query
        return min(self.negatives_given, _NEGATIVES) if asked is None else asked

    @property
    def has_labels(self) -> bool:
        """Whether any row has a label."""
        return self.table.facts.with_label > 0

    @property
    def has_scores(self) -> bool:
        """Whether every row has a score."""
        return self.description.has_scores

    @property
    def has_teacher(self) -> bool:
        """Whether every row has a teacher's scores of its documents."""
        return self.description.has_teacher


def open_records(manifest: Manifest | str | Path, split: Split = "train") -> Records:
    """Open the source of a manifest: its training rows, or those of the held-out concepts.

    A manifest is given as such, by name or by path. The first time, rows are written to the cache.

    Raises:
        DataError: the source is missing, is not what the manifest pins, or has a bad row.
    """
    if not isinstance(manifest, Manifest):
        manifest = load_manifest(str(manifest))
    if split == "held_out" and manifest.held_out is None:
        raise DataError(f"{manifest.name}: holds nothing out: give it a [held_out] table")
    with errors_named(manifest.name):
        opened = open_source.opened(manifest.source)
    making = manifest.model_dump(
        include={
            *("columns", "ignore", "filter", "drop_empty", "deduplicate", "same_label"),
            "negative_below",
        }
    )
    if manifest.columns.score is None:
        # Keys of sources without scores stay as they were before there were scores.
        del making["columns"]["score"]
    if not manifest.columns.scores:
        del making["columns"]["scores"]
    if manifest.negative_below is None:
        del making["negative_below"]
    if opened.knows_text_alone:
        # Formerly, a list that a cell spells was read as one text.
        making["lists"] = "json"
    share = held_out_share(manifest)
    key = opened.key(manifest.source, FORMAT, making=making, share=share)
    build = partial(_write, name=manifest.name, streams=opened.streams, description=manifest)
    folder = cache.built(_KIND, key, build)
    tables = {name: Table(folder / f"{name}.arrow") for name in splits(share)}
    layout = ColumnLayout(**json.loads((folder / _LAYOUT).read_text()))
    rows, warn = sum(map(len, tables.values())), isinstance(manifest.source, HubSource)
    opened.expect(manifest.name, "rows", rows, manifest.rows, warn=warn)
    opened.expect(manifest.name, "rows read", layout.rows_read, manifest.rows_read, warn=warn)
    layout.tell_unused(manifest.name)
    table, limit = tables[split], manifest.max_rows
    if split == "train" and limit is not None and limit < len(table):
        table = Sample(table.path, limit, manifest.max_rows_seed)
    return Records(manifest.name, table, manifest, layout)


def _write(
    folder: Path, name: str, streams: Iterable[RowStream], description: Description
) -> ColumnLayout:
    """Fill ``folder`` with one table for each split, and with the layout, which is returned."""
    layout = ColumnLayout()
    scored, taught = description.has_scores, description.has_teacher
    with errors_named(name), ExitStack() as stack:
        writers = {
            split: stack.enter_context(
                TableWriter(folder / f"{split}.arrow", scored=scored, taught=taught)
            )
            for split in splits(held_out_share(description))
        }
        for pair in from_rows.pairs(streams, description, layout):
            writers["held_out" if pair.held_out else "train"].add(pair)
    (folder / _LAYOUT).write_text(json.dumps(layout.stored()))
    return layout
