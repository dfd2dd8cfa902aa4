import csv
import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from embedkit_cli.app import main
from sentence_transformers import SentenceTransformer
from support.contextual_tasks import tiny_contextual
from support.encoders import Encoder
from support.mteb_tasks import mean_of
from support.task_folders import DOCUMENTS, QUERIES, write_task

from embedkit.errors import UserError
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.failures.changes import Failures, failures
from embedkit.evaluation.failures.formatting import format_failures
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.mteb.task_selection import select_tasks
from embedkit.evaluation.summary import Summary
from embedkit.evaluation.task_folders.reading import read_task_folders


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
    minilm_model: SentenceTransformer,
    noise_model: SentenceTransformer,
) -> Path:
    """Evaluations of a random model and of MiniLM on tasks of three types."""
    folder = tmp_path_factory.mktemp("failures")
    for type_ in ("retrieval", "reranking", "sts"):
        write_task(folder / "tasks" / f"my_{type_}", type_)
    tasks = read_task_folders(folder / "tasks")
    for name, model in (("noise", noise_model), ("minilm", minilm_model)):
        evaluate(Encoder(model, name), tasks, folder / name)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that has been moved as a whole, and may be changed."""
    return shutil.copytree(made, tmp_path / "moved")


def notes_of(found: Failures) -> tuple[str, ...]:
    """Return the notes but for that on the two models' length limits, which differ."""
    limits, *_ = (note for note in found.notes if "differ in the length limit of all" in note)
    return tuple(note for note in found.notes if note != limits)


def test_queries_won_have_their_texts_and_documents(folder: Path) -> None:
    found = failures(folder / "noise", folder / "minilm", limit=10)
    assert (found.first, found.second, notes_of(found)) == ("noise", "minilm", ())
    assert [task.task.task for task in found.tasks] == ["my_reranking", "my_retrieval"]
    retrieval = found.tasks[1]
    assert retrieval.won >= 2
    assert len(retrieval.changes) == retrieval.won + retrieval.lost
    for change in retrieval.changes:
        text, answer = QUERIES[change.key[3]]
        assert change.key[:3] == ("my_retrieval", "test", "default")
        assert change.query == text
        assert [document.id for document in change.relevant] == [answer]
        assert change.relevant[0].text == (
            f"Cats {DOCUMENTS[0]}" if answer == "d0" else DOCUMENTS[int(answer[1:])]
        )
        assert change.outcome == "won"
        before, after = change.ranks
        assert before is not None
        assert after is not None
        assert before > after
        assert len(change.front) == min(before - 1, 10)
        assert all(document.text for document in change.front)
    gains = [change.gain for change in retrieval.changes]
    assert gains == sorted(gains, reverse=True)


def test_the_other_way_round_what_was_won_is_lost(folder: Path) -> None:
    (won,) = failures(folder / "noise", folder / "minilm", task=["my_retrieval"]).tasks
    (lost,) = failures(folder / "minilm", folder / "noise", task=["my_retrieval"]).tasks
    assert (won.won, won.lost) == (lost.lost, lost.won)
    assert [change.key for change in lost.changes] == [change.key for change in won.changes]
    assert [change.front for change in lost.changes] == [change.front for change in won.changes]
    assert won.looks == {"won": lost.looks["lost"], "lost": {}}


def test_the_limit_shortens_the_list_and_not_the_counts(folder: Path) -> None:
    (whole,) = failures(folder / "noise", folder / "minilm", task=["my_retrieval"]).tasks
    (short,) = failures(folder / "noise", folder / "minilm", task=["my_retrieval"], limit=1).tasks
    assert short.changes == whole.changes[:1]
    assert (short.won, short.looks) == (whole.won, whole.looks)


@pytest.mark.parametrize("what", ["gone", "changed"])
def test_without_the_data_there_are_ids(what: str, folder: Path) -> None:
    if what == "gone":
        shutil.rmtree(folder / "tasks")
    else:
        with (folder / "tasks" / "my_retrieval" / "queries.jsonl").open("a") as file:
            file.write('{"_id": "q9", "text": "new"}\n')
    (task,) = (found := failures(folder / "noise", folder / "minilm", task=["my_retrieval"])).tasks
    reason = "no such folder" if what == "gone" else "the data have changed since they were"
    assert len(notes_of(found)) == 1
    assert notes_of(found)[0].startswith("my_retrieval: ids without texts, since its data cannot")
    assert reason in notes_of(found)[0]
    change = task.changes[0]
    assert (change.query, change.looks) == (None, ())
    assert change.front[0].id
    assert change.front[0].text is None
    assert "in front: d" in format_failures(found)


def test_every_format_has_the_queries(folder: Path) -> None:
    found = failures(folder / "noise", folder / "minilm", task=["my_retrieval"], limit=9)
    change = found.tasks[0].changes[0]
    text = format_failures(found)
    assert f"won: {change.key[3]}  {change.query}" in text
    assert f"score {change.scores[0]:.1f} -> {change.scores[1]:.1f}" in text
    first, *_ = rows = list(csv.DictReader(io.StringIO(format_failures(found, "csv"))))
    assert len(rows) == len(found.tasks[0].changes)
    assert (first["query"], first["query_text"]) == (change.key[3], change.query)
    assert json.loads(first["front"]) == [document.id for document in change.front]
    whole = json.loads(format_failures(found, "json"))
    assert whole["tasks"][0]["changes"][0]["query"] == change.query


def test_tasks_without_results_of_queries_are_named_and_refused_if_there_are_no_others(
    folder: Path,
) -> None:
    path = folder / "noise" / "summary.json"
    read = Summary.read(path)
    old = replace(read.scores["my_retrieval"], queries={})
    replace(read, scores={**read.scores, "my_retrieval": old}).write(path)
    found = failures(folder / "noise", folder / "minilm")
    assert [task.task.task for task in found.tasks] == ["my_reranking"]
    assert notes_of(found) == (
        "Left out, since some run has no results of the same single queries: my_retrieval",
    )
    with pytest.raises(UserError, match=r"noise, minilm: some run has no results of the same"):
        failures(folder / "noise", folder / "minilm", task=["my_retrieval"])


def test_tasks_without_queries_are_noted_and_refused_if_there_are_no_others(folder: Path) -> None:
    why = "only retrieval and reranking tasks have queries: my_sts"
    found = failures(folder / "noise", folder / "minilm", task=["my_sts", "my_reranking"])
    assert [task.task.task for task in found.tasks] == ["my_reranking"]
    assert notes_of(found) == (f"Left out, since {why}",)
    with pytest.raises(UserError, match=f"noise, minilm: {why}; score the same retrieval"):
        failures(folder / "noise", folder / "minilm", task=["my_sts"])


def test_two_runs_of_one_name_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="two runs are called noise: rename one's folder"):
        failures(folder / "noise", folder / "noise")


def test_an_unknown_task_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="--task other: both runs have scores of my_reranking"):
        failures(folder / "noise", folder / "minilm", task=["other"])


def test_the_command_prints_the_list(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["failures", str(folder / "noise"), str(folder / "minilm"), "--task", "my_retrieval"]
    monkeypatch.setattr(sys, "argv", ["embedkit", *words, "--limit", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    printed, errors = capsys.readouterr()
    assert "Map" not in errors
    assert printed.startswith("my_retrieval: ndcg_at_10 ")
    assert printed.count("    score ") == 1


def test_texts_of_mteb_s_tasks_come_from_the_mirror(
    tmp_path: Path,
    mirror: Path,
    minilm_model: SentenceTransformer,
    noise_model: SentenceTransformer,
) -> None:
    names = ["ArguAna", "AskUbuntuDupQuestions"]
    for name, model in (("noise", noise_model), ("minilm", minilm_model)):
        encoder = Encoder(model, name)
        evaluate(encoder, select_tasks(None, names), tmp_path / name, data_dir=mirror)
    found = failures(tmp_path / "noise", tmp_path / "minilm")
    assert [task.task.task for task in found.tasks] == names
    assert notes_of(found) == ()
    changes = [change for task in found.tasks for change in task.changes]
    assert changes
    for change in changes:
        assert change.query in {text for text, _ in QUERIES.values()}
        assert all(document.text for document in (*change.front, *change.relevant))
    moved = tmp_path / "moved"
    shutil.copytree(mirror / "mteb" / "arguana", moved / "mteb" / "arguana")
    again = failures(tmp_path / "noise", tmp_path / "minilm", task=names[:1], data_dir=moved)
    assert again.tasks == found.tasks[:1]
    lost = failures(tmp_path / "noise", tmp_path / "minilm", task=names[1:], data_dir=moved)
    assert "askubuntudupquestions" in notes_of(lost)[0].lower()


def test_the_parts_of_an_aggregate_have_texts_of_their_own(
    tmp_path: Path, minilm_model: SentenceTransformer, noise_model: SentenceTransformer
) -> None:
    for name in ("one", "two"):
        write_task(tmp_path / "tasks" / name, "retrieval")
    whole = mean_of("Both", read_task_folders(tmp_path / "tasks"), "Retrieval", "ndcg_at_10")
    for name, model in (("noise", noise_model), ("minilm", minilm_model)):
        evaluate(Encoder(model, name), [whole], tmp_path / name)
    (task,) = failures(tmp_path / "noise", tmp_path / "minilm", limit=20).tasks
    assert (task.task.task, task.task.queries) == ("Both", 8)
    assert {change.key[0] for change in task.changes} == {"one", "two"}
    assert all(change.query == QUERIES[change.key[3]][0] for change in task.changes)


def test_contextual_models_have_failures_too(
    folder: Path, minilm_model: SentenceTransformer
) -> None:
    encoder = ContextualEncoder(tiny_contextual())
    evaluate(encoder, read_task_folders(folder / "tasks"), folder / "contextual")
    found = failures(folder / "contextual", folder / "minilm", task=["my_retrieval"])
    (task,) = found.tasks
    assert task.won > 0
    assert all(change.query for change in task.changes)


def test_a_text_that_the_worse_model_cuts_looks_truncated(folder: Path) -> None:
    path = folder / "noise" / "summary.json"
    read = Summary.read(path)
    score = read.scores["my_retrieval"]
    (whole,) = failures(folder / "noise", folder / "minilm", task=["my_retrieval"]).tasks
    cut = {**read.scores, "my_retrieval": replace(score, max_tokens=3)}
    replace(read, scores=cut).write(path)
    (short,) = failures(folder / "noise", folder / "minilm", task=["my_retrieval"]).tasks
    assert "truncated" not in whole.looks["won"]
    assert short.looks["won"]["truncated"] == short.won
