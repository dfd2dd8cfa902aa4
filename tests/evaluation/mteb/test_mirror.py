"""mteb's own tasks over a mirror of hub repositories in the real schemas."""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from embedkit_cli.app import app
from mteb.abstasks.abstask import AbsTask
from scipy.stats import spearmanr
from support.mirrors import ONE_OF_EACH_TYPE
from typer.testing import CliRunner

import embedkit
from embedkit.errors import DataError, UserError
from embedkit.evaluation.mteb.mirror import check_mirror, with_local_data
from embedkit.evaluation.mteb.task_selection import leaves, select_tasks
from embedkit.evaluation.summary import TYPES, Summary
from embedkit.models import hub
from embedkit.tokens.prompts import benchmark_prompts

EMBEDKIT = str(Path(sys.executable).with_name("embedkit"))


def named(name: str) -> AbsTask:
    (task,) = select_tasks(tasks=[name])
    return task


def invoke(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def eval_mteb(mirror: Path, model: Path, output: Path, *words: object) -> Summary:
    given = ["eval-mteb", "--model", model, "--data-dir", mirror, "--output", output]
    invoke(*given, "--dtype", "fp32", *words)
    return Summary.read(output / "summary.json")


@pytest.mark.slow
def test_one_task_of_each_type_is_scored_from_a_mirror(
    mirror: Path, tiny_model: Path, tmp_path: Path
) -> None:
    choice = ("--instructions", "paper", "--tasks", *ONE_OF_EACH_TYPE)
    summary = eval_mteb(mirror, tiny_model, tmp_path / "out", *choice)
    assert {name: each.type for name, each in summary.scores.items()} == ONE_OF_EACH_TYPE
    assert tuple(summary.type_means) == TYPES
    assert summary.mean_over_types == pytest.approx(sum(summary.type_means.values()) / 7)
    scores = [each.score for each in summary.scores.values()]
    assert summary.mean_over_tasks == pytest.approx(sum(scores) / len(scores))
    assert summary.scores["ArguAna"].prompts.keys() == {"query", "document"}
    assert all(text for each in summary.scores.values() for text in each.prompts.values())
    # The hash of the contents, and not the revision that mteb asks the hub for.
    assert all(len(each.revision) == 64 for each in summary.scores.values())
    # These two have equal rows.
    revisions = [
        summary.scores[name].revision for name in ("ArguAna", "CQADupstackGamingRetrieval")
    ]
    assert revisions[0] == revisions[1]


def test_a_score_from_a_mirror_is_that_of_its_rows(
    mirror: Path, tiny_model: Path, tmp_path: Path
) -> None:
    choice = ("--tasks", "STS12", "--instructions", "paper")
    summary = eval_mteb(mirror, tiny_model, tmp_path / "out", *choice)
    rows = datasets.load_dataset(str(mirror / "mteb/sts12-sts"), split="test")
    prompt = benchmark_prompts()["STS12"]
    first, second = (
        hub.load(str(tiny_model)).encode(rows[column], prompt=prompt)
        for column in ("sentence1", "sentence2")
    )
    expected = spearmanr((first * second).sum(axis=1), rows["score"]).statistic
    assert summary.scores["STS12"].score == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_another_mirror_is_another_result(mirror: Path, tiny_model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(mirror, tmp_path / "mirror")
    repository = other / "mteb/sts12-sts"
    choice = (other, tiny_model, tmp_path / "out", "--tasks", "STS12")
    before = eval_mteb(*choice).scores["STS12"]
    assert eval_mteb(*choice).scores["STS12"] == before
    rows = gzip.decompress((repository / "test.jsonl.gz").read_bytes()).splitlines(keepends=True)
    swapped = [rows[0].replace(b"5.0", b"0.5"), *rows[1:]]
    (repository / "test.jsonl.gz").write_bytes(gzip.compress(b"".join(swapped)))
    after = eval_mteb(*choice).scores["STS12"]
    assert after.revision != before.revision
    assert after.score != before.score


def test_what_a_download_notes_beside_the_data_is_not_hashed(mirror: Path, tmp_path: Path) -> None:
    mirror = shutil.copytree(mirror, tmp_path / "mirror")
    before = with_local_data(named("STS12"), mirror).metadata.revision
    (mirror / "mteb/sts12-sts/.cache/huggingface/noted").write_text("today")
    assert with_local_data(named("STS12"), mirror).metadata.revision == before
    (mirror / "mteb/sts12-sts/README.md").write_text("changed")
    assert with_local_data(named("STS12"), mirror).metadata.revision != before


def test_the_hubs_own_cache_is_a_mirror(mirror: Path, tmp_path: Path) -> None:
    task = named("STS12")
    revision = task.metadata.revision
    snapshot = tmp_path / f"datasets--mteb--sts12-sts/snapshots/{revision}"
    blob = shutil.copy(mirror / "mteb/sts12-sts/test.jsonl.gz", tmp_path / "blob")
    snapshot.mkdir(parents=True)
    (snapshot / "test.jsonl.gz").symlink_to(blob)
    mirrored = with_local_data(task, tmp_path)
    mirrored.load_data()
    assert mirrored.dataset is not None
    assert len(mirrored.dataset["test"]) == 6
    assert task.metadata.revision == revision
    assert not task.data_loaded
    # mteb forgets what describes an object's data when it unloads them.
    own = mirrored.metadata.revision
    mirrored.unload_data()
    assert mirrored.metadata.revision == own


def test_the_folder_that_stands_for_the_hub_is_read_where_it_has_the_repository(
    mirror: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EMBEDKIT_HUB", str(mirror))
    expected = with_local_data(named("STS12"), mirror).metadata
    assert with_local_data(named("STS12"), None).metadata.dataset == expected.dataset
    # What lies nowhere else is read from the hub.
    assert with_local_data(named("STS13"), None) is named("STS13")
    # A mirror that is named is the only place.
    with pytest.raises(DataError, match="mteb/sts12-sts: no such folder"):
        with_local_data(named("STS12"), tmp_path)
    monkeypatch.delenv("EMBEDKIT_HUB")
    assert with_local_data(named("STS12"), None) is named("STS12")


def test_a_score_is_the_same_from_the_folder_that_stands_for_the_hub(
    mirror: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = eval_mteb(mirror, tiny_model, tmp_path / "named", "--tasks", "STS12")
    monkeypatch.setenv("EMBEDKIT_HUB", str(mirror))
    found = embedkit.evaluate(tiny_model, ["STS12"], tmp_path / "found", dtype="fp32")
    assert found.scores["STS12"].score == expected.scores["STS12"].score
    assert found.scores["STS12"].revision == expected.scores["STS12"].revision


def test_a_missing_repository_is_named_with_the_command_that_fetches_it(mirror: Path) -> None:
    with pytest.raises(DataError, match="mteb/sts13-sts: no such folder; hf download mteb/sts13"):
        with_local_data(named("STS13"), mirror)


def test_a_mirror_of_something_else_is_refused(mirror: Path, tmp_path: Path) -> None:
    check_mirror(mirror, [named("STS13"), named("STS12")])
    with pytest.raises(UserError, match=r"none of the 1 repositories .*\(mteb/sts12-sts\)"):
        check_mirror(tmp_path, [named("STS12")])
    with pytest.raises(UserError, match=r"data_dir: there is no folder \S+absent"):
        check_mirror(tmp_path / "absent", [named("STS12")])


def test_each_of_the_67_parts_has_a_repository_and_an_instruction() -> None:
    tasks = select_tasks("MTEB(eng, v1)")
    parts = [part for task in tasks for part in leaves(task)]
    repositories = {part.metadata.dataset["path"] for part in parts}
    assert len(parts) == len(repositories) == 67
    assert benchmark_prompts().keys() == {part.metadata.name for part in parts}


@pytest.mark.slow
def test_a_copied_cache_of_data_sets_serves_without_the_hub(
    mirror: Path, tiny_model: Path, tmp_path: Path
) -> None:
    prepared = tmp_path / "elsewhere"
    datasets.load_dataset(str(mirror / "mteb/sts12-sts"), cache_dir=str(prepared))
    (built,) = prepared.glob("*/*/0.0.0/*/")
    # What an online machine has under $HF_HOME/datasets once it has loaded the task.
    copied = tmp_path / "copied/mteb___sts12-sts/default/0.0.0" / named("STS12").metadata.revision
    shutil.copytree(built, copied)
    command = [EMBEDKIT, "eval-mteb", "--model", str(tiny_model)]
    command += ["--tasks", "STS12", "--dtype", "fp32", "--output", str(tmp_path / "out")]
    environment = os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "copied")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = Summary.read(tmp_path / "out/summary.json").scores["STS12"].score
    expected = eval_mteb(mirror, tiny_model, tmp_path / "mirrored", "--tasks", "STS12")
    assert found == expected.scores["STS12"].score


@pytest.mark.slow
def test_devices_share_the_encoding_and_one_writes(
    mirror: Path, tiny_model: Path, tmp_path: Path
) -> None:
    command = [EMBEDKIT, "eval-mteb", "--model", str(tiny_model)]
    command += ["--tasks", "STS12", "ArguAna", "--dtype", "fp32", "--data-dir", str(mirror)]
    command += ["--devices", "2", "--no-cache", "--output", str(tmp_path / "out")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("mean over tasks") == 1
    found = Summary.read(tmp_path / "out/summary.json")
    alone = eval_mteb(mirror, tiny_model, tmp_path / "alone", "--tasks", "STS12", "ArguAna")
    for name, each in alone.scores.items():
        assert found.scores[name].score == pytest.approx(each.score, abs=1e-6)
