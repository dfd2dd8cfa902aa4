import json
from pathlib import Path
from statistics import fmean
from typing import Any

import mteb
import numpy as np
import pytest
from mteb._evaluators.retrieval_metrics import calculate_retrieval_scores, max_over_subqueries
from mteb.abstasks.abstask import AbsTask
from sentence_transformers import SentenceTransformer
from support.encoders import Encoder
from support.task_folders import write_json_lines, write_task

from embedkit.evaluation.mteb.query_recorder import query_results, recorded_queries
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.query_results import QueryResult, read_query_results
from embedkit.evaluation.summary import TaskScore
from embedkit.evaluation.task_folders.reading import read_task_folders


def queries_of(output: Path, score: TaskScore) -> list[QueryResult]:
    return [
        result for file in score.queries.values() for result in read_query_results(output / file)
    ]


@pytest.mark.parametrize("type_", ["retrieval", "reranking"])
def test_the_mean_over_queries_is_mtebs_main_score(
    type_: str, tmp_path: Path, noise_model: SentenceTransformer
) -> None:
    (task,) = read_task_folders(write_task(tmp_path / "mine", type_))
    score = evaluate(Encoder(noise_model, "m"), [task], tmp_path / "out").scores["mine"]
    found = queries_of(tmp_path / "out", score)
    assert len(found) == 4
    # mteb rounds to five digits.
    assert fmean(query.score for query in found) == pytest.approx(score.score, abs=6e-6)
    assert "task_specific_scores" not in vars(task)


def test_a_query_keeps_its_ranks(tmp_path: Path, minilm_model: SentenceTransformer) -> None:
    (task,) = read_task_folders(write_task(tmp_path / "mine", "retrieval"))
    score = evaluate(Encoder(minilm_model, "m"), [task], tmp_path / "out").scores["mine"]
    query = next(one for one in queries_of(tmp_path / "out", score) if one.query == "q0")
    assert (query.split, query.subset, query.relevant) == ("test", "default", ["d0"])
    assert query.first_relevant == 1
    assert query.front[0] == "d0"
    assert len(query.front) == len(set(query.front)) == 10
    assert list(query.front_scores) == sorted(query.front_scores, reverse=True)
    vectors = minilm_model.encode(
        ["where does the cat rest", "Cats The cat sleeps on the sofa."], normalize_embeddings=True
    )
    assert query.front_scores[0] == pytest.approx(vectors[0] @ vectors[1], abs=1e-5)


def test_a_kept_result_keeps_its_queries_and_an_old_one_is_scored_again(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    (task,) = read_task_folders(write_task(tmp_path / "mine", "retrieval"))
    encoder = Encoder(minilm_model, "m")
    first = evaluate(encoder, [task], tmp_path / "out").scores["mine"]
    again = evaluate(encoder, [task], tmp_path / "out").scores["mine"]
    assert again == first
    (tmp_path / "out" / first.queries["mine"]).unlink()
    assert evaluate(encoder, [task], tmp_path / "out").scores["mine"].queries == first.queries
    assert len(queries_of(tmp_path / "out", first)) == 4


def test_a_task_that_goes_on_keeps_the_queries_of_earlier_subsets(tmp_path: Path) -> None:
    task: Any = mteb.get_task("ArguAna")
    path = tmp_path / "x.parquet"
    qrels, retrieved = drawn(3, ["q0", "q1"])
    scores = calculate_retrieval_scores(retrieved, qrels, [10]).all_scores
    vars(task)["task_specific_scores"] = lambda *_, **__: {}

    def record(subset: str) -> None:
        with recorded_queries(task, path):
            task.task_specific_scores(scores, qrels, retrieved, hf_split="test", hf_subset=subset)
        vars(task)["task_specific_scores"] = lambda *_, **__: {}

    def subsets() -> list[str]:
        return [result.subset for result in read_query_results(path)]

    try:
        record("en")
        # mteb was killed before it wrote that it had scored "de".
        written = {"scores": {"test": [{"hf_subset": "en"}]}}
        path.with_suffix(".json").write_text(json.dumps(written))
        record("de")
        record("de")
        assert subsets() == ["en", "en", "de", "de"]
        path.unlink()
        record("de")
        assert not path.with_suffix(".json").exists()
    finally:
        del vars(task)["task_specific_scores"]


def test_tasks_without_queries_keep_none(tmp_path: Path, minilm_model: SentenceTransformer) -> None:
    tasks = read_task_folders(write_task(tmp_path / "mine", "sts"))
    score = evaluate(Encoder(minilm_model, "m"), tasks, tmp_path / "out").scores["mine"]
    assert score.queries == {}
    assert not list((tmp_path / "out").rglob("*.parquet"))


def drawn(seed: int, queries: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Judgements and similarities of 20 documents, with ties and a query that misses its answer."""
    rng = np.random.default_rng(seed)
    qrels = {query: {f"d{n}": int(n % 3 == 0) for n in range(7)} for query in queries}
    retrieved = {
        query: {f"d{n}": float(round(rng.random(), 1)) for n in rng.permutation(20)[:12]}
        for query in queries
    }
    retrieved[queries[-1]] = {"d19": 0.5}
    return qrels, retrieved


@pytest.mark.parametrize(
    "metric",
    ["ndcg_at_10", "map_at_100", "recall_at_3", "precision_at_5", "hit_rate_at_1", "mrr_at_10"],
)
def test_every_metric_is_the_mean_over_its_queries(metric: str) -> None:
    qrels, retrieved = drawn(3, [f"q{n}" for n in range(9)])
    found = calculate_retrieval_scores(retrieved, qrels, [1, 3, 5, 10, 100])
    name, _, cutoff = metric.rpartition("_at_")
    table = {"hit_rate": ("hit_rate", "HitRate"), "precision": ("precision", "P")}
    field, key = table.get(name, (name, name.upper() if name != "recall" else "Recall"))
    expected = getattr(found, field)[f"{key}@{cutoff}"]
    queries = query_results(metric, found.all_scores, qrels, retrieved, "test", "default")
    assert fmean(query.score for query in queries) == pytest.approx(expected, abs=6e-6)
    assert queries[-1].first_relevant is None


def test_subqueries_are_scored_as_one_query() -> None:
    qrels, retrieved = drawn(5, [f"{user}_{n}" for user in ("u1", "u_2") for n in range(3)])
    metric = "max_over_subqueries_map_at_1000"
    expected = max_over_subqueries(qrels, retrieved, [1, 1000])[metric]
    queries = query_results(metric, {}, qrels, retrieved, "test", "default")
    assert [query.query for query in queries] == ["u1", "u_2"]
    assert fmean(query.score for query in queries) == pytest.approx(expected, abs=6e-6)


def test_a_task_that_leaves_out_identical_ids_does_so_here(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    folder = write_task(tmp_path / "mine", "retrieval")
    rows = [{"_id": "d0", "text": "The cat sleeps on the sofa."}]
    write_json_lines(folder / "queries.jsonl", rows)
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nd0\td3\t1\n")
    (task,) = read_task_folders(folder)
    vars(task)["ignore_identical_ids"] = True
    score = evaluate(Encoder(minilm_model, "m"), [task], tmp_path / "out").scores["mine"]
    (query,) = queries_of(tmp_path / "out", score)
    assert "d0" not in query.front
    assert query.score == pytest.approx(score.score, abs=6e-6)


def test_mtebs_own_object_is_left_as_it_was(tmp_path: Path) -> None:
    task: AbsTask = mteb.get_task("ArguAna")
    with recorded_queries(task, tmp_path / "x.parquet"):
        assert "task_specific_scores" in vars(task)
    assert "task_specific_scores" not in vars(task)
