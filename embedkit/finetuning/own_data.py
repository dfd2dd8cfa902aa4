"""Writes the recipe and the manifest of a run on own data, each setting with its reason."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypedDict, Unpack

import tomli_w
from rich.table import Table

from embedkit.config import assign, validated
from embedkit.data.manifests.manifest import HeldOut, HeldOutTask, Manifest, SameLabel
from embedkit.data.pairs.recognition import Recognition, recognised
from embedkit.data.pairs.records import Records, open_records
from embedkit.data.sources.open_source import opened
from embedkit.data.sources.rows import errors_named
from embedkit.data.sources.source_of import source_of
from embedkit.data.tables import plain_table
from embedkit.errors import DataError
from embedkit.finetuning.own_settings import Choice, settings
from embedkit.recipe import Recipe
from embedkit.recipe.load_recipes import overridden
from embedkit.storage.hashing import sha256_of_text

MANIFESTS = "manifests"
"""Folder of a run, or beside a recipe, that holds the manifest of own data."""

_SEEN = 200
"""Rows by whose values columns are recognised."""
_FEWEST = 40
"""Documents of which some can be held out and some trained on."""
_TESTED = 300
"""Documents held out for the test, as far as a fifth of all has as many."""
_NEGATIVES = 4
"""Hard negatives of a query that are read in a step."""


@dataclass(frozen=True, slots=True)
class OwnRun:
    """Recipe and manifest of a run on own data, with the choices that led to them."""

    recipe: Recipe
    manifest: Manifest
    choices: tuple[Choice, ...]

    @property
    def files(self) -> dict[str, str]:
        """The manifest as the text of a file, by its path beside the recipe."""
        tables = self.manifest.model_dump(
            mode="json", exclude={"name"}, exclude_none=True, exclude_unset=True
        )
        return {manifest_path(self.manifest.name): tomli_w.dumps(tables)}

    def table(self) -> Table:
        """Return a table of all choices with their reasons."""
        rows = [(one.key, str(one.value), one.reason) for one in self.choices]
        return plain_table(["setting", "value", "reason"], rows, title=self.manifest.name)


def manifest_path(name: str) -> str:
    """Return the path of the manifest of own data from the folder of its recipe."""
    return f"{MANIFESTS}/{name}.toml"


class OwnOptions(TypedDict, total=False):
    """Settings of a run on own data that a user may give, as keyword arguments."""

    model: str
    columns: Mapping[str, str | Sequence[str]]
    ignore: Sequence[str]
    overrides: Sequence[str]


def plan(
    data: str | Path,
    folder: Path,
    *,
    model: str = "starter",
    columns: Mapping[str, str | Sequence[str]] | None = None,
    ignore: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> OwnRun:
    """Choose manifest and recipe for own data, by its columns, its size and its lengths.

    The same data give the same choices.

    Args:
        data: a file, a folder of files or of ``datasets``, or the hub id of a data set.
        folder: folder of the run or recipe, where the manifest is going to lie.
        model: the encoder to train.
        columns: names of columns by the part that they play, where their own names do not say it.
        ignore: columns that play no part on purpose.
        overrides: assignments ``dotted.key=value`` to keys of the recipe.

    Raises:
        DataError: the data cannot be read, a column could play several parts or would change
            training and plays none, or there are too few documents.
    """
    manifest, choices = _described(str(data), columns or {}, ignore)
    records = open_records(manifest)
    if dropped := records.layout.rows_read - len(records):
        reason = f"{dropped:,} of {records.layout.rows_read:,} rows repeat another or lack a text"
        choices.append(Choice("deduplicate, drop_empty", True, reason))
    held_out = _held_out(manifest, records)
    if held_out is not None:
        share, reason = held_out
        task = HeldOutTask(name=manifest.name, type="retrieval")
        manifest = _changed(manifest, held_out=HeldOut(share=share, tasks=(task,)))
        choices.append(Choice("held_out.share", share, reason))
        records = open_records(manifest)
    if (most := _most_negatives(records)) > 1:
        used = min(most, _NEGATIVES)
        manifest = _changed(manifest, negatives_per_query=used)
        choices.append(
            Choice("negatives_per_query", used, f"rows have up to {most}; {_NEGATIVES} at most")
        )
    chosen = [*settings(records, model, held_out=held_out is not None)]
    tables: dict[str, Any] = {"model": model}
    tables["data"] = {"mix": [{"manifest": str(folder / manifest_path(manifest.name))}]}
    for one in chosen:
        assign(tables, one.key, one.value)
    recipe = overridden(tables, overrides, str(data))
    if not isinstance(recipe, Recipe):
        raise DataError(f"{data}: is for fine-tuning; take objective.kind out of the overrides")
    return OwnRun(recipe, manifest, (*choices, *chosen))


def init(
    data: str | Path, output: str | Path | None = None, **own: Unpack[OwnOptions]
) -> tuple[Path, Table]:
    """Write the recipe and manifest by which ``finetune`` would train on own data, for changes.

    Args:
        data: a file, a folder of files or of ``datasets``, or the hub id of a data set.
        output: folder of the files, which is new or empty; by default that of the data's name.
        own: as for ``finetune``.

    Returns:
        The path of the recipe, and a table of its settings with their reasons.

    Raises:
        UserError: the data are not as they should be, or ``output`` has something in it.
    """
    folder = Path(output or name_of(str(data)))
    run = plan(data, folder, **own)
    return write(run, folder), run.table()


def write(run: OwnRun, folder: Path) -> Path:
    """Write the recipe and its manifest into a folder, which is new or empty; return the recipe.

    Raises:
        DataError: the folder has something in it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: is not empty; choose another --output")
    tables = run.recipe.model_dump(mode="json", exclude_none=True)
    # Paths in a recipe start at its file, so that the folder can be moved.
    tables["data"]["mix"] = [{"manifest": manifest_path(run.manifest.name)}]
    recipe = folder / "recipe.toml"
    for name, text in (*run.files.items(), ("recipe.toml", tomli_w.dumps(tables))):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return recipe


def _described(
    data: str, columns: Mapping[str, str | Sequence[str]], ignore: Sequence[str]
) -> tuple[Manifest, list[Choice]]:
    """Return a manifest that holds nothing out, and a choice for each part that a column plays."""
    name, source = name_of(data), source_of(data)
    with errors_named(data):
        seen = [row for _, rows in opened(source).streams for _, row in islice(rows, _SEEN)]
        names = list(dict.fromkeys(chain.from_iterable(seen)))
        named = validated(Manifest, {"name": name, "source": source, "columns": columns}, data)
        found = recognised(names, seen, named.columns, ignore)
        if found.telling:
            raise DataError(
                f"nothing uses the columns {', '.join(found.telling)}, which would change "
                "training: say what they are with --column PART=NAME, or leave them out with "
                "--ignore NAME"
            )
    tables: dict[str, Any] = {"source": source, "columns": found.columns, "deduplicate": True}
    tables |= {"ignore": (*ignore, *found.unused), "drop_empty": True}
    if found.same_label:
        tables["same_label"] = SameLabel()
    manifest = validated(Manifest, {"name": name, **tables}, data)
    return _by_document(manifest), list(_parts(found))


def _parts(found: Recognition) -> Iterator[Choice]:
    for part, paths in found.columns.paths().items():
        if part in found.reasons:
            yield Choice(f"columns.{part}", ", ".join(paths), found.reasons[part])
    if found.unused:
        yield Choice("ignore", ", ".join(found.unused), "nothing in training reads them")


def _by_document(manifest: Manifest) -> Manifest:
    """Return the manifest with the document as the concept that is held out whole.

    A query stands for it where a row has several documents. Hard negatives are documents, too, so
    that none of training is a document of the test.
    """
    columns = manifest.columns
    if manifest.same_label or columns.concept is not None:
        return manifest
    several = len(columns.positive) > 1 or "[]" in columns.positive[0]
    if several and (len(columns.query) > 1 or columns.negatives):
        return manifest
    concept = columns.query[0] if several else columns.positive[0]
    update: dict[str, Any] = {"concept": concept}
    if columns.negatives:
        update["negative_concepts"] = columns.negatives
    return _changed(manifest, columns=columns.model_copy(update=update))


def _held_out(manifest: Manifest, records: Records) -> tuple[float, str] | None:
    """Return the share of documents to test on, with the reason; none if rows have no concept."""
    if manifest.columns.concept is None:
        return None
    documents = len({concept for (concept,) in records.table.scan(("concept",))})
    if documents < _FEWEST:
        raise DataError(
            f"{manifest.name}: has {documents} different documents, too few to hold some out and "
            f"train on the others: bring at least {_FEWEST}"
        )
    share = round(min(0.2, max(0.02, _TESTED / documents)), 3)
    reason = f"{share:.1%} of {documents:,} documents are never trained on, and are the test"
    return share, reason


def _most_negatives(records: Records) -> int:
    if not records.table.facts.with_negatives:
        return 0
    return max(len(negatives) for (negatives,) in records.table.scan(("negatives",)))


def _changed(manifest: Manifest, **changes: Any) -> Manifest:
    """Return a manifest with other settings, which are checked together with the old ones."""
    return validated(Manifest, {**dict(manifest), **changes}, manifest.name)


def name_of(data: str) -> str:
    """Return a name for the data: that of its file or folder, without characters of a shell."""
    stem = Path(data.rstrip("/")).name.partition(".")[0] or "data"
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in stem)
    return name if name.isascii() else f"data-{sha256_of_text(name)[:8]}"
