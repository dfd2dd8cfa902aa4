import multiprocessing
import os
import pickle
import signal
import warnings
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from support.counting_encoder import Counting
from support.encoders import Encoder
from support.ranks import run_on_ranks
from support.task_folders import QUERIES, write_task

from embedkit import distributed
from embedkit.evaluation.encoding import encoders
from embedkit.evaluation.encoding.encoders import (
    CachedEncoder,
    DistributedEncoder,
    TextEncoder,
    Truncated,
)
from embedkit.evaluation.encoding.vector_cache import VectorCache
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.summary import Summary
from embedkit.evaluation.task_folders.reading import read_task_folders
from embedkit.models import hub
from embedkit.models.embedder import Embedder


def test_only_what_is_missing_is_encoded(tmp_path: Path) -> None:
    inner = Counting()
    encoder = CachedEncoder(inner, VectorCache(tmp_path, 10**6))
    first = encoder.encode(["b", "a"], prompt="p: ")
    again = encoder.encode(["c", "a", "d", "b"], prompt="p: ")
    assert inner.rounds == [["b", "a"], ["c", "d"]]
    assert np.array_equal(again, Counting().encode(["c", "a", "d", "b"], prompt="p: "))
    assert np.array_equal(again[[3, 1]], first)
    assert encoder.encode([]).shape == (0, 4)


def test_the_longest_texts_come_first_and_a_round_has_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "_ROUND_TOKENS", 10)
    inner = Counting()
    texts = ["x" * length for length in (4, 40, 8, 12)]
    found = CachedEncoder(inner, VectorCache(tmp_path, 10**6)).encode(texts)
    assert [[len(text) for text in each] for each in inner.rounds] == [[40], [12, 8], [4]]
    assert np.array_equal(found, Counting().encode(texts))


def test_texts_that_tasks_share_under_one_prompt_are_encoded_once(tmp_path: Path) -> None:
    inner = Counting()
    encoder = CachedEncoder(inner, VectorCache(tmp_path / "vectors", 10**6))
    for name, type_ in (("one", "retrieval"), ("two", "reranking")):
        write_task(tmp_path / "tasks" / name, type_)
    tasks = read_task_folders(tmp_path / "tasks")
    summary = evaluate(encoder, tasks, tmp_path / "out")
    encoded = [text for texts in inner.rounds for text in texts]
    assert len(encoded) == len(set(encoded))
    plain = Counting()
    alone = evaluate(plain, tasks, tmp_path / "plain")
    assert sum(map(len, plain.rounds)) > len(encoded)
    for name, each in summary.scores.items():
        assert each.score == alone.scores[name].score


def test_a_second_run_after_a_kill_encodes_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "_ROUND_TOKENS", 24)
    write_task(tmp_path / "mine", "retrieval")
    child = multiprocessing.get_context("fork").Process(target=score_until_killed, args=(tmp_path,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    inner, whole = Counting(), Counting()
    resumed = score(inner, tmp_path)
    untouched = evaluate(whole, read_task_folders(tmp_path / "mine"), tmp_path / "whole")
    assert resumed.scores["mine"].score == untouched.scores["mine"].score
    encoded = {text for texts in inner.rounds for text in texts}
    every = {text for texts in whole.rounds for text in texts}
    noted = set((tmp_path / "kept").read_text().splitlines())
    assert len(noted) > len(QUERIES)
    assert encoded == every - noted
    assert len(encoded) > 2


def negate_half(path: Path) -> None:
    content = path.read_bytes()
    half = np.frombuffer(content[len(content) // 8 * 4 :], np.float32)
    path.write_bytes(content[: -half.nbytes] + (-half).tobytes())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [negate_half, cut, empty])
def test_a_damaged_cache_changes_no_score(
    damage: Callable[[Path], None], tiny_model: Path, tmp_path: Path
) -> None:
    for type_ in ("retrieval", "sts", "classification"):
        write_task(tmp_path / "tasks" / type_, type_)
    tasks = read_task_folders(tmp_path / "tasks")

    def scores(output: str) -> dict[str, float]:
        cache = VectorCache(tmp_path / "vectors", 10**6)
        encoder = CachedEncoder(hub.load(str(tiny_model)), cache)
        found = evaluate(encoder, tasks, tmp_path / output).scores
        return {name: each.score for name, each in found.items()}

    before = scores("before")
    assert len(before) == 3
    for number, path in enumerate(sorted((tmp_path / "vectors").glob("*.texts/*"))):
        damage(path)
        with warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("always")
            assert scores(f"damaged {number}") == before
        # A block without keys, or without their digests, is one that was never written.
        if path.name.endswith(".vectors"):
            assert any("blocks are damaged" in str(remark.message) for remark in remarks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scores("mended") == before


def score(encoder: TextEncoder, folder: Path) -> Summary:
    remembering = CachedEncoder(encoder, VectorCache(folder / "vectors", 10**6))
    return evaluate(remembering, read_task_folders(folder / "mine"), folder / "out")


def score_until_killed(folder: Path) -> None:
    score(Killed(folder / "kept"), folder)


class Killed(Counting):
    """Notes what it has encoded, and dies in the middle of the corpus, as by ``kill -9``."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self._notes = notes

    def encode(self, texts: Sequence[str], *, prompt: str = "") -> np.ndarray:
        if len(self.rounds) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        with self._notes.open("a") as notes:
            notes.writelines(f"{text}\n" for text in texts)
        return super().encode(texts, prompt=prompt)


def test_a_cut_is_the_first_dimensions_as_they_are() -> None:
    cut = Truncated(Counting(), 2)
    found = cut.encode(["a", "b"], prompt="p: ")
    expected = Counting().encode(["a", "b"], prompt="p: ")[:, :2]
    np.testing.assert_array_equal(found, expected)
    assert len({cut.identity, Truncated(Counting(), 3).identity, Counting.identity}) == 3


def test_every_encoder_gives_one_text_one_vector(tmp_path: Path, tiny_model: Path) -> None:
    ranks = DistributedEncoder(hub.load(str(tiny_model)))
    cache = VectorCache(tmp_path, 10**6)
    for encoder in (ranks, Truncated(ranks, 5), CachedEncoder(ranks, cache)):
        for _ in range(2):
            (expected,) = encoder.encode(["a lone text"], prompt="p: ")
            np.testing.assert_array_equal(encoder.encode("a lone text", prompt="p: "), expected)


def test_a_cut_is_scored_apart_from_the_whole(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    encoder = Encoder(minilm_model, "m")
    tasks = read_task_folders(write_task(tmp_path / "mine", "sts"))
    whole = evaluate(encoder, tasks, tmp_path / "out").scores["mine"].score
    cut = evaluate(Truncated(encoder, 3), tasks, tmp_path / "out").scores["mine"].score
    assert cut != whole
    minilm_model.truncate_dim = 3
    expected = evaluate(Encoder(minilm_model, "m"), tasks, tmp_path / "st").scores["mine"].score
    minilm_model.truncate_dim = None
    assert cut == pytest.approx(expected, abs=1e-6)


HALVES = [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]


def starter_in(dtype: torch.dtype) -> Embedder:
    """MiniLM, whose last bits depend on a text's batch here: a tiny model may hide that."""
    model = hub.load("starter")
    assert isinstance(model, Embedder)
    model.autocast = dtype
    return model


# Words of different lengths, in batches of at most 256 estimated tokens.
SENTENCES = [f"{'very ' * (n * 7 % 23)}long text number {n}" for n in range(60)]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.models.embedding_model._BATCH_TOKENS", 256)
    monkeypatch.setattr(encoders, "_ROUND_TOKENS", 500)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_cache_changes_no_bit_of_a_vector(
    dtype: torch.dtype, tmp_path: Path, small_batches: None
) -> None:
    model = starter_in(dtype)
    expected = model.encode(SENTENCES)
    assert not np.array_equal(model.encode(SENTENCES[::2]), expected[::2]), "nothing to keep apart"
    cache = VectorCache(tmp_path, 10**8, model.vector_dtype)
    encoder = CachedEncoder(model, cache)
    # An empty cache, one that holds some batches, one that holds each text in other batches too,
    # and one that holds all batches.
    longest = [SENTENCES[row] for row in np.concatenate(model.batches(SENTENCES)[:3]).tolist()]
    for texts in (longest, SENTENCES[::2], SENTENCES[1::2]):
        np.testing.assert_array_equal(encoder.encode(texts), model.encode(texts))
    np.testing.assert_array_equal(encoder.encode(SENTENCES), expected)
    np.testing.assert_array_equal(encoder.encode(SENTENCES[::-1])[::-1], expected)
    (vectors,) = tmp_path.glob("*.texts/384.vectors")
    (keys,) = tmp_path.glob("*.texts/keys")
    bytes_of_a_number = 2 if dtype is torch.float16 else 4
    assert vectors.stat().st_size / keys.stat().st_size == 384 * bytes_of_a_number / 16
    # Another rank gets the cache pickled, and keeps its vectors with the others.
    again = CachedEncoder(model, pickle.loads(pickle.dumps(cache)))
    np.testing.assert_array_equal(again.encode(SENTENCES), expected)
    again.encode(["a text of another rank"])
    assert len([*tmp_path.glob("*.texts")]) == 1


def test_a_killed_run_leaves_vectors_that_the_next_one_would_make(
    tmp_path: Path, small_batches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cache = starter_in(torch.bfloat16), VectorCache(tmp_path, 10**8)
    expected, encode, rounds = model.encode(SENTENCES), model.encode, count()

    def interrupted(texts: list[str], *, prompt: str = "") -> np.ndarray:
        if next(rounds) == 2:
            raise KeyboardInterrupt
        return encode(texts, prompt=prompt)

    with monkeypatch.context() as patch:
        patch.setattr(model, "encode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            CachedEncoder(model, cache).encode(SENTENCES)
    assert any(tmp_path.iterdir())
    np.testing.assert_array_equal(CachedEncoder(model, cache).encode(SENTENCES), expected)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("dtype", HALVES)
def test_ranks_change_no_bit_of_a_vector(
    dtype: torch.dtype, ranks: int, tmp_path: Path, small_batches: None
) -> None:
    np.save(tmp_path / "alone.npy", starter_in(dtype).encode(SENTENCES))
    run_on_ranks(ranks, encode_on_ranks, dtype, tmp_path)


def encode_on_ranks(dtype: torch.dtype, folder: Path) -> None:
    found = DistributedEncoder(starter_in(dtype)).run_on_main(lambda each: each.encode(SENTENCES))
    np.testing.assert_array_equal(found, np.load(folder / "alone.npy"))


@pytest.mark.slow
def test_two_ranks_score_as_one(tmp_path: Path, tiny_model: Path, one_text_a_batch: None) -> None:
    for type_ in ("retrieval", "sts"):
        write_task(tmp_path / "tasks" / type_, type_)
    tasks = read_task_folders(tmp_path / "tasks")
    alone = evaluate(hub.load(str(tiny_model)), tasks, tmp_path / "alone")
    run_on_ranks(2, score_shared, tiny_model, tmp_path)
    together = Summary.read(tmp_path / "together" / "summary.json")
    assert together.identity == alone.identity
    for name, each in alone.scores.items():
        assert together.scores[name].score == pytest.approx(each.score, abs=1e-6)


def score_shared(model: Path, folder: Path) -> None:
    tasks = read_task_folders(folder / "tasks")
    embedder = hub.load(str(model))
    counted: list[int] = []
    embedder.backbone.register_forward_hook(lambda *_: counted.append(1))
    output = folder / ("together" if distributed.is_main() else "not-written")
    summary = DistributedEncoder(embedder).run_on_main(
        lambda encoder: evaluate(encoder, tasks, output)
    )
    assert summary.coverage == "2 of 2 tasks"
    assert counted, "every rank encodes"
    by_itself = DistributedEncoder(embedder).encode(["x"] * (1 + distributed.rank()))
    assert len(by_itself) == 1 + distributed.rank()
    assert not (folder / "not-written").exists()


def test_a_rank_that_fails_fails_the_task_and_not_the_run(
    tiny_model: Path, one_text_a_batch: None
) -> None:
    run_on_ranks(2, fail_on_one_rank, tiny_model)


def fail_on_one_rank(model: Path) -> None:
    embedder = hub.load(str(model))
    if distributed.rank() == 1:
        # A text of this model is at least as long as its two special tokens.
        embedder.backbone.register_forward_pre_hook(stumble)
    embedder.train()
    outcomes = DistributedEncoder(embedder).run_on_main(try_twice)
    assert embedder.training
    assert outcomes == ["RankFailedError", "(1, 32)", "(32,)"]


def stumble(module: torch.nn.Module, arguments: tuple[object, ...]) -> None:
    raise MemoryError("out of memory")


def try_twice(encoder: TextEncoder) -> list[str]:
    outcomes = []
    # A single text is rank 0's, so that rank 1 has nothing to stumble over.
    for texts in (["one", "two"], ["one"], "one"):
        try:
            outcomes.append(str(encoder.encode(texts).shape))
        except distributed.RankFailedError as error:
            outcomes.append(type(error).__name__)
    return outcomes
