import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from support.encoders import Encoder
from support.task_folders import ANIMALS, LABELLED, TYPES, write_json_lines, write_task

from embedkit.errors import DataError
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.task_folders.metrics import METRICS
from embedkit.evaluation.task_folders.reading import read_task_folders


@pytest.mark.parametrize("type_", TYPES)
def test_every_type_is_read(tmp_path: Path, type_: str) -> None:
    tasks = read_task_folders(write_task(tmp_path / "mine", type_, license="CC0", origin="kept"))
    assert len(tasks) == 1 + ("+" in type_)
    assert all(task.data_loaded and task.metadata.name.startswith("mine") for task in tasks)


@pytest.mark.parametrize("type_", METRICS)
def test_mteb_computes_the_metrics_that_a_folder_may_name(
    tmp_path: Path, type_: str, minilm_model: SentenceTransformer
) -> None:
    (task,) = read_task_folders(write_task(tmp_path / "mine", type_))
    evaluate(Encoder(minilm_model, "m"), [task], tmp_path / "out")
    (kept,) = (tmp_path / "out" / "results").rglob("mine.json")
    (scores,) = json.loads(kept.read_text())["scores"]["test"]
    assert [name for name in METRICS[type_] if not isinstance(scores[name], float)] == []


def test_the_metric_of_a_folder_is_its_score(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    folder = write_task(tmp_path / "mine", "retrieval", metric="precision_at_10")
    summary = evaluate(Encoder(minilm_model, "m"), read_task_folders(folder), tmp_path / "out")
    assert summary.scores["mine"].metric == "precision_at_10"
    # Each query has one relevant document, which is among the first ten of twelve.
    assert summary.scores["mine"].score == pytest.approx(0.1)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_query_that_is_a_document_finds_itself_unless_that_is_ignored(
    tmp_path: Path, minilm_model: SentenceTransformer, ignored: bool
) -> None:
    folder = write_task(
        tmp_path / "mine", "retrieval", metric="mrr_at_10", ignore_identical_ids=ignored
    )
    rows = [{"_id": f"d{n}", "text": text} for n, text in enumerate([*ANIMALS[:2], ANIMALS[0]])]
    write_json_lines(folder / "corpus.jsonl", rows)
    write_json_lines(folder / "queries.jsonl", rows[:1])
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nd0\td1\t1\n")
    summary = evaluate(Encoder(minilm_model, "m"), read_task_folders(folder), tmp_path / "out")
    assert summary.scores["mine"].score == pytest.approx(1 / 2 if ignored else 1 / 3)


@pytest.mark.parametrize(
    ("type_", "settings", "told"),
    [
        ("sts", {"metric": "ndcg_at_10"}, "metric: sts has no 'ndcg_at_10', but for example"),
        ("retrieval", {"metric": "ndcg@10"}, "no 'ndcg@10', but for example ndcg_at_10"),
        ("retrieval", {"metric": "ndcg_at_7"}, "metric: retrieval has no 'ndcg_at_7'"),
        ("clustering", {"metric": 3}, "metric: clustering has no 3, but for example v_measure"),
        ("classification+clustering", {"metric": "v_measure"}, "classification has no 'v_measure'"),
        ("sts", {"ignore_identical_ids": True}, "is for retrieval; leave it out of a task of sts"),
        ("retrieval", {"ignore_identical_ids": "yes"}, "must be true or false (got 'yes')"),
    ],
)
def test_settings_that_a_type_does_not_have_are_refused(
    tmp_path: Path, type_: str, settings: dict[str, Any], told: str
) -> None:
    folder = write_task(tmp_path / "mine", type_, **settings)
    with pytest.raises(DataError, match=re.escape(told)) as refused:
        read_task_folders(folder)
    assert str(refused.value).startswith(f"{folder / 'task.json'}: ")


def test_average_precision_of_three_labels_is_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", "classification", metric="ap")
    assert read_task_folders(folder)[0].metadata.main_score == "ap"
    for name in ("train.jsonl", "test.jsonl"):
        more = [{"text": text, "label": "cows"} for text in ("moo", "low")]
        write_json_lines(folder / name, [*LABELLED, *more])
    with pytest.raises(DataError, match="ap is for two labels, and there are 3"):
        read_task_folders(folder)


def test_a_folder_of_folders_is_read_in_order(tmp_path: Path) -> None:
    write_task(tmp_path / "b", "sts")
    write_task(tmp_path / "a", "classification+clustering")
    (tmp_path / "notes").mkdir()
    names = [task.metadata.name for task in read_task_folders(tmp_path)]
    assert names == ["a_classification", "a_clustering", "b"]


def test_the_revision_is_the_content(tmp_path: Path) -> None:
    def revision() -> str:
        return read_task_folders(tmp_path / "mine")[0].metadata.revision

    write_task(tmp_path / "mine", "retrieval")
    first = revision()
    corpus = tmp_path / "mine" / "corpus.jsonl"
    sound = corpus.read_text()
    corpus.write_text(sound.replace("cat sleeps", "cat slept"))
    assert revision() != first
    corpus.write_text(sound)
    assert revision() == first


@pytest.mark.parametrize(
    ("type_", "settings", "expected"),
    [
        ("sts", {}, {}),
        ("sts", {"instruction": "Compare."}, {"text": "Compare: "}),
        ("sts", {"prompts": {"query": "same: "}}, {"text": "same: "}),
        ("retrieval", {"instruction": "Find."}, {"query": "Find: ", "document": "Find: "}),
        (
            "retrieval",
            {"instruction": {"query": "Find.", "document": ""}},
            {"query": "Find: ", "document": ""},
        ),
        (
            "reranking",
            {"instruction": "Find.", "prompts": {"query": "q: ", "document": "d: "}},
            {"query": "q: ", "document": "d: "},
        ),
    ],
)
def test_prompts_are_literal_and_win_over_instructions(
    tmp_path: Path, type_: str, settings: dict[str, Any], expected: dict[str, str]
) -> None:
    (task,) = read_task_folders(write_task(tmp_path / "mine", type_, **settings))
    assert vars(type(task))["own_prompts"] == expected


def replace_line(file: str, line: int, content: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        lines = (folder / file).read_text().splitlines()
        lines[line - 1 : line] = [content]
        (folder / file).write_text("\n".join(lines) + "\n")

    return spoil


def write(file: str, content: bytes) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / file).write_bytes(content)

    return spoil


def without(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def every(file: str, **values: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        rows = [json.loads(line) for line in (folder / file).read_text().splitlines()]
        write_json_lines(folder / file, [row | values for row in rows])

    return spoil


ROW = {"query": "q", "positive": ["a"], "negative": ["b"]}
BROKEN = [
    ("sts", without("test.jsonl"), r"test\.jsonl: no such file"),
    ("sts", write("test.jsonl", b""), r"test\.jsonl: the file has no rows"),
    ("sts", replace_line("test.jsonl", 3, "{oops"), r"test\.jsonl, line 3: not valid JSON"),
    ("sts", replace_line("test.jsonl", 2, "[1]"), r"test\.jsonl, line 2: expected a JSON object"),
    ("sts", write("test.jsonl", b'{"sentence1": "\xff"}'), r"test\.jsonl, line 1: not UTF-8"),
    (
        "sts",
        replace_line("test.jsonl", 2, '{"sentence1": "a", "score": 1}'),
        r"test\.jsonl, line 2: sentence2 is missing; the line holds sentence1, score",
    ),
    (
        "sts",
        replace_line("test.jsonl", 2, '{"sentence1": " ", "sentence2": "b", "score": 1}'),
        r"test\.jsonl, line 2: sentence1 is empty",
    ),
    (
        "sts",
        every("test.jsonl", score="5"),
        r"test\.jsonl, line 1: score must be a number \(got '5'\)",
    ),
    ("sts", every("test.jsonl", score=float("nan")), r"test\.jsonl, line 1: score must be finite"),
    ("sts", every("test.jsonl", score=3), r"test\.jsonl: every score is the same"),
    (
        "pair_classification",
        every("test.jsonl", label=2),
        r"test\.jsonl, line 1: label must be 0 or 1",
    ),
    ("pair_classification", every("test.jsonl", label=1), r"test\.jsonl: every label is 1"),
    (
        "retrieval",
        replace_line("qrels.tsv", 1, "q0\td0\t1"),
        r"qrels\.tsv, line 2: query-id .* header holds q0, d0, 1",
    ),
    (
        "retrieval",
        replace_line("qrels.tsv", 3, "q9\td0\t1"),
        r"qrels\.tsv, line 3: the query 'q9' is",
    ),
    (
        "retrieval",
        replace_line("qrels.tsv", 3, "q0\td99\t1"),
        r"qrels\.tsv, line 3: the document 'd99'",
    ),
    (
        "retrieval",
        replace_line("qrels.tsv", 3, "q0 d0 1"),
        r"qrels\.tsv, line 3: 1 values under 3 column",
    ),
    (
        "retrieval",
        replace_line("qrels.tsv", 3, "q0\td0\tyes"),
        r"qrels\.tsv, line 3: score must be a wh",
    ),
    (
        "retrieval",
        replace_line("qrels.tsv", 3, "q0\td0\tinf"),
        r"qrels\.tsv, line 3: score must be a wh",
    ),
    (
        "retrieval",
        write("qrels.tsv", b"query-id\tcorpus-id\tscore\n"),
        r"qrels\.tsv: the file has no rows",
    ),
    ("retrieval", every("corpus.jsonl", _id="d0"), r"corpus\.jsonl, line 2: _id 'd0' stands twice"),
    ("retrieval", every("corpus.jsonl", title=7), r"corpus\.jsonl, line 1: title must be a string"),
    ("retrieval", without("corpus.jsonl"), r"corpus\.jsonl: no such file"),
    (
        "reranking",
        write("test.jsonl", json.dumps(ROW | {"negative": ["a"]}).encode()),
        r"test\.jsonl, line 1: 'a' is both positive and negative",
    ),
    (
        "reranking",
        every("test.jsonl", negative=[]),
        r"test\.jsonl, line 1: negative must be a list that",
    ),
    (
        "reranking",
        every("test.jsonl", positive="a"),
        r"test\.jsonl, line 1: positive must be a list",
    ),
    ("classification", without("train.jsonl"), r"train\.jsonl: no such file"),
    ("classification", every("train.jsonl", label="x"), r"train\.jsonl: at least two labels"),
    (
        "classification",
        replace_line("train.jsonl", 4, '{"text": "a", "label": "anmals"}'),
        r"train\.jsonl, line 4: the label 'anmals' has one example",
    ),
    (
        "classification",
        replace_line("test.jsonl", 4, '{"text": "a", "label": "plants"}'),
        r"test\.jsonl, line 4: the label 'plants' is not in train\.jsonl",
    ),
    ("clustering", every("test.jsonl", label="x"), r"test\.jsonl: at least two labels"),
    (
        "clustering",
        every("test.jsonl", label=None),
        r"test\.jsonl, line 1: label must be a string or",
    ),
    (
        "clustering",
        replace_line("test.jsonl", 2, '{"text": "a", "label": 1}'),
        r"test\.jsonl, line 2: label 1: strings and numbers are mixed",
    ),
    ("summarization", every("test.jsonl", relevance=[1]), r"3 machine_summaries but 1 relevance"),
    ("summarization", every("test.jsonl", relevance=[1, 1, 1]), r"every relevance is the same"),
    ("sts", write("task.json", b'{"type": "similarity"}'), r"task\.json: type must be one of .*'s"),
    ("sts", write("task.json", b'{"licence": "x"}'), r"task\.json: type must be one of .*None"),
    ("sts", write("task.json", b"{\n type}"), r"task\.json, line 2: not valid JSON"),
    ("sts", write("task.json", b"[]"), r"task\.json: must be a JSON object"),
    (
        "sts",
        write("task.json", b'{"type": "sts", "prompts": {"passage": "p"}}'),
        r"task\.json: prompts: write a string, or an object of query and document",
    ),
    (
        "sts",
        write("task.json", b'{"type": "sts", "instruction": {"query": 1}}'),
        r"task\.json: instruction: query and document must be strings",
    ),
    ("sts", without("task.json"), r"mine: task\.json is missing"),
]


@pytest.mark.parametrize(("type_", "spoil", "message"), BROKEN)
def test_a_broken_folder_is_refused_with_file_and_line(
    tmp_path: Path, type_: str, spoil: Callable[[Path], None], message: str
) -> None:
    folder = write_task(tmp_path / "mine", type_)
    read_task_folders(tmp_path)
    spoil(folder)
    with pytest.raises(DataError, match=message):
        read_task_folders(tmp_path)


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no task\.json, neither here nor in the folders below"):
        read_task_folders(tmp_path)
    with pytest.raises(DataError, match="absent: no such folder"):
        read_task_folders(tmp_path / "absent")


def test_numbers_serve_as_labels_and_as_ids(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", "clustering")
    numbered = [row | {"label": int(row["label"] == "money")} for row in LABELLED]
    write_json_lines(folder / "test.jsonl", numbered)
    (task,) = read_task_folders(folder)
    assert task.dataset is not None
    assert set(vars(type(task))["dataset"]["test"][0]["labels"]) == {0, 1}
    folder = write_task(tmp_path / "found", "retrieval")
    rows = [{"_id": number, "text": text} for number, text in enumerate(ANIMALS)]
    write_json_lines(folder / "corpus.jsonl", rows)
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq0\t0\t1.0\n")
    (task,) = read_task_folders(folder)
    relevant = vars(type(task))["dataset"]["default"]["test"]["relevant_docs"]
    assert relevant == {"q0": {"0": 1}}
