"""Describes sources and their rows, and verifies that they are what their manifests say."""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from rich.table import Table
from transformers import PreTrainedTokenizerBase

from embedkit.config import names_in
from embedkit.data.concepts import splits
from embedkit.data.manifests.manifest import FOLDER, Manifest, TextManifest, load_any_manifest
from embedkit.data.pairs.lengths import QUANTILES, quantiles, sampled_lengths
from embedkit.data.pairs.records import Records, open_records
from embedkit.data.tables import plain_table
from embedkit.data.text.texts import Texts
from embedkit.data.text.tokenized import prepare
from embedkit.errors import UserError
from embedkit.recipe import load_any_recipe
from embedkit.tokens.tokenizer import Tokenize

_ROWS = 5
_MEASURED = 2000
"""Rows, or documents of a stream, whose lengths are shown of one source."""
_SHOWN = 300
"""Characters of a text that are shown."""
_QUANTILE_HEADS = ["longest" if share == 1 else f"{share:.0%}" for share in QUANTILES]


class ShippedSource(NamedTuple):
    """A source that comes with embedkit."""

    name: str
    kind: str
    """``pairs`` or ``text``."""
    rows: str
    """Number of rows that the manifest states, if it does."""
    license: str


class SourceCheck(NamedTuple):
    """The outcome of opening one source."""

    name: str
    sound: bool
    remark: str
    """Number of rows or documents of a sound source; otherwise what is wrong with it."""
    warnings: tuple[str, ...] = ()


def shipped_sources() -> Iterator[ShippedSource]:
    """Yield every source that comes with embedkit, in the order of their names."""
    for manifest in map(load_any_manifest, names_in(FOLDER)):
        kind = "pairs" if isinstance(manifest, Manifest) else "text"
        rows = f"{manifest.rows:,} rows" if manifest.rows else "rows not stated"
        if isinstance(manifest, Manifest) and manifest.rows_read:
            rows = f"made of {manifest.rows_read:,} rows"
        if isinstance(manifest, Manifest) and manifest.max_rows:
            rows = f"{manifest.max_rows:,} drawn of {rows}"
        yield ShippedSource(manifest.name, kind, rows, manifest.license)


def chosen(names: Sequence[str], recipe: str | None) -> Sequence[str]:
    """Return ``names``, or those of the recipe's sources, or of all that come with embedkit."""
    if recipe and names:
        raise UserError("data check takes NAME... or --recipe, not both")
    if recipe:
        return [mix.manifest for mix in load_any_recipe(recipe).data.mix]
    return names or names_in(FOLDER)


def check(
    names: Sequence[str], tokenizer: PreTrainedTokenizerBase | None = None
) -> Iterator[SourceCheck]:
    """Open and verify the sources of manifests; with a tokenizer, the token ids of text too."""
    for name in names:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                remark = _verified(load_any_manifest(name), tokenizer)
                heard = tuple(dict.fromkeys(str(warning.message) for warning in caught))
                outcome = SourceCheck(name, True, remark, heard)
            except UserError as error:
                outcome = SourceCheck(name, False, " ".join(str(error).split()))
        yield outcome


def _verified(manifest: Manifest | TextManifest, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Read a source, and the token ids of text if they are asked for; say how much is there."""
    if isinstance(manifest, Manifest):
        tables = [open_records(manifest, split) for split in splits(manifest.held_out)]
        return _counted(f"rows{_drawn(tables[0])}", *map(len, tables))
    texts = Texts.from_manifest(manifest)
    if tokenizer is not None:
        # Token ids that are not there yet are written.
        tokenized = prepare(texts, tokenizer)
        stores = [store for store in (tokenized.train, tokenized.held_out) if store is not None]
        for store in stores:
            store.verify()
        tokens = sum(store.num_tokens for store in stores)
        return f"{_counted('documents', *map(len, stores))}, {tokens} tokens"
    if manifest.source.kind == "hub":
        next(texts.documents(), None)
        return "opened; the rest is read by data prepare"
    documents, held_out = texts.count()
    kept = documents - held_out
    return _counted("documents", *((kept, held_out) if manifest.held_out else (kept,)))


def _counted(unit: str, count: int, *held_out: int) -> str:
    return ", ".join([f"{count} {unit}", *(f"{other} held out" for other in held_out)])


def _drawn(records: Records) -> str:
    """Return what the rows of a sample were drawn of, and nothing if all rows are read."""
    stored = records.table.stored_rows
    return f" drawn of {stored}" if stored > len(records) else ""


def describe(name: str, tokenizer: PreTrainedTokenizerBase, model: str) -> Iterator[Table]:
    """Return tables of what a source is, of its first rows and of how long its texts are.

    ``name`` is that of a manifest, or its path; ``model`` is what the tables call the tokenizer.

    Raises:
        UserError: there is no such manifest, or its source cannot be read.
    """
    manifest = load_any_manifest(name)
    if isinstance(manifest, Manifest):
        return _pairs(manifest, tokenizer, model)
    return _texts(manifest, tokenizer, model)


def _pairs(manifest: Manifest, tokenizer: PreTrainedTokenizerBase, model: str) -> Iterator[Table]:
    records = open_records(manifest)
    layout = records.layout
    columns = {**layout.columns, "ignored": manifest.ignore, "unused": layout.unused}
    if manifest.same_label:
        columns["positive"] = ["another text of the label"]
    rows = f"{len(records)}{_drawn(records)}"
    if manifest.held_out:
        rows += f" for training, {len(open_records(manifest, 'held_out'))} held out"
    prompts = "\n".join(f"{side}: {prompt!r}" for side, prompt in manifest.prompts)
    after = {"prompts": prompts, "negatives per query": str(records.negatives_per_query)}
    yield _facts(manifest, columns, {"task": manifest.task, "rows": rows}, after)
    sample = records.take(range(min(_ROWS, len(records))))
    examples = [(row.query, row.positive, "\n".join(row.negatives[:3])) for row in sample]
    yield _examples(["row", "query", "positive", "negatives (3 at most)"], examples)
    lengths = sampled_lengths(records, tokenizer, _MEASURED)
    counts = lengths.counts.items()
    measured = [(role, *map(str, quantiles(texts).values())) for role, texts in counts]
    title = f"token lengths by {model}, {lengths.rows} rows"
    yield plain_table(["tokens", *_QUANTILE_HEADS], measured, title=title)


def _texts(
    manifest: TextManifest, tokenizer: PreTrainedTokenizerBase, model: str
) -> Iterator[Table]:
    documents = islice(Texts.from_manifest(manifest).documents(), _MEASURED)
    texts = [document.text for document in documents]
    held_out, concept = manifest.held_out, manifest.columns.concept
    kind = "concepts" if concept else "documents"
    share = f"{100 * held_out.share:g} % of the {kind}" if held_out else "nothing"
    columns = {"text": manifest.columns.text, "concept": [concept] if concept else []}
    yield _facts(manifest, columns, {}, {"held out": share})
    yield _examples(["document", "text"], [(text,) for text in texts[:_ROWS]])
    if texts:
        lengths = quantiles(Counter(Tokenize(tokenizer).lengths(texts, "")))
        title = f"token lengths by {model}, the first {len(texts)} documents"
        yield plain_table(_QUANTILE_HEADS, [[*map(str, lengths.values())]], title=title)


def _facts(
    manifest: Manifest | TextManifest,
    columns: Mapping[str, Sequence[str]],
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> Table:
    """Show what a manifest says; ``before`` and ``after`` stand around columns and filter."""
    source = manifest.source.model_dump(exclude_none=True)
    source |= {f"reader {key}": value for key, value in source.pop("reader", {}).items()}
    named = {role: ", ".join(paths) for role, paths in columns.items() if paths}
    facts = {
        "source": "\n".join(f"{key}: {value}" for key, value in source.items() if value != ()),
        "licence": manifest.license or "not stated",
        **before,
        "columns": "\n".join(f"{role}: {paths}" for role, paths in named.items()),
        "filter": manifest.filter or "none",
        **after,
    }
    return plain_table([], [*facts.items()], title=manifest.name)


def _examples(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    shortened = [
        [text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..." for text in row] for row in rows
    ]
    return plain_table(heads, [[str(n), *row] for n, row in enumerate(shortened)])
