"""``embedkit data``: look at sources, verify them, tokenize text, write held-out tasks."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embedkit.errors import UserError
from embedkit_cli.shares import shares

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from transformers import PreTrainedTokenizerBase

    from embedkit.data.manifests.manifest import Manifest
    from embedkit.data.manifests.text_manifest import TextManifest
    from embedkit.data.pairs.lengths import Lengths
    from embedkit.finetuning.mixture import Mixture
    from embedkit.recipe import Recipe

app = typer.Typer(no_args_is_help=True, help="Sources of training text.")
app.command()(shares)

ManifestName = Annotated[
    str, typer.Argument(metavar="NAME", help="A name under data_manifests/, or a path.")
]
ManifestNames = Annotated[
    list[str], typer.Argument(metavar="[NAME]...", help="Default: all that come with embedkit.")
]
Model = Annotated[str, typer.Option("--model", help="Whose tokenizer counts the tokens.")]
TextNames = Annotated[
    list[str], typer.Argument(metavar="[NAME]...", help="Names under data_manifests/, or paths.")
]
Tokenizer = Annotated[str | None, typer.Option("--tokenizer", help="A model, for its tokenizer.")]
Verified = Annotated[
    str | None,
    typer.Option("--tokenizer", help="Of text, also verify the token ids that this model makes."),
]
CheckedRecipe = Annotated[
    str | None, typer.Option("--recipe", help="All sources of this recipe, in place of names.")
]
TextRecipe = Annotated[
    str | None,
    typer.Option("--recipe", help="All of its sources, with its tokenizer or --tokenizer."),
]
RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A name under recipes/, without .toml, or a path.")
]
Output = Annotated[Path, typer.Option("--output", help="The folder of the task folders.")]
MaxDocuments = Annotated[
    int | None,
    typer.Option("--max-documents", min=1, help="Cut each corpus. Default: as in the recipe."),
]
Workers = Annotated[
    int, typer.Option("--workers", min=1, help="Sources of pairs that are opened at a time.")
]
Sample = Annotated[
    int | None,
    typer.Option("--sample", min=1, help="Tokenize so many rows of each source of pairs, not all."),
]
Upgrade = Annotated[
    bool, typer.Option("--upgrade", help="Also ask for the newest of what is pinned already.")
]


@app.command("list")
def list_() -> None:
    """Print every source that comes with embedkit: name, kind, expected rows and licence."""
    from embedkit.data.manifests.manifest import Manifest, shipped_tables
    from embedkit.data.manifests.text_manifest import load_any_manifest

    for name, _ in shipped_tables():
        manifest = load_any_manifest(name)
        kind = "pairs" if isinstance(manifest, Manifest) else "text"
        rows = f"{manifest.rows:,} rows" if manifest.rows else "rows not stated"
        if isinstance(manifest, Manifest) and manifest.rows_read:
            rows = f"made of {manifest.rows_read:,} rows"
        typer.echo(f"{name}\t{kind}\t{rows}\t{manifest.license}")


@app.command()
def show(name: ManifestName, model: Model = "starter") -> None:
    """Print what a source is, its first rows and how long its texts are."""
    from rich.console import Console

    from embedkit.data.manifests.manifest import Manifest
    from embedkit.data.manifests.text_manifest import load_any_manifest
    from embedkit.models.hub import load_tokenizer
    from embedkit_cli import data_tables

    manifest = load_any_manifest(name)
    tokenizer = load_tokenizer(model)

    if isinstance(manifest, Manifest):
        tables = data_tables.of_pairs(manifest, tokenizer, model)
    else:
        tables = data_tables.of_text(manifest, tokenizer, model)
    console = Console()
    for table in tables:
        console.print(table)


@app.command()
def check(
    names: ManifestNames = [], tokenizer: Verified = None, recipe: CheckedRecipe = None
) -> None:
    """Open and verify sources, one line each. Exit code 1: one of them is not as it should be."""
    from embedkit.data.manifests.manifest import shipped_manifests
    from embedkit.data.manifests.text_manifest import shipped_text_manifests
    from embedkit.recipe import load_any_recipe

    if recipe and names:
        raise UserError("data check takes NAME... or --recipe, not both")
    if recipe:
        names = [mix.manifest for mix in load_any_recipe(recipe).data.mix]
    every = sorted([*shipped_manifests(), *shipped_text_manifests()])
    sound = [_check(name, tokenizer) for name in names or every]
    if not all(sound):
        raise typer.Exit(1)


@app.command()
def prepare(
    names: TextNames = [],
    tokenizer: Tokenizer = None,
    recipe: TextRecipe = None,
    workers: Workers = 4,
    sample: Sample = None,
) -> None:
    """Tokenize sources of text for pretraining; fetch, verify and tokenize the pairs of a recipe.

    What is there already is only opened. Of text the token ids are kept, of pairs their lengths.
    """
    from rich.console import Console

    from embedkit.data.text.texts import Texts
    from embedkit.data.text.tokenized import prepare as tokenize
    from embedkit.models.hub import load_tokenizer
    from embedkit.pretraining.mixture import texts_of
    from embedkit.recipe import Recipe, load_any_recipe
    from embedkit.tokens.vocabulary import Vocabulary
    from embedkit_cli import data_tables

    if recipe and not names:
        resolved = load_any_recipe(recipe)
        if isinstance(resolved, Recipe):
            _prepare_pairs(resolved, tokenizer or resolved.model, workers, sample)
            return
        tokenizer = tokenizer or resolved.model.tokenizer
        texts = list(texts_of(resolved).values())
    elif names and tokenizer and not recipe:
        texts = [Texts.from_manifest(name) for name in names]
    else:
        raise UserError("data prepare takes NAME... and --tokenizer, or --recipe alone")
    if sample is not None:
        raise UserError(f"--sample {sample}: text is tokenized whole; leave it out")
    loaded = load_tokenizer(tokenizer)
    vocabulary = Vocabulary.of(loaded)
    prepared = [tokenize(each, loaded) for each in texts]
    Console().print(data_tables.of_token_ids(prepared, vocabulary.framing, tokenizer))


@app.command()
def lock(names: ManifestNames = [], upgrade: Upgrade = False) -> None:
    """Pin the data sets that are on the hub: write their newest commits down. Needs the hub."""
    from embedkit.data.manifests import hub_lock
    from embedkit.data.manifests.manifest import HubSource, shipped_tables
    from embedkit.data.manifests.text_manifest import load_any_manifest

    every = names or [name for name, _ in shipped_tables()]
    found = [load_any_manifest(name).source for name in every]
    open_ = [each.id for each in found if isinstance(each, HubSource) and not each.revision]
    ids = dict.fromkeys(id_ for id_ in open_ if not Path(id_).is_dir())
    for id_, commit in hub_lock.update(hub_lock.default_path(), ids, upgrade=upgrade).items():
        typer.echo(f"{commit}\t{id_}")


@app.command()
def tasks(recipe: RecipeName, output: Output, max_documents: MaxDocuments = None) -> None:
    """Write the task folders of the concepts that a recipe's sources hold out."""
    from embedkit.data.manifests.manifest import load_manifest
    from embedkit.data.pairs.held_out import write_tasks
    from embedkit.recipe import load_recipe

    resolved = load_recipe(recipe)
    manifests = [load_manifest(mix.manifest) for mix in resolved.data.mix]
    limit = max_documents or resolved.evaluation.max_documents
    for folder in write_tasks(manifests, output, limit):
        typer.echo(folder)


def _prepare_pairs(recipe: "Recipe", model: str, workers: int, sample: int | None) -> None:
    """Open every source, which fetches, verifies and caches it, and tell what training reads."""
    import warnings

    from rich.console import Console

    from embedkit.data.pairs.open_all import open_all
    from embedkit.finetuning.mixture import open_mixture, resolve_steps
    from embedkit.models.hub import load_tokenizer
    from embedkit_cli import data_tables

    # Before the data, which may be gigabytes to fetch.
    tokenizer = load_tokenizer(model)
    names = [mix.manifest for mix in recipe.data.mix]
    for number, (name, rows) in enumerate(open_all(names, workers), start=1):
        typer.echo(f"{number}/{len(names)}\t{name}\t{rows} rows", err=True)
    with warnings.catch_warnings():
        # Each was heard a moment ago.
        warnings.simplefilter("ignore", UserWarning)
        mixture = open_mixture(recipe)
    resolved = resolve_steps(recipe, mixture)

    lengths = _measured(mixture, tokenizer, sample)
    console = Console()
    console.print(data_tables.of_shares(mixture, resolved))
    title = f"tokens by {model}, {f'{sample:,} rows at most' if sample else 'every text'}"
    console.print(data_tables.of_lengths(mixture, resolved, lengths, title))


def _measured(
    mixture: "Mixture", tokenizer: "PreTrainedTokenizerBase", sample: int | None
) -> "dict[str, Lengths]":
    """The lengths of every source's texts, or of a sample of rows, by its name."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from embedkit.data.pairs.lengths import all_lengths, sampled_lengths

    if sample is not None:
        return {each.name: sampled_lengths(each, tokenizer, sample) for each in mixture.records}
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("tokenizing {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    found = {}
    with bar as progress:
        for number, records in enumerate(mixture.records, start=1):
            task = progress.add_task(records.name, total=len(records))
            told = partial(_moved, progress, task)
            found[records.name] = all_lengths(records, tokenizer, told)
            progress.remove_task(task)
            typer.echo(f"{number}/{len(mixture.records)}\t{records.name}\ttokenized", err=True)
    return found


def _moved(progress: "Progress", task: "TaskID", rows: int) -> None:
    progress.update(task, completed=rows)


def _check(name: str, tokenizer: str | None) -> bool:
    """Print the line of one source; whether it is sound."""
    import warnings

    from embedkit.data.manifests.manifest import Manifest
    from embedkit.data.manifests.text_manifest import load_any_manifest

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            manifest = load_any_manifest(name)
            if isinstance(manifest, Manifest):
                found = _check_pairs(manifest)
            else:
                found = _check_text(manifest, tokenizer)
        except UserError as error:
            typer.echo(f"{name}\tfailed\t{' '.join(str(error).split())}")
            return False
    notes = dict.fromkeys(f"\twarning: {warning.message}" for warning in caught)
    typer.echo(f"{name}\tok\t{found}{''.join(notes)}")
    return True


def _check_pairs(manifest: "Manifest") -> str:
    from embedkit.data.pairs.records import open_manifest

    found = f"{len(open_manifest(manifest))} rows"
    if manifest.held_out:
        found += f", {len(open_manifest(manifest, 'held_out'))} held out"
    return found


def _check_text(manifest: "TextManifest", model: str | None) -> str:
    """Read the text; with a tokenizer, its token ids, which are made where they are not there."""
    from embedkit.data.text.texts import Texts
    from embedkit.data.text.tokenized import prepare
    from embedkit.models.hub import load_tokenizer

    texts = Texts.from_manifest(manifest)
    if model is None and manifest.source.kind == "hub":
        next(texts.documents(), None)
        return "opened; the rest is read by data prepare"
    if model is None:
        documents, held_out = texts.count()
        return _counted(documents - held_out, held_out if manifest.held_out else None)
    tokenized = prepare(texts, load_tokenizer(model))
    stores = [each for each in (tokenized.train, tokenized.held_out) if each is not None]
    for store in stores:
        store.verify()
    found = _counted(*map(len, stores))
    return f"{found}, {sum(each.num_tokens for each in stores)} tokens"


def _counted(documents: int, held_out: int | None = None) -> str:
    found = f"{documents} documents"
    return found if held_out is None else f"{found}, {held_out} held out"
