"""What a source of text for pretraining is: where it lies, and what of a row is its text."""

from typing import Self

from pydantic import Field, PositiveInt, model_validator
from pydantic.json_schema import SkipJsonSchema

from embedkit.config import Section, validated
from embedkit.data.manifests.manifest import (
    FilterText,
    Manifest,
    Source,
    is_text,
    load_manifest,
    read_manifest,
    shipped_tables,
)
from embedkit.data.manifests.roles import PathText, PathTexts
from embedkit.errors import UserError


class TextColumns(Section):
    """Which values of a row make its text, as paths: ``a``, ``a.b``, ``a[0]``, ``a[].b``."""

    text: PathTexts = ("text",)
    """One or several paths to the text. Several texts are joined, each on a line of its own; empty
    ones are left out."""
    concept: PathText | None = None
    """Path to the concept that the row is about. Concepts are held out whole."""

    @model_validator(mode="after")
    def _some_text(self) -> Self:
        if not self.text:
            raise ValueError("text names no column")
        return self


class TextHeldOut(Section):
    """Documents that training never sees."""

    share: float = Field(gt=0, lt=1)
    """Share of the concepts that is held out, by the rule that holds for pairs; share of the
    documents where no column says what a row is about."""


class TextDescription(Section):
    """How rows become documents, wherever they come from."""

    columns: TextColumns = TextColumns()
    """Which values of a row make its text."""
    filter: FilterText | None = None
    """Only the rows for which this condition holds are kept, e.g. ``language == "en"``."""
    drop_empty: bool = False
    """Rows without text are left out. Otherwise such a row is an error."""
    deduplicate: bool = False
    """Only the first row of each text is kept."""
    license: str = ""
    """Licence of the text."""
    held_out: TextHeldOut | None = None
    """Documents that training never sees, on which the loss is measured."""


class TextManifest(TextDescription):
    """A source of text for pretraining."""

    name: SkipJsonSchema[str]
    """Name of the manifest's file, which is not written in it."""
    source: Source
    """Where the text lies."""
    rows: PositiveInt | None = None
    """Expected number of rows after filtering, dropping and deduplication, the held-out ones
    included."""


def load_text_manifest(name: str) -> TextManifest:
    """Read the manifest of text called ``name``: a path, or a name under ``data_manifests/``."""
    manifest = load_any_manifest(name)
    if isinstance(manifest, Manifest):
        raise UserError(
            f"{name}: describes pairs; what is asked for is text, whose manifest says which "
            "columns make it: columns.text"
        )
    return manifest


def load_any_manifest(name: str) -> Manifest | TextManifest:
    """Read a manifest of whichever kind ``columns.text`` tells it to be."""
    path, tables = read_manifest(name)
    return validated(TextManifest, tables, str(path)) if is_text(tables) else load_manifest(name)


def shipped_text_manifests() -> list[str]:
    """The names of all manifests of text that come with embedkit."""
    return [name for name, tables in shipped_tables() if is_text(tables)]
