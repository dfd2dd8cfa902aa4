"""The tables ``[source]`` of a manifest: a data set of the hub, files, shards or a package."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from embedkit.config import Section
from embedkit.data.manifests.readers import Reader
from embedkit.data.sources.readers.docstring import DocstringReader
from embedkit.data.sources.readers.icd import IcdReader
from embedkit.data.sources.readers.obo import OboReader
from embedkit.data.sources.readers.shards import Shards, ShardsSource
from embedkit.recipe.extensions import Kinds

READERS = Kinds(
    "embedkit.readers",
    Reader,  # type: ignore[type-abstract]
    {"obo": OboReader, "icd": IcdReader, "docstring": DocstringReader},
)
"""The formats that ``reader.kind`` chooses among."""
AnyReader = Annotated[SerializeAsAny[Reader], BeforeValidator(READERS.resolve), READERS]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


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
    """Path of the file, or of a folder of such files or that ``datasets`` saved; it may start with
    ``$EMBEDKIT_DATA``."""
    sha256: Sha256 | None = None
    """SHA-256 of the file. If set, a file with another one is refused."""


class FilesSource(Section):
    kind: Literal["files"]
    files: tuple[File, ...] = Field(min_length=1, strict=False)
    """Files of jsonl, json, csv, tsv, txt (these also as .gz, .xz, .zst), parquet or arrow, in
    reading order."""
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
    """SHA-256 of the file; for docstrings the hash of
    the hashes of all modules."""
    reader: AnyReader
    """Reader that makes rows of the file."""


Source = Annotated[
    HubSource | FilesSource | ShardsSource | PackageSource, Field(discriminator="kind")
]
