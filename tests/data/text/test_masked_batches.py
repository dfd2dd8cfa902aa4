from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from embedkit import distributed
from embedkit.data.batch_sampler import BatchSampler, Source
from embedkit.data.loading import stream
from embedkit.data.text.masked_batches import MaskedBatch, MaskedBatches, Masking, fixed_batch
from embedkit.data.text.packing import Packing, Rows, pack
from embedkit.data.text.token_store import StoreWriter, TokenStore
from embedkit.recipe import MaskedLM
from embedkit.tokens.vocabulary import Vocabulary

CLS, SEP, MASK = 1, 2, 3
VOCABULARY = Vocabulary(
    size=20_000,
    mask=MASK,
    special=np.array([0, CLS, SEP, MASK]),
    ordinary=np.arange(4, 20_000),
    prefix=np.array([CLS]),
    suffix=np.array([SEP]),
)
MASKING = Masking(VOCABULARY, MaskedLM(kind="masked_lm", rate=0.2, replace="mask"))
DRAWS, ROWS, STEPS = 3, 4, 6
"""Draws of a step, rows of a draw, steps."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[TokenStore]:
    """Two sources of documents of unlike length; no id is in two places."""
    made = []
    for source, start in enumerate([10, 10_000]):
        folder = tmp_path_factory.mktemp("store")
        writer = StoreWriter(folder, ("train",), np.dtype(np.uint16))
        for number in range(60):
            length = 3 + (number * 7 + source) % 29
            writer.add("train", range(start, start + length))
            start += length
        writer.finish()
        made.append(TokenStore(folder, "train"))
    return made


def rows_of(stores: list[TokenStore], packing: Packing = "none") -> list[Rows]:
    return [pack(store, VOCABULARY, packing, max_tokens=16) for store in stores]


def batches_of(
    stores: list[TokenStore],
    packing: Packing = "none",
    *,
    seed: int = 7,
    masking: Masking = MASKING,
) -> MaskedBatches:
    rows = rows_of(stores, packing)
    sources = [Source(name, len(own), ROWS) for name, own in zip("ab", rows, strict=True)]
    sampler = BatchSampler(sources, [1.0, 2.0], steps=STEPS * DRAWS, seed=seed)
    return MaskedBatches(sampler, rows, masking, draws=DRAWS, seed=seed)


def on_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    monkeypatch.setattr(distributed, "rank", lambda: rank)
    monkeypatch.setattr(distributed, "world_size", lambda: world_size)


def original(batch: MaskedBatch) -> list[list[int]]:
    """The sequences before they were masked."""
    ids = batch.tokens.ids.clone()
    ids[batch.positions] = batch.targets
    return [each.tolist() for each in ids.split(batch.tokens.lengths.tolist())]


def seen(batch: MaskedBatch) -> list[list[int]]:
    return [each.tolist() for each in batch.tokens.ids.split(batch.tokens.lengths.tolist())]


def assert_equal(one: MaskedBatch, other: MaskedBatch) -> None:
    assert (one.source, one.rows) == (other.source, other.rows)
    assert torch.equal(one.tokens.offsets, other.tokens.offsets)
    assert torch.equal(one.tokens.ids, other.tokens.ids)
    assert torch.equal(one.positions, other.positions)
    assert torch.equal(one.targets, other.targets)


@pytest.mark.parametrize("packing", ["none", "exact", "crossing"])
def test_a_step_has_the_rows_of_its_draws_and_what_was_masked(
    stores: list[TokenStore], packing: Packing
) -> None:
    rows, batches = rows_of(stores, packing), batches_of(stores, packing)
    every = {tuple(map(tuple, own[row])) for own in rows for row in range(len(own))}
    batch = batches[2]
    assert batch.rows == DRAWS * ROWS
    sequences = original(batch)
    at = 0
    found = 0
    while at < len(sequences):
        # A row is as many sequences as make one that the sources have.
        count = next(n for n in range(1, 9) if tuple(map(tuple, sequences[at : at + n])) in every)
        at, found = at + count, found + 1
    assert found == batch.rows
    assert (batch.tokens.ids[batch.positions] == MASK).all()
    assert not np.isin(batch.targets, VOCABULARY.special).any()
    assert (batch.positions.diff() > 0).all()
    assert len(batch.positions) == len(batch.targets) > 0


def test_sources_come_up_by_draw_and_a_step_names_them(stores: list[TokenStore]) -> None:
    batches = batches_of(stores)
    drawn: Counter[str] = Counter()
    for step in range(STEPS):
        batch = batches[step]
        own = ["a" if sequence[1] < 10_000 else "b" for sequence in original(batch)]
        # Each draw is of one source.
        assert all(len(set(own[at : at + ROWS])) == 1 for at in range(0, len(own), ROWS))
        assert set(batch.source.split(", ")) == set(own)
        drawn.update(own)
    assert drawn["b"] > drawn["a"] > 0


@pytest.mark.parametrize("packing", ["none", "exact"])
@pytest.mark.parametrize("world_size", [2, 3, 4, 12])
def test_ranks_together_see_the_rows_and_the_masks_of_one(
    stores: list[TokenStore],
    packing: Packing,
    world_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = batches_of(stores, packing)[3]
    parts = []
    for rank in range(world_size):
        on_rank(monkeypatch, rank, world_size)
        parts.append(batches_of(stores, packing)[3])
    assert {(part.rows, part.source) for part in parts} == {(whole.rows, whole.source)}
    assert [each for part in parts for each in seen(part)] == seen(whole)
    assert [each for part in parts for each in original(part)] == original(whole)


def test_workers_change_nothing(stores: list[TokenStore]) -> None:
    alone = list(stream(batches_of(stores), range(1, STEPS), workers=0))
    shared = list(stream(batches_of(stores), range(1, STEPS), workers=2))
    assert len(alone) == len(shared) == STEPS - 1
    for one, other in zip(alone, shared, strict=True):
        assert_equal(one, other)


def test_another_step_and_another_seed_mask_other_tokens(stores: list[TokenStore]) -> None:
    # Two epochs of one source: the same rows again.
    rows = rows_of(stores[:1])
    sampler = BatchSampler([Source("a", len(rows[0]), 60)], [1.0], steps=4, seed=1)
    batches = [MaskedBatches(sampler, rows, MASKING, draws=1, seed=seed) for seed in (1, 2)]
    first, second = batches[0][0], batches[0][1]
    assert sorted(original(first)) == sorted(original(second))
    assert sorted(seen(first)) != sorted(seen(second))
    other = batches[1][0]
    assert original(other) == original(first)
    assert seen(other) != seen(first)
    assert_equal(batches[0][0], first)


def test_a_row_is_masked_anew_at_every_place_of_every_step(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, ("train",), np.dtype(np.uint16))
    writer.add("train", range(10, 40))
    writer.finish()
    rows = pack(TokenStore(tmp_path, "train"), VOCABULARY, "none", max_tokens=32)
    sampler = BatchSampler([Source("a", 1, 1)], [1.0], steps=12, seed=1)
    half = Masking(VOCABULARY, MaskedLM(kind="masked_lm", rate=0.5))
    batches = MaskedBatches(sampler, [rows], half, draws=4, seed=1)
    assert len({str(each) for step in range(3) for each in original(batches[step])}) == 1
    assert len({str(each) for step in range(3) for each in seen(batches[step])}) == 12


def test_a_step_may_have_nothing_to_guess(stores: list[TokenStore]) -> None:
    batch = batches_of(stores, masking=Masking(VOCABULARY, MaskedLM(kind="masked_lm", rate=1e-9)))[
        0
    ]
    assert (batch.positions.shape, batch.targets.shape) == ((0,), (0,))
    assert batch.positions.dtype == batch.targets.dtype == torch.int64
    assert batch.select(torch.tensor([1])).positions.shape == (0,)


def test_some_sequences_of_a_batch_keep_their_masks(stores: list[TokenStore]) -> None:
    batch = batches_of(stores, "exact")[1]
    chosen = torch.tensor([5, 0, 7, 2])
    part = batch.select(chosen)
    assert seen(part) == [seen(batch)[row] for row in chosen]
    assert original(part) == [original(batch)[row] for row in chosen]
    assert (part.positions.diff() > 0).all()
    assert (part.source, part.rows) == (batch.source, batch.rows)


def test_parts_of_a_batch_have_all_its_targets(stores: list[TokenStore]) -> None:
    batch = batches_of(stores)[0]
    order = torch.randperm(len(batch.tokens), generator=torch.Generator().manual_seed(0))
    parts = [batch.select(rows) for rows in order.split(5)]
    assert sorted(torch.cat([part.targets for part in parts]).tolist()) == sorted(
        batch.targets.tolist()
    )


def test_moving_a_batch_moves_its_tensors(stores: list[TokenStore]) -> None:
    moved = batches_of(stores)[0].to(torch.device("meta"))
    assert moved.tokens.ids.device.type == "meta"
    assert (moved.positions.device.type, moved.targets.device.type) == ("meta", "meta")


def test_what_is_measured_on_is_masked_alike_every_time(
    stores: list[TokenStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    (rows,) = rows_of(stores[:1])
    whole = fixed_batch("a", rows, MASKING, 20)
    assert_equal(whole, fixed_batch("a", rows, MASKING, 20))
    assert (whole.rows, len(whole.tokens), whole.source) == (20, 20, "a")
    assert len({tuple(each) for each in original(whole)}) == 20
    # More rows begin with fewer, and where there are not as many all are taken.
    assert seen(fixed_batch("a", rows, MASKING, 30))[:20] == seen(whole)
    assert fixed_batch("a", rows, MASKING, 1000).rows == 60
    parts = []
    for rank in range(3):
        on_rank(monkeypatch, rank, 3)
        parts += seen(fixed_batch("a", rows, MASKING, 20))
    assert parts == seen(whole)


def test_with_more_ranks_than_rows_to_measure_on_each_has_all_of_them(
    stores: list[TokenStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    (rows,) = rows_of(stores[:1])
    whole = fixed_batch("a", rows, MASKING, 2)
    on_rank(monkeypatch, 1, 3)
    assert_equal(fixed_batch("a", rows, MASKING, 2), whole)
