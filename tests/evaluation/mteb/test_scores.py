"""Each type's main score against a computation of our own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import average_precision_score, v_measure_score
from support.encoders import Encoder
from support.task_folders import LABELLED, QUERIES, TYPES, write_json_lines, write_task

from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.summary import TaskScore
from embedkit.evaluation.task_folders.reading import read_task_folders


def score(folder: Path, model: SentenceTransformer) -> TaskScore:
    tasks = read_task_folders(folder)
    return evaluate(Encoder(model, "m"), tasks, folder.parent / "out").scores[folder.name]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def cosines(model: SentenceTransformer, first: list[str], second: list[str]) -> np.ndarray:
    a, b = (model.encode(texts, normalize_embeddings=True) for texts in (first, second))
    return np.asarray(a @ b.T)


def test_retrieval_is_ndcg_at_10(tmp_path: Path, noise_model: SentenceTransformer) -> None:
    folder = write_task(tmp_path / "mine", "retrieval")
    corpus = [f"{row['title']} {row['text']}".strip() for row in rows_of(folder / "corpus.jsonl")]
    similar = cosines(noise_model, [text for text, _ in QUERIES.values()], corpus)
    gains = []
    for row, (_, document) in zip(similar, QUERIES.values(), strict=True):
        rank = int((row > row[int(document[1:])]).sum())
        gains.append(1 / np.log2(rank + 2) if rank < 10 else 0.0)
    found = score(folder, noise_model)
    assert found.metric == "ndcg_at_10"
    assert found.score == pytest.approx(np.mean(gains), abs=1e-4)
    assert 0 < found.score < 1


def test_reranking_is_mean_average_precision(
    tmp_path: Path, noise_model: SentenceTransformer
) -> None:
    folder = write_task(tmp_path / "mine", "reranking")
    precisions = []
    for row in rows_of(folder / "test.jsonl"):
        candidates = list(dict.fromkeys([*row["positive"], *row["negative"]]))
        relevant = [text in row["positive"] for text in candidates]
        similar = cosines(noise_model, [row["query"]], candidates)[0]
        precisions.append(average_precision_score(relevant, similar))
    found = score(folder, noise_model)
    assert found.metric == "map_at_1000"
    assert found.score == pytest.approx(np.mean(precisions), abs=1e-4)
    assert 0 < found.score < 1


def test_sts_is_spearmans_rank_correlation(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    folder = write_task(tmp_path / "mine", "sts")
    rows = rows_of(folder / "test.jsonl")
    first, second = ([row[key] for row in rows] for key in ("sentence1", "sentence2"))
    similar = np.diag(cosines(minilm_model, first, second))
    expected = spearmanr(similar, [row["score"] for row in rows]).statistic
    found = score(folder, minilm_model)
    assert found.metric == "cosine_spearman"
    assert found.score == pytest.approx(expected)


def test_pair_classification_is_average_precision(
    tmp_path: Path, noise_model: SentenceTransformer
) -> None:
    folder = write_task(tmp_path / "mine", "pair_classification")
    rows = rows_of(folder / "test.jsonl")
    first, second = ([row[key] for row in rows] for key in ("sentence1", "sentence2"))
    similar = np.diag(cosines(noise_model, first, second))
    expected = average_precision_score([row["label"] for row in rows], similar)
    found = score(folder, noise_model)
    assert found.metric == "max_ap"
    # The largest over mteb's distances; on unit vectors all but Manhattan's order pairs alike.
    assert expected - 1e-6 <= found.score <= 1


def test_summarization_is_the_mean_correlation_over_texts(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    folder = write_task(tmp_path / "mine", "summarization")
    correlations = []
    for row in rows_of(folder / "test.jsonl"):
        similar = cosines(minilm_model, row["machine_summaries"], row["human_summaries"])
        correlations.append(spearmanr(similar.max(axis=1), row["relevance"]).statistic)
    found = score(folder, minilm_model)
    assert found.metric == "cosine_spearman"
    assert found.score == pytest.approx(np.mean(correlations))


@pytest.mark.slow
def test_classification_is_accuracy(tmp_path: Path, minilm_model: SentenceTransformer) -> None:
    # Two labels that are words: mteb by itself fails on them.
    folder = write_task(tmp_path / "mine", "classification")
    found = score(folder, minilm_model)
    assert (found.metric, found.score) == ("accuracy", 1.0)
    every_other = [row | {"label": ["money", "animals"][n % 2]} for n, row in enumerate(LABELLED)]
    write_json_lines(folder / "test.jsonl", every_other)
    assert score(folder, minilm_model).score == pytest.approx(0.5)


def test_clustering_is_v_measure_of_mini_batch_k_means(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    folder = write_task(tmp_path / "mine", "clustering")
    vectors = minilm_model.encode([row["text"] for row in LABELLED], normalize_embeddings=True)
    means = MiniBatchKMeans(2, batch_size=500, n_init="auto", random_state=42)
    expected = v_measure_score([row["label"] for row in LABELLED], means.fit(vectors).labels_)
    found = score(folder, minilm_model)
    assert found.metric == "v_measure"
    assert found.score == pytest.approx(expected)


@pytest.mark.slow
def test_scoring_the_same_tasks_twice_gives_the_same_scores(
    tmp_path: Path, noise_model: SentenceTransformer
) -> None:
    for type_ in TYPES:
        write_task(tmp_path / "tasks" / type_.replace("+", "_"), type_)
    tasks = read_task_folders(tmp_path / "tasks")
    first, second = (
        evaluate(Encoder(noise_model, "m"), tasks, tmp_path / out) for out in ("a", "b")
    )
    assert not first.failed
    assert {name: each.score for name, each in first.scores.items()} == {
        name: each.score for name, each in second.scores.items()
    }
