"""Tokenizes sources of text, before a run that reads their token ids."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from embedkit.data.pairs.lengths import stored_lengths
from embedkit.data.tables import SHOWN_QUANTILES, plain_table
from embedkit.data.text.texts import Texts
from embedkit.data.text.tokenized import prepare
from embedkit.models.hub import load_tokenizer
from embedkit.tokens.vocabulary import Vocabulary


def prepare_texts(texts: Sequence[Texts], tokenizer: str) -> Iterator[Table]:
    """Store the token ids of ``texts`` in the cache, and yield a table of their numbers.

    What is tokenized already is only opened. ``tokenizer`` is the name of a model.

    Raises:
        UserError: there is no such tokenizer, or a source cannot be read.
    """
    loaded = load_tokenizer(tokenizer)
    # A document's length counts the special tokens around it.
    framing = Vocabulary.of(loaded).framing
    rows = []
    for text in texts:
        source = prepare(text, loaded)
        lengths = stored_lengths(source.train, framing)
        held_out = f"{len(source.held_out):,}" if source.held_out else "none"
        sizes = [f"{len(source.train):,}", f"{source.train.num_tokens:,}", held_out]
        rows.append([source.name, *sizes, *(f"{lengths[share]:,}" for share in SHOWN_QUANTILES)])
    heads = ["source", "documents", "tokens", "held out", "median", "95 %", "longest"]
    yield plain_table(heads, rows, title=f"token ids by {tokenizer}, and lengths of documents")
