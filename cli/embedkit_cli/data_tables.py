"""The tables that ``embedkit data`` prints."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from embedkit.data.manifests.manifest import Manifest
from embedkit.data.manifests.text_manifest import TextManifest
from embedkit.data.pairs.lengths import QUANTILES, Lengths, sampled_lengths, stored_lengths
from embedkit.data.pairs.records import Record, Records, open_manifest
from embedkit.data.text.documents import Document
from embedkit.data.text.texts import Texts
from embedkit.data.text.tokenized import Tokenized
from embedkit.finetuning.mixture import Mixture
from embedkit.recipe import Recipe
from embedkit.tokens.tokenizer import Tokenize

_STORED = (0.5, 0.95, 1.0)
"""Of ``QUANTILES``, those that fit beside the sizes in 80 columns."""
_ROWS = 5
_MEASURED = 2000
"""Rows, or documents of a stream, whose lengths are shown of one source."""
_SHOWN = 300
"""Characters of a text."""


def of_pairs(manifest: Manifest, tokenizer: PreTrainedTokenizerBase, model: str) -> Iterable[Table]:
    """What a source of pairs is, its first rows and how long its texts are."""
    records = open_manifest(manifest)
    yield _pair_facts(manifest, records)
    yield _rows(records.take(range(min(_ROWS, len(records)))))
    lengths = sampled_lengths(records, tokenizer, _MEASURED)
    rows = [(role, *map(str, values)) for role, values in lengths.quantiles.items()]
    title = f"token lengths by {model}, {lengths.rows} rows"
    yield _table(["tokens", *_quantile_heads()], rows, title=title)


def of_text(
    manifest: TextManifest, tokenizer: PreTrainedTokenizerBase, model: str
) -> Iterable[Table]:
    """What a source of text is, its first documents and how long they are."""
    documents = list(islice(Texts.from_manifest(manifest).documents(), _MEASURED))
    yield _text_facts(manifest)
    yield _documents(documents[:_ROWS])
    if documents:
        lengths = Lengths()
        lengths.add("text", Tokenize(tokenizer).lengths([each.text for each in documents], ""))
        title = f"token lengths by {model}, the first {len(documents)} documents"
        row = [str(each) for each in lengths.quantiles["text"]]
        yield _table(_quantile_heads(), [row], title=title)


def of_token_ids(sources: Sequence[Tokenized], framing: int, model: str) -> Table:
    """What was tokenized, and how long it is with ``framing`` special tokens for each document."""
    rows = []
    for source in sources:
        lengths = dict(zip(QUANTILES, stored_lengths(source.train, framing), strict=True))
        held_out = f"{len(source.held_out):,}" if source.held_out else "none"
        sizes = (f"{len(source.train):,}", f"{source.train.num_tokens:,}", held_out)
        rows.append((source.name, *sizes, *(f"{lengths[each]:,}" for each in _STORED)))
    heads = ["source", "documents", "tokens", "held out", "median", "95 %", "longest"]
    return _table(heads, rows, title=f"token ids by {model}, and lengths of documents")


def of_shares(mixture: Mixture, recipe: Recipe) -> Table:
    """What a fine-tuning recipe, its steps resolved, reads of each source, and how often."""
    assert recipe.steps is not None
    rows = []
    for records, source, share in zip(
        mixture.records, mixture.sources, mixture.shares, strict=True
    ):
        batches = share * recipe.steps * recipe.optim.gradient_accumulation_steps
        passes = batches * source.batch_size / source.rows
        license = records.license or "not stated"
        rows.append((source.name, f"{source.rows:,}", f"{share:.1%}", f"{passes:.2f}", license))
    heads = ["source", "rows", "steps", "passes", "licence"]
    return _table(heads, rows, title=f"{recipe.steps:,} steps", lines=False)


def of_lengths(
    mixture: Mixture, recipe: Recipe, lengths: Mapping[str, Lengths], title: str
) -> Table:
    """How long the texts of each source are, and how many of them the recipe cuts."""
    rows = []
    for records in mixture.records:
        found = lengths[records.name]
        cut = found.truncated(
            records.max_query_tokens or recipe.data.max_query_tokens,
            records.max_document_tokens or recipe.data.max_document_tokens,
        )
        sides = [_stored_of(found, role) for role in ("query", "positive", "negatives")]
        rows.append((records.name, *sides, f"{cut:.1%}"))
    heads = ["source", "query", "positive", "negatives", "cut"]
    return _table(heads, rows, title=f"{title}: median, 95 %, longest", lines=False)


def _stored_of(lengths: Lengths, role: str) -> str:
    if role not in lengths.counts:
        return ""
    found = dict(zip(QUANTILES, lengths.quantiles[role], strict=True))
    return " ".join(str(found[each]) for each in _STORED)


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
        ("task", records.task),
        ("rows", rows),
        ("columns", _lines(columns)),
        ("filter", manifest.filter or "none"),
        ("prompts", "\n".join(f"{side}: {prompt!r}" for side, prompt in prompts.items())),
        ("negatives per query", str(records.negatives_per_query)),
    ]
    return _table([], facts, title=manifest.name)


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
    return _table([], facts, title=manifest.name)


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
    return _table(["row", "query", "positive", "negatives (3 at most)"], shortened)


def _documents(documents: Sequence[Document]) -> Table:
    rows = [(str(number), _shortened(each.text)) for number, each in enumerate(documents)]
    return _table(["document", "text"], rows)


def _quantile_heads() -> list[str]:
    return ["longest" if each == 1 else f"{each:.0%}" for each in QUANTILES]


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", *, lines: bool = True
) -> Table:
    table = Table(title=title or None, show_header=bool(heads), show_lines=lines)
    for head in heads or [""] * len(rows[0]):
        table.add_column(head, overflow="fold")
    for row in rows:
        # As Text, since brackets in a plain string would be read as markup.
        table.add_row(*map(Text, row))
    return table


def _lines(columns: dict[str, str | Sequence[str]]) -> str:
    return "\n".join(f"{key}: {_listed(value)}" for key, value in columns.items())


def _listed(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
