from contextlib import suppress
from pathlib import Path
from typing import Any

import mteb
import pytest
from embedkit_cli.app import app
from support.counting_encoder import Counting
from support.mirrors import ONE_OF_EACH_TYPE
from support.task_folders import DOCUMENTS, QUERIES, write_task
from typer.testing import CliRunner

from embedkit.errors import DataError, UserError
from embedkit.evaluation.encoding.encoders import CachedEncoder
from embedkit.evaluation.encoding.vector_cache import VectorCache
from embedkit.evaluation.mteb import speed
from embedkit.evaluation.mteb.estimate import estimate
from embedkit.evaluation.mteb.instructions import Instructions, sides_of
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.mteb.task_selection import leaves, select_tasks
from embedkit.evaluation.mteb.text_statistics import published
from embedkit.evaluation.task_folders.reading import read_task_folders
from embedkit.models import hub
from embedkit.tokens.prompts import benchmark_prompts
from embedkit.tokens.tokenizer import Tokenize


@pytest.fixture(autouse=True)
def _short_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_SECONDS", 0.05)


@pytest.mark.slow
def test_an_estimate_counts_what_is_then_encoded(
    mirror: Path, tiny_model: Path, tmp_path: Path
) -> None:
    tasks = select_tasks(tasks=list(ONE_OF_EACH_TYPE))
    prompts = benchmark_prompts()
    embedder = hub.load(str(tiny_model))
    found = estimate(embedder, tasks, instructions=Instructions(prompts), data_dir=mirror)
    inner, count = Counting(), {}
    encoder = CachedEncoder(inner, VectorCache(tmp_path / "vectors", 10**6))
    for task in tasks:
        inner.rounds.clear()
        evaluate(
            encoder, [task], tmp_path / "out", instructions=Instructions(prompts), data_dir=mirror
        )
        count[task.metadata.name] = sum(len(texts) for texts in inner.rounds)
    assert {each.name: each.new for each in found.tasks} == count
    # The two STS tasks have one instruction and the same rows.
    assert count["STS17"] == 0
    assert count["STS12"] > 0
    assert found.tokens_per_second > 0
    assert not found.unknown


def test_tokens_are_those_behind_the_prompt(tmp_path: Path, tiny_model: Path) -> None:
    (task,) = read_task_folders(write_task(tmp_path / "mine", "sts", instruction="Compare."))
    embedder = hub.load(str(tiny_model))
    found = estimate(embedder, [task])
    assert task.dataset is not None
    rows = task.dataset["test"]
    texts = sorted({*rows["sentence1"], *rows["sentence2"]})
    expected = Tokenize(embedder.tokenizer)(texts, "Compare: ", embedder.max_tokens).num_tokens
    (mine,) = found.tasks
    assert (mine.texts, mine.unique, mine.tokens) == (12, len(texts), expected)
    assert found.seconds == pytest.approx(expected / found.tokens_per_second)


def test_a_search_is_told_apart_from_encoding(tmp_path: Path, tiny_model: Path) -> None:
    for type_ in ("retrieval", "reranking"):
        write_task(tmp_path / type_, type_)
    tasks = read_task_folders(tmp_path)
    found = estimate(hub.load(str(tiny_model)), tasks)
    pairs = len(QUERIES) * len(DOCUMENTS)
    assert {task.name: task.pairs for task in found.tasks} == {"retrieval": pairs, "reranking": 0}
    assert found.search_seconds == pytest.approx(pairs / found.pairs_per_second)
    assert f"search: {pairs} pairs of a query and a document, 0.0 s" in found.text()


def test_each_part_of_a_task_is_a_search_of_its_own(tmp_path: Path, tiny_model: Path) -> None:
    (read,) = read_task_folders(write_task(tmp_path / "mine", "retrieval"))
    read.load_data()
    assert read.dataset is not None
    subset = read.hf_subsets[0]
    read.dataset[subset]["again"] = read.dataset[subset]["test"]
    read.metadata = read.metadata.model_copy(update={"eval_splits": ["test", "again"]})
    # Eight languages, each with queries and a corpus of its own.
    (known,) = select_tasks(tasks=["MintakaRetrieval"])
    statistics: Any = known.metadata.descriptive_stats
    of_subsets = statistics["test"]["hf_subset_descriptive_stats"]
    sizes = [
        [round(side["total_text_length"] / side["average_text_length"]) for side in sides]
        for sides in (
            (stats["queries_text_statistics"], stats["documents_text_statistics"])
            for stats in of_subsets.values()
        )
    ]
    found = estimate(hub.load(str(tiny_model)), [read, known])
    assert {task.name: task.pairs for task in found.tasks} == {
        "mine": 2 * len(QUERIES) * len(DOCUMENTS),
        "MintakaRetrieval": sum(queries * documents for queries, documents in sizes),
    }


def test_pairs_of_a_query_and_a_document_are_read_behind_the_prompts_of_sides() -> None:
    (task,) = select_tasks(tasks=["TERRa.V2"])
    assert [statistics.side for statistics in published(task)] == ["document", "query"]


@pytest.mark.slow
def test_every_task_of_mteb_is_counted_or_named() -> None:
    counted = 0
    for task in mteb.get_tasks(exclude_superseded=False):
        for part in leaves(task):
            with suppress(DataError):
                sides = {statistics.side for statistics in published(part)}
                assert sides <= {*sides_of(part)}, part.metadata.name
                counted += 1
    assert counted > 1_600


def test_a_task_whose_statistics_are_incomplete_is_named() -> None:
    # They are of all subsets together, and each has a corpus of its own.
    (task,) = select_tasks(tasks=["BrowseCompPlusRetrieval"])
    with pytest.raises(DataError, match=r"BrowseCompPlusRetrieval: .* lack 'hf_subset_desc"):
        published(task)


@pytest.mark.slow
def test_without_the_data_mtebs_counts_are_taken(tiny_model: Path) -> None:
    names = ["STS12", "CQADupstackRetrieval", "MindSmallReranking", "SummEval", "STS17"]
    found = estimate(hub.load(str(tiny_model)), select_tasks(tasks=names))
    tasks = {each.name: each for each in found.tasks}
    assert len(tasks) == 12 + 4
    assert not any(each.read for each in found.tasks)
    assert (tasks["STS12"].texts, tasks["STS12"].unique) == (6216, 5033)
    assert (tasks["MindSmallReranking"].texts, tasks["MindSmallReranking"].unique) == (
        2367791,
        42439,
    )
    # A hundred texts with eleven summaries by people and sixteen by machines.
    assert tasks["SummEval"].texts == 2700
    # Only the pairs of English with English.
    assert tasks["STS17"].texts == 500
    assert "published by mteb" in found.text()


def test_a_corpus_that_two_tasks_search_is_counted_once(tiny_model: Path) -> None:
    model, tasks = hub.load(str(tiny_model)), select_tasks(tasks=["FEVER", "ClimateFEVER"])
    counts = {each.name: each for each in estimate(model, tasks).tasks}
    # 1,535 queries, and 25 documents more than FEVER has.
    assert counts["ClimateFEVER"].unique == 5_416_593 + 1535
    assert counts["ClimateFEVER"].new == 25 + 1535
    assert counts["ClimateFEVER"].tokens < counts["FEVER"].tokens / 1000
    # Behind prompts of their own, neither task has vectors that serve the other.
    prompts = Instructions({"FEVER": "claim: ", "ClimateFEVER": "climate: "})
    apart = estimate(model, tasks, prompts).tasks
    assert [each.new for each in apart] == [each.unique for each in apart]


def test_a_task_that_mteb_publishes_no_counts_of_is_named() -> None:
    (whole,) = select_tasks(tasks=["CQADupstackRetrieval"])
    with pytest.raises(DataError, match="CQADupstackRetrieval: mteb publishes no statistics"):
        published(whole)


@pytest.mark.usefixtures("native_bf16")
def test_the_command_prints_the_estimate_and_writes_nothing(
    mirror: Path, tiny_model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    words = ["eval-mteb", "--model", str(tiny_model), "--tasks", "STS12", "--estimate"]
    words += ["--data-dir", str(mirror), "--output", str(output)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "tokens/s" in result.output
    assert not output.exists()


@pytest.mark.usefixtures("native_bf16")
def test_an_estimate_is_printed_once_however_many_devices_there_are(
    mirror: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["eval-mteb", "--model", str(tiny_model), "--tasks", "STS12", "--estimate"]
    words += ["--data-dir", str(mirror)]
    # It would start torchrun, whose every rank prints.
    monkeypatch.setattr("torch.distributed.run.main", lambda _: pytest.fail("started torchrun"))
    alone = CliRunner().invoke(app, [*words, "--devices", "2"], catch_exceptions=False)
    assert alone.output.count("tokens/s") == 1
    monkeypatch.setenv("RANK", "1")
    other = CliRunner().invoke(app, words, catch_exceptions=False)
    assert (other.exit_code, other.output) == (0, "")


def test_tasks_without_any_estimate_are_refused_with_the_reasons(tiny_model: Path) -> None:
    model, tasks = hub.load(str(tiny_model)), select_tasks(tasks=["Tatoeba"])
    with pytest.raises(UserError, match=r"no task has texts to count\nTatoeba: .*statistics"):
        estimate(model, tasks)
