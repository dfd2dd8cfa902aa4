"""What a source of training pairs is: where it lies, which columns it has, how training uses it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, model_validator
from pydantic.json_schema import SkipJsonSchema

from embedkit.config import Section, find, read_toml, shipped, validated
from embedkit.data.manifests.columns import ColumnPath, RowFilter
from embedkit.data.manifests.readers import AnyReader, Reader
from embedkit.data.manifests.roles import Columns, Names
from embedkit.data.sources.readers.shards import Shards, ShardsSource
from embedkit.errors import UserError

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


def _filter(text: str) -> str:
    return RowFilter(text).text


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
FilterText = Annotated[str, AfterValidator(_filter)]


class Prompts(Section):
    """What is put in front of a text before tokenization, literally."""

    query: str = ""
    """This text stands before every query."""
    document: str = ""
    """This text stands before every document, positive or negative."""


class SameLabel(Section):
    """Pairs of texts of one label, see ``embedkit.data.pairs.same_label``."""

    seed: int = 0
    """Random seed for drawing the pairs."""


class HubConfig(Section):
    name: str
    """Name of the configuration."""
    rename: dict[str, str] = Field(default_factory=dict)
    """New names of the configuration's columns, by which ``[columns]`` speaks of them."""


class HubJoin(Section):
    """A column of ids that stand for rows of another configuration."""

    column: str
    """Name of the column of ids. Each id is replaced by the row it names, or by null."""
    config: str
    """Name of the configuration that has the rows."""
    split: str
    """Name of the split that has the rows."""
    key: str = "_id"
    """Name of the column of ids beside the rows."""


class HubSource(Section):
    kind: Literal["hub"]
    id: str
    """A data set's id on the Hugging Face Hub, or a folder that stands for it."""
    config: str | None = None
    """Name of the configuration that is read."""
    configs: tuple[HubConfig, ...] = Field(default=(), strict=False)
    """Configurations that are read one after the other, in place of ``config``."""
    revision: Commit | None = None
    """The commit that is read, since a branch may move. If unset, it is the lock's, or where that
    has none, the newest."""
    split: str = "train"
    """Name of the split that is read."""
    stream: bool = False
    """Whether the split's files are read as they come; else ``datasets`` copies all splits."""
    joins: tuple[HubJoin, ...] = Field(default=(), strict=False)
    """Columns of ids that are replaced by the rows they name."""
    shards: Shards | None = None
    """The same rows in a folder, which is read in place of the hub where it exists."""

    @model_validator(mode="after")
    def _one_way_to_name_configs(self) -> Self:
        if self.config and self.configs:
            raise ValueError("config or configs, not both")
        return self


class File(Section):
    path: str
    """Path of the file, from the working folder; it may start with ``$EMBEDKIT_DATA``."""
    sha256: Sha256 | None = None
    """SHA-256 of the file. If set, a file with another one is refused."""


class FilesSource(Section):
    kind: Literal["files"]
    files: tuple[File, ...] = Field(min_length=1, strict=False)
    """Files of jsonl, csv, tsv (these also as .gz, .xz, .zst) or parquet, read in this order."""
    reader: AnyReader | None = None
    """Reader of files in another format. If unset, the files' suffixes say how they are read."""


class PackageSource(Section):
    kind: Literal["package"]
    distribution: str
    """Name of the distribution."""
    version: str
    """Version of the distribution. Of another one neither rows nor sha256 are checked."""
    path: str
    """A file of the distribution; for docstrings the folder of its modules."""
    sha256: Sha256
    """SHA-256 of the file; for docstrings see ``sources.digest``."""
    reader: AnyReader
    """How rows are made from the file."""


Source = Annotated[
    HubSource | FilesSource | ShardsSource | PackageSource, Field(discriminator="kind")
]


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


class Description(Section):
    """How rows become training pairs, wherever they come from."""

    columns: Columns = Columns()
    """Which value of a row plays which part in a training pair."""
    ignore: Names = ()
    """Columns without a part; ``negatives`` stands for all that are negatives by their names."""
    filter: FilterText | None = None
    """Only the rows for which this condition holds are kept, e.g. ``score > 4``."""
    drop_empty: bool = False
    """Rows without query or positive are left out. Otherwise such a row is an error."""
    deduplicate: bool = False
    """Only the first row of each (query, positive) is kept."""
    same_label: SameLabel | None = None
    """The positives are made from columns.query and columns.label."""
    task: Task = "retrieval"
    """The task that the pairs are examples of."""
    license: str = ""
    """Licence of the pairs."""
    prompts: Prompts = Prompts()
    """Texts that stand before queries and documents."""
    negatives_per_query: NonNegativeInt | None = None
    """Number of hard negatives that are drawn for each query. If unset, it is 1 where the source
    has any, else 0."""
    in_batch_negatives: bool = True
    """Whether each query is scored against its batch's other documents, besides its negatives."""
    batch_size: PositiveInt | None = None
    """Number of pairs in a batch over all ranks, in place of the recipe's."""
    max_query_tokens: int | None = Field(default=None, ge=3)
    """Queries are cut to this many tokens, in place of the recipe's number."""
    max_document_tokens: int | None = Field(default=None, ge=3)
    """Documents are cut to this many tokens, in place of the recipe's number."""

    @model_validator(mode="after")
    def _label_alone(self) -> Self:
        if self.same_label and self.columns.model_fields_set != {"query", "label"}:
            raise ValueError("same_label needs columns.query and columns.label, and no others")
        return self

    @model_validator(mode="after")
    def _named_or_ignored(self) -> Self:
        for role, paths in self.columns.paths().items():
            for path in paths:
                both = {path, ColumnPath(path).column}.intersection(self.ignore)
                if both and not (self.same_label and role == "positive"):
                    raise ValueError(
                        f"ignore lists {both.pop()!r}, but columns.{role} reads it: take it out of "
                        "one of them"
                    )
        return self


class Options(TypedDict, total=False):
    """The fields of ``Description`` as keyword arguments."""

    columns: Columns | Mapping[str, str | Sequence[str]]
    ignore: str | Sequence[str]
    filter: str | None
    drop_empty: bool
    deduplicate: bool
    same_label: SameLabel | Mapping[str, int] | None
    task: Task
    license: str
    prompts: Prompts | Mapping[str, str]
    negatives_per_query: int | None
    in_batch_negatives: bool
    batch_size: int | None
    max_query_tokens: int | None
    max_document_tokens: int | None


class Manifest(Description):
    """A source of training pairs."""

    name: SkipJsonSchema[str]
    """Name of the manifest's file, which is not written in it."""
    source: Source
    """Where the rows lie."""
    rows: PositiveInt | None = None
    """Expected rows after filtering, dropping and deduplication, before concepts are held out."""
    rows_read: PositiveInt | None = None
    """Expected number of rows in the source itself, as a data set's card counts them."""
    held_out: HeldOut | None = None
    """Concepts that training never sees, and the tasks on them."""

    @property
    def reader(self) -> Reader | None:
        """What reads the source's format, where the manifest names it."""
        return self.source.reader if isinstance(self.source, FilesSource | PackageSource) else None

    @model_validator(mode="after")
    def _columns_for_what_is_asked(self) -> Self:
        columns = self.columns
        if self.held_out and columns.concept is None:
            raise ValueError("held_out needs columns.concept, which tells what a row is about")
        if self.held_out and columns.negatives and not columns.negative_concepts:
            raise ValueError("held_out with columns.negatives needs columns.negative_concepts")
        types = {task.type for task in self.held_out.tasks} if self.held_out else set()
        if "classification+clustering" in types and columns.topic is None:
            raise ValueError("a classification+clustering task needs columns.topic")
        return self


def load_manifest(name: str) -> Manifest:
    """Read the manifest called ``name``: a path, or a name under ``data_manifests/``."""
    path, tables = read_manifest(name)
    if is_text(tables):
        raise UserError(f"{path}: describes text for pretraining; what is asked for is pairs")
    return validated(Manifest, tables, str(path))


def read_manifest(name: str) -> tuple[Path, dict[str, Any]]:
    """A manifest's file and tables, which have its name."""
    path = find(FOLDER, name, shipped_names, listed_by="embedkit data list")
    tables = read_toml(path)
    if "name" in tables:
        raise UserError(f"{path}: name: take it out, a manifest is called as its file")
    return path, {**tables, "name": path.stem if name.endswith(".toml") else name}


def is_text(tables: Mapping[str, Any]) -> bool:
    """Whether a manifest describes text and not pairs."""
    columns = tables.get("columns")
    return isinstance(columns, Mapping) and "text" in columns


def shipped_manifests() -> list[str]:
    """The names of all manifests of pairs that come with embedkit."""
    return [name for name, tables in shipped_tables() if not is_text(tables)]


def shipped_names() -> list[str]:
    """The names of all manifests that come with embedkit."""
    return [name for name, _ in shipped_tables()]


def shipped_tables() -> list[tuple[str, dict[str, Any]]]:
    """Name and tables of every manifest that comes with embedkit, by name."""
    folder = shipped(FOLDER)
    found = {
        str(path.relative_to(folder).with_suffix("")): read_toml(path)
        for path in folder.rglob("*.toml")
    }
    return sorted((name, tables) for name, tables in found.items() if "source" in tables)
