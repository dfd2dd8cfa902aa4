from collections import Counter

import pytest
import torch
from support.tiny_bert import real_tokenizer
from transformers import PreTrainedTokenizerBase

from embedkit import distributed
from embedkit.data.batch_sampler import BatchSampler, Source
from embedkit.data.loading import stream
from embedkit.data.pairs.contrastive_batches import Batches, BatchTexts, ContrastiveBatch
from embedkit.data.pairs.records import Records
from embedkit.recipe import Data, Mix
from embedkit.tokens.batch import TokenBatch
from embedkit.tokens.tokenizer import Tokenize

PROMPTS = {"query": "find: ", "document": "passage number: "}
# Row r has r % 5 hard negatives.
ROWS = [
    {
        "query": f"query {row}",
        "positive": f"answer {row}",
        "negatives": [f"wrong {row} {number}" for number in range(row % 5)],
    }
    for row in range(40)
]
TENSORS = ("owners", "query_hashes", "document_hashes", "labels")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return real_tokenizer()


@pytest.fixture(scope="module")
def records() -> Records:
    return Records.from_rows(ROWS, prompts=PROMPTS, negatives_per_query=2)


def batches_of(
    records: Records, *, size: int = 8, seed: int = 7, limits: tuple[int, int] = (512, 512)
) -> Batches:
    mix = (Mix(manifest=records.name),)
    data = Data(batch_size=size, mix=mix, max_query_tokens=limits[0], max_document_tokens=limits[1])
    source = Source(records.name, len(records), size)
    sampler = BatchSampler([source], [1.0], steps=10, seed=seed)
    return Batches(sampler, [records], real_tokenizer(), data, seed=seed)


def lists(tokens: TokenBatch) -> list[list[int]]:
    return [part.tolist() for part in tokens.ids.split(tokens.lengths.tolist())]


def words(tokenizer: PreTrainedTokenizerBase, tokens: TokenBatch) -> list[str]:
    return [str(tokenizer.decode(ids, skip_special_tokens=True)) for ids in lists(tokens)]


def negatives_by_query(texts: BatchTexts) -> dict[str, list[str]]:
    count = len(texts.queries)
    found: dict[str, list[str]] = {query: [] for query in texts.queries}
    for text, owner in zip(texts.documents[count:], texts.owners[count:], strict=True):
        found[texts.queries[owner]].append(text)
    return found


def assert_equal(one: ContrastiveBatch, other: ContrastiveBatch) -> None:
    assert one.source == other.source
    assert (one.size, one.in_batch_negatives) == (other.size, other.in_batch_negatives)
    for name in TENSORS:
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    for ours, theirs in ((one.queries, other.queries), (one.documents, other.documents)):
        assert lists(ours) == lists(theirs)
        assert torch.equal(ours.prompt_lengths, theirs.prompt_lengths)


def test_positives_come_first_and_hard_negatives_say_whose_they_are(records: Records) -> None:
    texts = batches_of(records).texts(0)
    for row, query in enumerate(texts.queries):
        number = query.removeprefix("find: query ")
        assert texts.documents[row] == f"passage number: answer {number}"
        assert texts.owners[row] == row
        for negative in negatives_by_query(texts)[query]:
            assert negative.startswith(f"passage number: wrong {number} ")


def test_two_negatives_are_drawn_and_fewer_are_taken_as_they_are(records: Records) -> None:
    for batch in range(5):
        for query, drawn in negatives_by_query(batches_of(records).texts(batch)).items():
            number = int(query.removeprefix("find: query "))
            available = {f"passage number: {text}" for text in ROWS[number]["negatives"]}
            assert len(set(drawn)) == len(drawn) == min(2, number % 5)
            assert set(drawn) <= available


def test_another_epoch_and_another_seed_draw_other_negatives(records: Records) -> None:
    # Ten batches of eight are two epochs.
    first, second = (
        {q: n for b in epoch for q, n in negatives_by_query(batches_of(records).texts(b)).items()}
        for epoch in (range(5), range(5, 10))
    )
    other = {
        query: drawn
        for batch in range(5)
        for query, drawn in negatives_by_query(batches_of(records, seed=8).texts(batch)).items()
    }
    assert first.keys() == second.keys() == other.keys()
    assert first != second
    assert first != other


def test_all_negatives_are_drawn_alike() -> None:
    rows = [{"query": "q", "positive": "a", "negatives": ["x", "y", "z"]}] * 200
    texts = batches_of(Records.from_rows(rows, negatives_per_query=1), size=200).texts(0)
    counts = Counter(texts.documents[200:])
    assert counts.keys() == {"x", "y", "z"}
    assert all(40 < count < 95 for count in counts.values())


def test_the_tokens_are_those_of_the_texts(
    records: Records, tokenizer: PreTrainedTokenizerBase
) -> None:
    batches = batches_of(records)
    batch, texts = batches[3], batches.texts(3)
    assert batch.owners.tolist() == texts.owners
    for tokens, expected in ((batch.queries, texts.queries), (batch.documents, texts.documents)):
        assert words(tokenizer, tokens) == [text.replace(":", " :") for text in expected]


def test_prompts_are_counted(records: Records) -> None:
    batch = batches_of(records)[0]
    assert set(batch.queries.prompt_lengths.tolist()) == {3}
    assert set(batch.documents.prompt_lengths.tolist()) == {4}


def test_each_role_is_cut_at_its_own_limit_and_neither_is_padded() -> None:
    rows = [{"query": "q " * 300, "positive": "d " * 300}, {"query": "q", "positive": "d"}]
    batch = batches_of(Records.from_rows(rows), size=2, limits=(7, 150))[0]
    assert sorted(batch.queries.lengths.tolist()) == [3, 7]
    assert sorted(batch.documents.lengths.tolist()) == [3, 150]


def test_the_limits_of_a_source_win_over_those_of_the_recipe() -> None:
    rows = [{"query": "q " * 300, "positive": "d " * 300}] * 2
    records = Records.from_rows(rows, max_query_tokens=5, max_document_tokens=200)
    batch = batches_of(records, size=2, limits=(7, 150))[0]
    assert batch.queries.lengths.tolist() == [5, 5]
    assert batch.documents.lengths.tolist() == [200, 200]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_the_slices_of_all_ranks_make_the_batch(
    records: Records,
    tokenizer: PreTrainedTokenizerBase,
    world_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = batches_of(records).texts(4)
    own = negatives_by_query(whole)
    queries: list[str] = []
    for rank in range(world_size):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(distributed, "world_size", lambda: world_size)
        batches = batches_of(records)
        batch = batches[4]
        part = distributed.share_of(8, rank, world_size)
        expected = whole.documents[part]
        expected += [text for query in whole.queries[part] for text in own[query]]
        assert lists(batch.documents) == lists(Tokenize(tokenizer)(expected, "", 512))
        assert batch.size == 8
        assert batch.owners.max() < len(batch.queries)
        assert batches.texts(4) == whole
        queries += words(tokenizer, batch.queries)
    assert queries == [query.replace(":", " :") for query in whole.queries]


def test_workers_change_nothing(records: Records) -> None:
    alone = list(stream(batches_of(records), range(2, 9), workers=0))
    for workers in (1, 2):
        shared = list(stream(batches_of(records), range(2, 9), workers=workers))
        assert len(shared) == len(alone) == 7
        for one, other in zip(alone, shared, strict=True):
            assert_equal(one, other)


@pytest.mark.parametrize("workers", [0, 1])
def test_streaming_draws_nothing_from_the_global_generator(records: Records, workers: int) -> None:
    before = torch.get_rng_state()
    next(stream(batches_of(records), range(2), workers))
    assert torch.equal(torch.get_rng_state(), before)


def test_hashes_name_texts_without_their_prompts_and_the_space_around() -> None:
    rows = [
        {"query": "same", "positive": " same "},
        {"query": "other", "positive": "same"},
        {"query": "Same", "positive": "none"},
    ]
    batch = batches_of(Records.from_rows(rows, prompts=PROMPTS), size=3)[0]
    texts = batches_of(Records.from_rows(rows, prompts=PROMPTS), size=3).texts(0)
    names = dict(zip(texts.queries, batch.query_hashes.tolist(), strict=True))
    assert len(set(names.values())) == 3
    for text, name in zip(texts.documents, batch.document_hashes.tolist(), strict=True):
        same = text.removeprefix(PROMPTS["document"]).strip() == "same"
        assert (name == names["find: same"]) == same


def test_labels_are_those_of_positives_and_zero_means_none() -> None:
    rows = [
        {"query": f"{number}", "positive": "a", "negatives": ["n"], "label": label}
        for number, label in enumerate(["x", "y", "x", None])
    ]
    batches = batches_of(Records.from_rows(rows), size=4)
    numbers = [int(query) for query in batches.texts(0).queries]
    labels = batches[0].labels.tolist()
    by_row = dict(zip(numbers, labels[:4], strict=True))
    assert by_row[0] == by_row[2] != 0
    assert by_row[1] not in (0, by_row[0])
    assert by_row[3] == 0
    assert labels[4:] == [0, 0, 0, 0]


def test_a_source_says_whether_its_batch_gives_negatives() -> None:
    rows = [{"query": "q", "positive": "a"}] * 2
    assert batches_of(Records.from_rows(rows), size=2)[0].in_batch_negatives
    alone = Records.from_rows(rows, in_batch_negatives=False)
    assert not batches_of(alone, size=2)[0].in_batch_negatives


def test_moving_a_batch_moves_its_tensors(records: Records) -> None:
    batch = batches_of(records)[0]
    moved = batch.to(torch.device("meta"))
    assert {getattr(moved, name).device.type for name in TENSORS} == {"meta"}
    assert moved.queries.ids.device.type == "meta"
    assert moved.documents.ids.device.type == "meta"
