"""``embedkit data``: look at the sources of training text, verify them, write held-out tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embedkit.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from embedkit.data.lengths import Lengths
    from embedkit.data.manifest import Manifest
    from embedkit.data.records import Record, Records

app = typer.Typer(no_args_is_help=True, help="Sources of training text.")

_ROWS = 5
_SHOWN = 300
"""Characters of a text."""

ManifestName = Annotated[
    str, typer.Argument(metavar="NAME", help="A name under data_manifests/, or a path.")
]
ManifestNames = Annotated[
    list[str], typer.Argument(metavar="[NAME]...", help="Default: all that come with embedkit.")
]
Model = Annotated[str, typer.Option("--model", help="Whose tokenizer counts the tokens.")]
RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A name under recipes/, without .toml, or a path.")
]
Output = Annotated[Path, typer.Option("--output", help="The folder of the task folders.")]
MaxDocuments = Annotated[
    int | None,
    typer.Option("--max-documents", min=1, help="Cut each corpus. Default: as in the recipe."),
]


@app.command()
def show(name: ManifestName, model: Model = "starter") -> None:
    """Print what a source is, its first rows and how long its texts are."""
    from rich.console import Console

    from embedkit.data.lengths import token_lengths
    from embedkit.data.manifest import load_manifest
    from embedkit.data.records import open_manifest
    from embedkit.models.hub import load_tokenizer

    manifest = load_manifest(name)
    records = open_manifest(manifest)
    tokenizer = load_tokenizer(model)

    def tokenize(texts: list[str]) -> list[int]:
        ids = tokenizer(texts, truncation=False, padding=False, verbose=False)["input_ids"]
        return [len(each) for each in ids]

    console = Console()
    console.print(_facts(manifest, records))
    console.print(_rows(records.take(range(min(_ROWS, len(records))))))
    console.print(_lengths(token_lengths(records, tokenize), model))


@app.command()
def check(names: ManifestNames = []) -> None:
    """Open and verify sources, one line each. Exit code 1: one of them is not as it should be."""
    from embedkit.data.manifest import shipped_manifests

    sound = [_check(name) for name in names or shipped_manifests()]
    if not all(sound):
        raise typer.Exit(1)


@app.command()
def tasks(recipe: RecipeName, output: Output, max_documents: MaxDocuments = None) -> None:
    """Write the task folders of the concepts that a recipe's sources hold out."""
    from embedkit.data.held_out import write_tasks
    from embedkit.data.manifest import load_manifest
    from embedkit.recipe import load_recipe

    resolved = load_recipe(recipe)
    manifests = [load_manifest(mix.manifest) for mix in resolved.data.mix]
    limit = max_documents or resolved.evaluation.max_documents
    for folder in write_tasks(manifests, output, limit):
        typer.echo(folder)


def _check(name: str) -> bool:
    """Print the line of one source; whether it is sound."""
    import warnings

    from embedkit.data.manifest import load_manifest
    from embedkit.data.records import open_manifest

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            manifest = load_manifest(name)
            rows = f"{len(open_manifest(manifest))} rows"
            if manifest.held_out:
                rows += f", {len(open_manifest(manifest, 'held_out'))} held out"
        except UserError as error:
            typer.echo(f"{name}\tfailed\t{' '.join(str(error).split())}")
            return False
    notes = dict.fromkeys(f"\twarning: {warning.message}" for warning in caught)
    typer.echo(f"{name}\tok\t{rows}{''.join(notes)}")
    return True


def _facts(manifest: "Manifest", records: "Records") -> "Table":
    from embedkit.data.records import open_manifest

    source = manifest.source.model_dump(exclude_none=True)
    source |= {f"reader {key}": value for key, value in source.pop("reader", {}).items()}
    columns = manifest.columns.model_dump(exclude_defaults=True) if manifest.columns else {}
    columns = {"query": "query", "positive": "positive", **columns}
    prompts = records.prompts.model_dump()
    rows = f"{len(records)}"
    if manifest.held_out:
        rows += f" for training, {len(open_manifest(manifest, 'held_out'))} held out"
    return _table(
        [],
        [
            ("source", "\n".join(f"{key}: {value}" for key, value in source.items())),
            ("licence", records.license or "not stated"),
            ("task", records.task),
            ("rows", rows),
            ("columns", "\n".join(f"{key}: {_listed(value)}" for key, value in columns.items())),
            ("filter", manifest.filter or "none"),
            ("prompts", "\n".join(f"{side}: {prompt!r}" for side, prompt in prompts.items())),
            ("negatives per query", str(records.negatives_per_query)),
        ],
        title=manifest.name,
    )


def _rows(records: Sequence["Record"]) -> "Table":
    rows = [
        (str(number), record.query, record.positive, "\n".join(record.negatives[:3]))
        for number, record in enumerate(records)
    ]
    shortened = [[_shortened(cell) for cell in row] for row in rows]
    return _table(["row", "query", "positive", "negatives (3 at most)"], shortened)


def _lengths(lengths: "Lengths", model: str) -> "Table":
    from embedkit.data.lengths import QUANTILES

    heads = ["tokens", *("longest" if each == 1 else f"{each:.0%}" for each in QUANTILES)]
    rows = [(role, *map(str, values)) for role, values in lengths.quantiles.items()]
    return _table(heads, rows, title=f"token lengths by {model}, {lengths.rows} rows")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, show_header=bool(heads), show_lines=True)
    for head in heads or [""] * len(rows[0]):
        table.add_column(head, overflow="fold")
    for row in rows:
        # As Text, since brackets in a plain string would be read as markup.
        table.add_row(*map(Text, row))
    return table


def _listed(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
