import json
import multiprocessing
import os
import pickle
import signal
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from support.tiny_bert import real_tokenizer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from embedkit.data.text import token_store, tokenized
from embedkit.data.text.texts import Texts
from embedkit.data.text.token_store import StoreWriter, TokenStore
from embedkit.data.text.tokenized import Tokenized, prepare
from embedkit.errors import DataError
from embedkit.storage import cache

FORK = multiprocessing.get_context("fork")
ROWS = [f"document number {number}: {'word ' * (number % 7)}" for number in range(60)]


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_store, "_BLOCK", 64)
    monkeypatch.setattr(token_store, "_SCANNED", 7)
    monkeypatch.setattr(tokenized, "_CHARACTERS", 100)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return real_tokenizer()


def lines_of(folder: Path, count: int, **options: float) -> Texts:
    path = folder / "lines.txt"
    path.write_text("".join(f"{number} {'word ' * (number % 9)}\n" for number in range(count)))
    return Texts.from_file(path, held_out={"share": 0.2}, **options)  # type: ignore[arg-type]


def documents_of(store: TokenStore) -> list[list[int]]:
    bounds = zip(store.offsets[:-1], store.offsets[1:], strict=True)
    return [store.ids[start:end].tolist() for start, end in bounds]


def tokens_folder() -> Path:
    (folder,) = [path for path in (cache.root() / "tokens").iterdir() if path.is_dir()]
    return folder


def assert_same(one: Tokenized, other: Tokenized) -> None:
    assert one.held_out is not None
    assert other.held_out is not None
    for ours, theirs in ((one.train, other.train), (one.held_out, other.held_out)):
        assert np.array_equal(ours.ids, theirs.ids)
        assert np.array_equal(ours.offsets, theirs.offsets)


@pytest.mark.usefixtures("_small_blocks")
def test_the_ids_are_the_tokenizers_without_special_ones_and_uncut(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    rows = [*ROWS, "long " * 700]
    store = prepare(Texts.from_rows(rows), tokenizer).train
    expected = tokenizer(rows, add_special_tokens=False, truncation=False)["input_ids"]
    assert documents_of(store) == expected
    assert len(store) == len(rows)
    assert store.num_tokens == sum(map(len, expected))
    assert np.concatenate(list(store.lengths())).tolist() == list(map(len, expected))
    store.verify()


def test_two_bytes_hold_an_id_where_the_vocabulary_allows(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    small = prepare(Texts.from_rows(["a"]), tokenizer).train
    assert small.ids.dtype == np.uint16
    assert isinstance(small.ids, np.memmap)
    assert isinstance(small.offsets, np.memmap)
    vocabulary = {f"{number}": number for number in range(2**16 + 1)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="0"))
    large = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="0")
    store = prepare(Texts.from_rows(["65536"]), large).train
    assert store.ids.dtype == np.uint32
    assert documents_of(store) == [[65536]]


@pytest.mark.usefixtures("_small_blocks")
def test_held_out_documents_are_in_their_own_store(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = Texts.from_rows(ROWS, held_out={"share": 0.3})
    found = prepare(texts, tokenizer)
    sides: dict[bool, list[list[int]]] = {False: [], True: []}
    for document in texts.documents():
        ids = tokenizer(document.text, add_special_tokens=False)["input_ids"]
        sides[document.held_out].append(ids)
    assert found.held_out is not None
    assert documents_of(found.train) == sides[False]
    assert documents_of(found.held_out) == sides[True]
    assert len(sides[True]) > 5
    assert prepare(Texts.from_rows(ROWS), tokenizer).held_out is None


def test_a_text_without_tokens_is_no_document(tokenizer: PreTrainedTokenizerBase) -> None:
    store = prepare(Texts.from_rows(["a", "\u200b\x01", "b"]), tokenizer).train
    assert len(store) == 2
    empty = prepare(Texts.from_rows(["\u200b\x01"]), tokenizer).train
    assert (len(empty), empty.num_tokens, list(empty.lengths())) == (0, 0, [])


def test_the_second_time_nothing_is_tokenized(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    texts = lines_of(tmp_path, 50)
    first = prepare(texts, tokenizer)
    written = (tokens_folder() / "train.ids").stat().st_mtime_ns
    assert_same(first, prepare(texts.renamed("other"), tokenizer))
    assert (tokens_folder() / "train.ids").stat().st_mtime_ns == written


def test_other_text_another_share_and_another_tokenizer_have_other_places(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    other = real_tokenizer()
    other.add_tokens(["zymurgy"])
    made = [
        prepare(Texts.from_rows(["a", "b"]), tokenizer),
        prepare(Texts.from_rows(["a", "c"]), tokenizer),
        prepare(Texts.from_rows(["a", "b"], held_out={"share": 0.5}), tokenizer),
        prepare(Texts.from_rows(["a", "b"]), other),
    ]
    assert len({each.train.folder for each in made}) == 4
    assert len({each.fingerprint for each in made}) == 4


def test_a_store_pickles_as_its_place(tokenizer: PreTrainedTokenizerBase) -> None:
    store = prepare(Texts.from_rows(ROWS), tokenizer).train
    pickled = pickle.dumps(store)
    assert len(pickled) < 1000
    assert documents_of(pickle.loads(pickled)) == documents_of(store)


def tokenize(texts: Texts) -> None:
    prepare(texts, real_tokenizer())


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.slow
def test_a_killed_run_goes_on_after_the_last_whole_block(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = lines_of(tmp_path, 20_000)
    writer = FORK.Process(target=tokenize, args=(texts,))
    writer.start()
    assert writer.pid is not None
    journals = cache.root() / "tokens"
    patience = time.monotonic() + 60
    while not any(file.read_bytes().count(b"\n") > 5 for file in journals.glob("*/blocks.jsonl")):
        assert writer.is_alive()
        assert time.monotonic() < patience
        time.sleep(0.001)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    folder = tokens_folder()
    assert folder.name.endswith(".aside")
    before = (folder / "blocks.jsonl").read_bytes()
    before = before[: before.rfind(b"\n") + 1]
    # As if the kill had come in the middle of a block, and of its line.
    for name in ("train.ids", "train.offsets", "held_out.ids", "blocks.jsonl"):
        with (folder / name).open("ab") as file:
            file.write(b'{"read": 7')
    monkeypatch.undo()
    resumed = prepare(texts, tokenizer)
    after = (tokens_folder() / "blocks.jsonl").read_bytes()
    assert after.startswith(before)
    # The rest went into few blocks: what was whole was not made again.
    assert after[len(before) :].count(b"\n") < 3
    resumed.train.verify()
    monkeypatch.setenv("EMBEDKIT_CACHE", str(tmp_path / "other"))
    assert_same(resumed, prepare(texts, tokenizer))


@pytest.mark.usefixtures("_small_blocks")
def test_two_processes_at_once_make_one_store(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    texts = lines_of(tmp_path, 500)
    writers = [FORK.Process(target=tokenize, args=(texts,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    read = [json.loads(line)["read"] for line in (tokens_folder() / "blocks.jsonl").open()]
    assert sum(read) == 500
    prepare(texts, tokenizer).train.verify()


def test_a_bad_row_leaves_nothing_behind(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n{"text": 3}\n')
    with pytest.raises(DataError, match=r"rows: rows\.jsonl, line 2: text holds 3, not text"):
        prepare(Texts.from_file(path), tokenizer)
    assert not [each for each in (cache.root() / "tokens").iterdir() if each.is_dir()]


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("name", ["train.ids", "train.offsets"])
def test_a_changed_byte_is_found(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    store = prepare(Texts.from_rows(ROWS), tokenizer).train
    path = store.folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"block \d of train is not as it was written: remove"):
        TokenStore(store.folder, "train").verify()


def test_a_file_of_another_size_is_not_opened(tokenizer: PreTrainedTokenizerBase) -> None:
    store = prepare(Texts.from_rows(ROWS), tokenizer).train
    with (store.folder / "train.ids").open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match=r"train\.ids: \d+ bytes, expected \d+: remove its folder"):
        TokenStore(store.folder, "train")
    # What ``prepare`` finds broken it makes anew.
    assert documents_of(prepare(Texts.from_rows(ROWS), tokenizer).train) == documents_of(store)


def test_the_writer_appends_where_it_stopped(tmp_path: Path) -> None:
    documents = [[1, 2, 3], [4], [5, 6], [], [7]]
    for part in (documents[:2], documents[2:]):
        writer = StoreWriter(tmp_path, ("train", "held_out"), np.dtype(np.uint16))
        assert writer.read == (0 if part == documents[:2] else 2)
        for ids in part:
            writer.add("train", ids)
        writer.finish()
    store = TokenStore(tmp_path, "train")
    assert documents_of(store) == [ids for ids in documents if ids]
    assert store.ids.tolist() == list(chain.from_iterable(documents))
    assert len(TokenStore(tmp_path, "held_out")) == 0
