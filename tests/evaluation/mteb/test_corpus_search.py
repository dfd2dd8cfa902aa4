"""The search of a corpus against mteb's own."""

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from datasets import Dataset, concatenate_datasets
from mteb.cache import ResultCache
from mteb.models.model_meta import ModelMeta
from mteb.models.search_wrappers import SearchEncoderWrapper
from mteb.similarity_functions import cos_sim, dot_score, euclidean_sim
from mteb.types import PromptType
from sentence_transformers import SentenceTransformer
from support.encoders import MINILM
from support.ranks import run_on_ranks
from support.task_folders import write_json_lines, write_task

from embedkit import distributed
from embedkit.evaluation.encoding.encoders import CachedEncoder, DistributedEncoder
from embedkit.evaluation.encoding.vector_cache import VectorCache
from embedkit.evaluation.mteb import corpus_search
from embedkit.evaluation.mteb.corpus_search import CorpusSearch
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.task_folders.reading import read_task_folders
from embedkit.models import hub

Found = dict[str, dict[str, float]]
SIMILARITIES: dict[str, Callable[..., Any]] = {
    "cosine": cos_sim,
    "dot": dot_score,
    "euclidean": euclidean_sim,
}
# Every text stands under two ids, so that every score comes twice.
DOCUMENTS = [
    {"id": f"d{number}", "title": "A title" if number % 3 else "", "text": f"text {number // 2}"}
    for number in range(60)
]
# Arrow has it in several batches.
CORPUS = concatenate_datasets([Dataset.from_list(DOCUMENTS[n : n + 25]) for n in (0, 25, 50)])
QUERIES = Dataset.from_list(
    [{"id": f"d{number}", "text": f"query {number}"} for number in range(9)]
)
(TASK,) = [mteb.get_task("NFCorpus").metadata]


class Integers:
    """Vectors of integers, whose inner products are exact: equal texts have equal scores."""

    mteb_model_meta = ModelMeta.create_empty()

    def __init__(self, similarity: str) -> None:
        self.similarity = self.similarity_pairwise = SIMILARITIES[similarity]

    def encode(self, inputs: Any, *, prompt_type: PromptType | None = None, **_: Any) -> np.ndarray:
        return self.embed([text for batch in inputs for text in batch["text"]], prompt_type)

    def embed(self, texts: Iterable[str], prompt_type: PromptType | None) -> np.ndarray:
        side = "" if prompt_type is None else prompt_type.value
        digests = [hashlib.sha256(f"{side} {text}".encode()).digest()[:8] for text in texts]
        return np.array([list(digest) for digest in digests], dtype=np.float32)


def search(by: type[SearchEncoderWrapper], similarity: str, top_k: int) -> Found:
    wrapper = by(Integers(similarity))
    facts: dict[str, Any] = {
        "task_metadata": TASK,
        "hf_split": "test",
        "hf_subset": "default",
        "encode_kwargs": {"show_progress_bar": False},
    }
    wrapper.index(CORPUS, **facts)
    return wrapper.search(QUERIES, top_k=top_k, **facts)


def assert_same(found: Found, expected: Found) -> None:
    assert found.keys() == expected.keys()
    for query, documents in expected.items():
        assert found[query] == pytest.approx(documents, rel=1e-6)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("top_k", [1, 5, 1000])
@pytest.mark.parametrize("at_a_time", [7, 2**18])
def test_documents_and_scores_are_those_of_mteb(
    similarity: str, top_k: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_search, "_DOCUMENTS", at_a_time)
    found = search(CorpusSearch, similarity, top_k)
    assert_same(found, search(SearchEncoderWrapper, similarity, top_k))
    assert len(found["d0"]) == min(top_k, len(CORPUS))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_find_what_one_finds(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The last part of a corpus has fewer documents than ranks.
    monkeypatch.setattr(corpus_search, "_DOCUMENTS", 59)
    run_on_ranks(ranks, search_on_ranks)


def search_on_ranks() -> None:
    for top_k in (5, 1000):
        found = distributed.lead(partial(search, CorpusSearch, "dot", top_k), None)
        assert_same(found, search(SearchEncoderWrapper, "dot", top_k))


def test_mteb_searches_by_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("mteb searches by itself")

    monkeypatch.setattr("mteb.models.search_wrappers.chunked_full_corpus_search", fail)
    (task,) = read_task_folders(write_task(tmp_path / "mine", "retrieval"))
    assert not evaluate(hub.load("starter"), [task], tmp_path / "out").failed


@pytest.mark.parametrize("type_", ["retrieval", "reranking"])
def test_every_metric_is_that_of_mteb(type_: str, tmp_path: Path) -> None:
    (task,) = read_task_folders(write_task(tmp_path / "mine", type_))
    evaluate(hub.load("starter"), [task], tmp_path / "out")
    stock = SentenceTransformer(MINILM, device="cpu")
    cache = ResultCache(tmp_path / "stock")
    (expected,) = mteb.evaluate(stock, task, cache=cache, co2_tracker=False).task_results
    (path,) = (path for path in (tmp_path / "out" / "results").rglob("mine.json"))
    (found,) = json.loads(path.read_text())["scores"]["test"]
    for name, value in expected.scores["test"][0].items():
        if isinstance(value, float):
            assert found[name] == pytest.approx(value, abs=1e-5, nan_ok=True), name


def test_a_corpus_that_two_tasks_share_is_encoded_once(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedkit.models.embedding_model._BATCH_TOKENS", 256)
    corpus = [{"_id": f"d{n}", "title": "", "text": f"{'very ' * (n % 9)}{n}"} for n in range(400)]
    # As ClimateFEVER's corpus is FEVER's, in another order and with a few documents more.
    for name, rows in (("first", corpus), ("second", corpus[::-1]), ("third", [*corpus, MORE])):
        folder = write_task(tmp_path / "tasks" / name, "retrieval")
        write_json_lines(folder / "corpus.jsonl", rows)
    model, encoded = hub.load(str(tiny_model)), list[int]()
    model.backbone.register_forward_hook(lambda _, inputs, __: encoded.append(len(inputs[0])))
    encoder = CachedEncoder(DistributedEncoder(model), VectorCache(tmp_path / "vectors", 10**8))
    counts = []
    for task in read_task_folders(tmp_path / "tasks"):
        encoded.clear()
        assert not evaluate(encoder, [task], tmp_path / "out").failed
        counts.append(sum(encoded))
    # The four queries are the same in all tasks.
    assert counts[:2] == [404, 0]
    assert 0 < counts[2] < 100


MORE = {"_id": "more", "title": "", "text": "very very very much more"}
