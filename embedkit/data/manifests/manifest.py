"""Reads manifests: where rows lie, what their columns are, and how training uses them.

A manifest describes text if it has the key ``columns.text``, and pairs otherwise.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from pydantic.json_schema import SkipJsonSchema

from embedkit.config import Section, find, read_toml, validated
from embedkit.data.manifests.columns import ColumnPath, Columns, FilterText, Names, TextColumns
from embedkit.data.manifests.sources import Source
from embedkit.errors import UserError
from embedkit.storage.relative_paths import located

FOLDER = "data_manifests"

Task = Literal[
    "retrieval",
    "question_answering",
    "reranking",
    "sts",
    "nli",
    "pair_classification",
    "classification",
    "clustering",
    "summarization",
]


class Prompts(Section):
    """Texts that are put in front of other texts before tokenization, literally."""

    query: str = ""
    """This text stands before every query."""
    document: str = ""
    """This text stands before every document, positive or negative."""


class SameLabel(Section):
    """Pairs of texts of one label, see ``embedkit.data.pairs.same_label``."""

    seed: int = 0
    """Random seed for drawing the pairs."""


class HeldOutTask(Section):
    name: str = Field(pattern=r"^[\w.-]+$")
    """Name of the task's folder."""
    type: Literal["retrieval", "classification+clustering"]
    """The task is to find the positive of a query, or to tell the topic of a query or positive."""


class HeldOut(Section):
    share: float = Field(gt=0, lt=1)
    """Share of the concepts that is held out, of every manifest with this share or more."""
    tasks: tuple[HeldOutTask, ...] = Field(min_length=1, strict=False)
    """The tasks that are made of the held-out concepts."""


class TextHeldOut(Section):
    """Documents that training never sees."""

    share: float = Field(gt=0, lt=1)
    """Share of the concepts that is held out, by the rule that holds for pairs; share of the
    documents where no column says what a row is about."""


class RowDescription(Section):
    """Settings that choose the rows of a source that become examples: pairs or documents."""

    filter: FilterText | None = None
    """Only the rows for which this condition holds are kept, e.g. ``score > 4``."""
    drop_empty: bool = False
    """Rows without text, or without query or positive, are left out. Otherwise such a row is an
    error."""
    deduplicate: bool = False
    """Only the first row of each text, or of each (query, positive), is kept."""
    license: str = ""
    """Licence of the rows."""


class Description(RowDescription):
    """Settings by which rows of any source become training pairs."""

    columns: Columns = Columns()
    """Paths to the values of a row that play each part in a training pair."""
    ignore: Names = ()
    """Columns without a part; ``negatives`` stands for all that are negatives by their names."""
    same_label: SameLabel | None = None
    """The positives are made from columns.query and columns.label."""
    negative_below: float | None = None
    """Rows with a score in ``columns.score`` below this are no pairs of their own. Their document
    is a hard negative of the rows with the same query that score higher, and the scores are not
    trained on."""
    task: Task = "retrieval"
    """The task that the pairs are examples of."""
    prompts: Prompts = Prompts()
    """Texts that stand before queries and documents."""
    negatives_per_query: NonNegativeInt | None = None
    """Number of hard negatives that are drawn for each query. If unset, all that a row has are
    read, up to 4."""
    in_batch_negatives: bool = True
    """Whether each query is scored against its batch's other documents, besides its negatives."""
    batch_size: PositiveInt | None = None
    """Number of pairs in a batch over all ranks, in place of the recipe's if that is larger."""
    max_query_tokens: int | None = Field(default=None, ge=3)
    """Queries are cut to this many tokens, in place of the recipe's number."""
    max_document_tokens: int | None = Field(default=None, ge=3)
    """Documents are cut to this many tokens, in place of the recipe's number."""

    @property
    def has_scores(self) -> bool:
        """Whether every pair has a score, on which a loss may train."""
        return self.columns.score is not None and self.negative_below is None

    @property
    def has_teacher(self) -> bool:
        """Whether every document of a row has a teacher's score."""
        return bool(self.columns.scores)

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        if self.negative_below is not None and self.has_teacher:
            raise ValueError(
                "negative_below adds negatives without a teacher's score: take columns.scores out"
            )
        if self.negative_below is not None and self.columns.score is None:
            raise ValueError(
                f"negative_below = {self.negative_below:g} needs columns.score, which names the "
                "column of the scores"
            )
        if self.same_label and self.columns.model_fields_set != {"query", "label"}:
            raise ValueError("same_label needs columns.query and columns.label, and no others")
        for role, paths in self.columns.paths().items():
            for path in paths:
                both = {path, ColumnPath(path).column}.intersection(self.ignore)
                if both and not (self.same_label and role == "positive"):
                    raise ValueError(
                        f"ignore lists {both.pop()!r}, but columns.{role} reads it: take it out of "
                        "one of them"
                    )
        return self


class TextDescription(RowDescription):
    """Settings by which rows of any source become documents."""

    columns: TextColumns = TextColumns()
    """Paths to the values of a row that make its text."""
    held_out: TextHeldOut | None = None
    """Documents that training never sees, on which the loss is measured."""


class Options(TypedDict, total=False):
    """The fields of ``Description`` and ``TextDescription`` as keyword arguments."""

    columns: Columns | TextColumns | Mapping[str, str | Sequence[str]]
    ignore: str | Sequence[str]
    filter: str | None
    drop_empty: bool
    deduplicate: bool
    same_label: SameLabel | Mapping[str, int] | None
    negative_below: float | None
    held_out: TextHeldOut | Mapping[str, float] | None
    task: Task
    license: str
    prompts: Prompts | Mapping[str, str]
    negatives_per_query: int | None
    in_batch_negatives: bool
    batch_size: int | None
    max_query_tokens: int | None
    max_document_tokens: int | None


class Located(Section):
    """The name and the source of a manifest."""

    name: SkipJsonSchema[str]
    """Name of the manifest's file, which is not written in it."""
    source: Source
    """Location of the rows: hub, files, shards or a package."""
    rows: PositiveInt | None = None
    """Expected rows after filtering, dropping and deduplication, before any are held out."""


class Manifest(Description, Located):
    """A source of training pairs."""

    rows_read: PositiveInt | None = None
    """Expected number of rows in the source itself, as a data set's card counts them."""
    max_rows: PositiveInt | None = None
    """Training reads a random sample of so many rows, if there are more. The rows that are held
    out are not sampled, and ``rows`` counts all rows."""
    max_rows_seed: int = 0
    """Random seed for drawing the sample; with the same seed, a smaller one is part of a larger."""
    held_out: HeldOut | None = None
    """Concepts that training never sees, and the tasks on them."""

    @model_validator(mode="after")
    def _columns_for_what_is_asked(self) -> Self:
        if self.held_out is None:
            return self
        columns = self.columns
        if self.negative_below is not None:
            raise ValueError(
                "negative_below does not go with held_out, since a negative's concept is not "
                "known: take one of them out"
            )
        if columns.concept is None:
            raise ValueError("held_out needs columns.concept, which tells what a row is about")
        if columns.negatives and not columns.negative_concepts:
            raise ValueError("held_out with columns.negatives needs columns.negative_concepts")
        types = {task.type for task in self.held_out.tasks}
        if "classification+clustering" in types and columns.topic is None:
            raise ValueError("a classification+clustering task needs columns.topic")
        return self


class TextManifest(TextDescription, Located):
    """A source of text for pretraining."""


def load_manifest(name: str) -> Manifest:
    """Read the manifest of pairs called ``name``: a path, or a name under ``data_manifests/``."""
    manifest = load_any_manifest(name)
    if isinstance(manifest, Manifest):
        return manifest
    raise UserError(f"{name}: describes text for pretraining; what is asked for is pairs")


def load_text_manifest(name: str) -> TextManifest:
    """Read the manifest of text called ``name``: a path, or a name under ``data_manifests/``."""
    manifest = load_any_manifest(name)
    if isinstance(manifest, TextManifest):
        return manifest
    raise UserError(
        f"{name}: describes pairs; what is asked for is text, whose manifest says which columns "
        "make it: columns.text"
    )


def load_any_manifest(name: str) -> Manifest | TextManifest:
    """Read a manifest of pairs or of text."""
    path = find(FOLDER, name, listed_by="embedkit data list")
    tables = read_toml(path)
    if "name" in tables:
        raise UserError(f"{path}: name: take it out, a manifest is called as its file")
    tables["name"] = path.stem if name.endswith(".toml") else name
    if name.endswith(".toml"):
        tables = located(tables, ("source.files.path",), path)
        tables = located(tables, ("source.id", "source.folder"), path, Path.is_dir)
    if is_text(tables):
        return validated(TextManifest, tables, str(path))
    return validated(Manifest, tables, str(path))


def is_text(tables: Mapping[str, Any]) -> bool:
    """Whether a manifest describes text and not pairs."""
    columns = tables.get("columns")
    return isinstance(columns, Mapping) and "text" in columns
