"""What a source is, what its rows look like, and what comes with embedkit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from rich.table import Table
from transformers import PreTrainedTokenizerBase

from embedkit.data.manifests.manifest import (
    Manifest,
    TextManifest,
    load_any_manifest,
    shipped_tables,
)
from embedkit.data.pairs.lengths import QUANTILES, Lengths, sampled_lengths
from embedkit.data.pairs.records import Record, Records, open_manifest
from embedkit.data.tables import plain_table
from embedkit.data.text.documents import Document
from embedkit.data.text.texts import Texts
from embedkit.tokens.tokenizer import Tokenize

_ROWS = 5
_MEASURED = 2000
"""Rows, or documents of a stream, whose lengths are shown of one source."""
_SHOWN = 300
"""Characters of a text that are shown."""


@dataclass(frozen=True, slots=True)
class ShippedSource:
    """A source that comes with embedkit."""

    name: str
    kind: Literal["pairs", "text"]
    rows: str
    """What the manifest says of the number of rows."""
    license: str


def shipped_sources() -> Iterator[ShippedSource]:
    """Tell what every source is that comes with embedkit, in the order of their names."""
    for name, _ in shipped_tables():
        manifest = load_any_manifest(name)
        rows = f"{manifest.rows:,} rows" if manifest.rows else "rows not stated"
        if isinstance(manifest, Manifest) and manifest.rows_read:
            rows = f"made of {manifest.rows_read:,} rows"
        kind: Literal["pairs", "text"] = "pairs" if isinstance(manifest, Manifest) else "text"
        yield ShippedSource(name, kind, rows, manifest.license)


def describe(name: str, tokenizer: PreTrainedTokenizerBase, tokenizer_name: str) -> Iterator[Table]:
    """Return tables of what a source is, of its first rows and of how long its texts are.

    Args:
        name: the manifest's name under ``data_manifests/``, or its path.
        tokenizer: counts the tokens.
        tokenizer_name: what the tables call it.

    Raises:
        UserError: there is no such manifest, or its source cannot be read.
    """
    manifest = load_any_manifest(name)
    if isinstance(manifest, Manifest):
        return _of_pairs(manifest, tokenizer, tokenizer_name)
    return _of_text(manifest, tokenizer, tokenizer_name)


def _of_pairs(
    manifest: Manifest, tokenizer: PreTrainedTokenizerBase, model: str
) -> Iterator[Table]:
    records = open_manifest(manifest)
    yield _pair_facts(manifest, records)
    yield _rows(records.take(range(min(_ROWS, len(records)))))
    lengths = sampled_lengths(records, tokenizer, _MEASURED)
    rows = [(role, *map(str, values)) for role, values in lengths.quantiles.items()]
    title = f"token lengths by {model}, {lengths.rows} rows"
    yield plain_table(["tokens", *_quantile_heads()], rows, title=title)


def _of_text(
    manifest: TextManifest, tokenizer: PreTrainedTokenizerBase, model: str
) -> Iterator[Table]:
    documents = list(islice(Texts.from_manifest(manifest).documents(), _MEASURED))
    yield _text_facts(manifest)
    yield _documents(documents[:_ROWS])
    if documents:
        lengths = Lengths()
        lengths.add("text", Tokenize(tokenizer).lengths([each.text for each in documents], ""))
        title = f"token lengths by {model}, the first {len(documents)} documents"
        row = [str(each) for each in lengths.quantiles["text"]]
        yield plain_table(_quantile_heads(), [row], title=title)


def _pair_facts(manifest: Manifest, records: Records) -> Table:
    columns: dict[str, str | Sequence[str]] = {**records.layout.columns}
    if manifest.same_label:
        columns["positive"] = "another text of the label"
    columns |= {"ignored": manifest.ignore} if manifest.ignore else {}
    columns |= {"unused": records.layout.unused} if records.layout.unused else {}
    prompts = records.prompts.model_dump()
    rows = f"{len(records)}"
    if manifest.held_out:
        rows += f" for training, {len(open_manifest(manifest, 'held_out'))} held out"
    facts = [
        ("source", _source(manifest)),
        ("licence", records.license or "not stated"),
        ("task", records.description.task),
        ("rows", rows),
        ("columns", _lines(columns)),
        ("filter", manifest.filter or "none"),
        ("prompts", "\n".join(f"{side}: {prompt!r}" for side, prompt in prompts.items())),
        ("negatives per query", str(records.negatives_per_query)),
    ]
    return plain_table([], facts, title=manifest.name)


def _text_facts(manifest: TextManifest) -> Table:
    held_out = manifest.held_out
    kind = "concepts" if manifest.columns.concept else "documents"
    facts = [
        ("source", _source(manifest)),
        ("licence", manifest.license or "not stated"),
        ("columns", _lines(manifest.columns.model_dump(exclude_none=True))),
        ("filter", manifest.filter or "none"),
        ("held out", f"{100 * held_out.share:g} % of the {kind}" if held_out else "nothing"),
    ]
    return plain_table([], facts, title=manifest.name)


def _source(manifest: Manifest | TextManifest) -> str:
    source = manifest.source.model_dump(exclude_none=True)
    source |= {f"reader {key}": value for key, value in source.pop("reader", {}).items()}
    return "\n".join(f"{key}: {value}" for key, value in source.items() if value != ())


def _rows(records: Sequence[Record]) -> Table:
    rows = [
        (str(number), record.query, record.positive, "\n".join(record.negatives[:3]))
        for number, record in enumerate(records)
    ]
    shortened = [[_shortened(cell) for cell in row] for row in rows]
    return plain_table(["row", "query", "positive", "negatives (3 at most)"], shortened)


def _documents(documents: Sequence[Document]) -> Table:
    rows = [(str(number), _shortened(each.text)) for number, each in enumerate(documents)]
    return plain_table(["document", "text"], rows)


def _quantile_heads() -> list[str]:
    return ["longest" if each == 1 else f"{each:.0%}" for each in QUANTILES]


def _lines(columns: dict[str, str | Sequence[str]]) -> str:
    return "\n".join(f"{key}: {_listed(value)}" for key, value in columns.items())


def _listed(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
