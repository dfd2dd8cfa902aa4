import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.tiny_bert import real_tokenizer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from embedkit.data.text import token_store
from embedkit.data.text.packing import Packing, Rows, pack
from embedkit.data.text.token_store import StoreWriter, TokenStore
from embedkit.errors import UserError
from embedkit.tokens.vocabulary import Vocabulary

CLS, SEP, MASK = 1, 2, 3
LENGTHS = [5, 1, 13, 2, 30, 6, 7, 3, 8, 20, 4, 1, 1, 12]

Make = Callable[[list[int]], TokenStore]


def ids(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


VOCABULARY = Vocabulary(
    size=1000,
    mask=MASK,
    special=ids([0, CLS, SEP, MASK]),
    ordinary=np.arange(4, 1000),
    prefix=ids([CLS]),
    suffix=ids([SEP]),
)


@pytest.fixture
def store_of(tmp_path: Path) -> Make:
    def make(lengths: list[int]) -> TokenStore:
        """Documents of these lengths; no id is in two places."""
        writer = StoreWriter(tmp_path, ("train",), np.dtype(np.uint32))
        start = 10
        for length in lengths:
            writer.add("train", range(start, start + length))
            start += length
        writer.finish()
        return TokenStore(tmp_path, "train")

    return make


def lists(rows: Rows) -> list[list[list[int]]]:
    return [[sequence.tolist() for sequence in rows[row]] for row in range(len(rows))]


def text_of(rows: Rows) -> list[int]:
    """All ids but special ones, sorted: where nothing is lost or doubled, those of the store."""
    flat = [token for row in lists(rows) for sequence in row for token in sequence]
    return sorted(token for token in flat if token >= 10)


def test_without_packing_a_row_is_the_beginning_of_a_document(store_of: Make) -> None:
    rows = pack(store_of([3, 1, 20]), VOCABULARY, "none", max_tokens=8)
    assert lists(rows) == [
        [[CLS, 10, 11, 12, SEP]],
        [[CLS, 13, SEP]],
        [[CLS, 14, 15, 16, 17, 18, 19, SEP]],
    ]
    assert (rows.documents, rows.tokens) == (3, 5 + 3 + 8)


@pytest.mark.parametrize("max_tokens", [8, 10, 16, 64])
def test_exact_packing_has_every_token_once_and_fills_no_row_beyond_its_limit(
    store_of: Make, max_tokens: int
) -> None:
    store = store_of(LENGTHS)
    rows = pack(store, VOCABULARY, "exact", max_tokens=max_tokens)
    assert text_of(rows) == store.ids.tolist()
    sizes = [sum(map(len, row)) for row in lists(rows)]
    assert max(sizes) <= max_tokens
    assert sum(sizes) == rows.tokens
    for row in lists(rows):
        for sequence in row:
            assert (sequence[0], sequence[-1]) == (CLS, SEP)
            # Neighbours in a sequence are neighbours in a document.
            assert sequence[1:-1] == list(range(sequence[1], sequence[1] + len(sequence) - 2))


def test_a_document_that_fits_is_not_cut(store_of: Make) -> None:
    store = store_of(LENGTHS)
    rows = pack(store, VOCABULARY, "exact", max_tokens=16)
    found = {tuple(sequence[1:-1]) for row in lists(rows) for sequence in row}
    bounds = zip(store.offsets[:-1], store.offsets[1:], strict=True)
    documents = [tuple(store.ids[start:end].tolist()) for start, end in bounds]
    assert {each for each in documents if len(each) <= 14} <= found
    # 30 tokens are two whole pieces and two tokens, 20 one and six.
    assert sorted(len(each) for each in found - set(documents)) == [2, 6, 14, 14, 14]


def test_rows_are_filled_as_well_as_sizes_allow(store_of: Make) -> None:
    # 10 with 6, 9 with 7, 8 with 8: no row of 16 has room left.
    lengths = [8, 4, 7, 5, 6, 6] * 50
    rows = pack(store_of(lengths), VOCABULARY, "exact", max_tokens=16)
    assert len(rows) == 150
    assert rows.tokens == 150 * 16


def test_rows_of_natural_lengths_are_nearly_full(store_of: Make) -> None:
    lengths = np.random.default_rng(0).lognormal(4, 1, size=3000).astype(int) + 1
    rows = pack(store_of(lengths.tolist()), VOCABULARY, "exact", max_tokens=512)
    assert rows.tokens > 0.99 * len(rows) * 512


@pytest.mark.parametrize(
    "frame", [([CLS], [SEP]), ([], []), ([CLS, CLS, CLS], [SEP, SEP])], ids=str
)
@pytest.mark.parametrize("max_tokens", [8, 9, 16, 64, 1000])
def test_crossing_rows_are_the_chain_of_all_documents_cut_into_equal_parts(
    store_of: Make, max_tokens: int, frame: tuple[list[int], list[int]]
) -> None:
    prefix, suffix = frame
    store = store_of(LENGTHS)
    vocabulary = replace(VOCABULARY, prefix=ids(prefix), suffix=ids(suffix))
    rows = pack(store, vocabulary, "crossing", max_tokens=max_tokens)
    chain: list[int] = []
    for start, end in zip(store.offsets[:-1], store.offsets[1:], strict=True):
        chain += [*prefix, *store.ids[start:end].tolist(), *suffix]
    expected = [[chain[at : at + max_tokens]] for at in range(0, len(chain), max_tokens)]
    assert lists(rows) == expected
    assert rows.tokens == len(chain)


@pytest.mark.parametrize("packing", ["none", "exact", "crossing"])
def test_short_documents_are_left_out_of_a_view(
    store_of: Make, packing: Packing, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if there were more documents than are looked at at a time.
    monkeypatch.setattr(token_store, "_SCANNED", 4)
    store = store_of(LENGTHS)
    rows = pack(store, VOCABULARY, packing, max_tokens=64, min_tokens=10)
    bounds = zip(store.offsets[:-1], store.offsets[1:], strict=True)
    # Two special tokens count.
    long = [store.ids[start:end].tolist() for start, end in bounds if end - start >= 8]
    assert rows.documents == len(long) == 5
    assert text_of(rows) == [token for document in long for token in document]


@pytest.mark.parametrize("packing", ["none", "exact", "crossing"])
def test_no_document_makes_no_row(store_of: Make, packing: Packing) -> None:
    assert len(pack(store_of([]), VOCABULARY, packing, max_tokens=64)) == 0
    rows = pack(store_of([3, 4]), VOCABULARY, packing, max_tokens=64, min_tokens=50)
    assert (len(rows), rows.documents, rows.tokens) == (0, 0, 0)


@pytest.mark.parametrize("packing", ["none", "exact", "crossing"])
def test_rows_pickle_without_their_tokens(store_of: Make, packing: Packing) -> None:
    rows = pack(store_of([1000] * 20), VOCABULARY, packing, max_tokens=64)
    pickled = pickle.dumps(rows)
    assert len(pickled) < 10_000
    assert lists(pickle.loads(pickled)) == lists(rows)


def test_the_frame_is_what_the_tokenizer_puts_around_a_text() -> None:
    tokenizer = real_tokenizer()
    vocabulary = Vocabulary.of(tokenizer)
    assert vocabulary.prefix.tolist() == [tokenizer.cls_token_id]
    assert vocabulary.suffix.tolist() == [tokenizer.sep_token_id]
    assert (vocabulary.size, vocabulary.mask) == (30522, tokenizer.mask_token_id)
    assert sorted(vocabulary.special) == sorted(set(tokenizer.all_special_ids))
    both = np.concatenate([vocabulary.special, vocabulary.ordinary])
    assert sorted(both) == list(range(30522))


def test_a_tokenizer_without_special_tokens_around_puts_nothing() -> None:
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "[MASK]": 1, "a": 2}, unk_token="[UNK]"))
    bare = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", mask_token="[MASK]")
    vocabulary = Vocabulary.of(bare)
    assert vocabulary.framing == 0
    assert vocabulary.ordinary.tolist() == [2]


def test_a_tokenizer_without_a_mask_token_is_refused() -> None:
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    bare = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    with pytest.raises(UserError, match=r"the tokenizer has no mask token, .*add_special_tokens"):
        Vocabulary.of(bare)
