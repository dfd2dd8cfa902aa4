import json
from collections.abc import Sequence
from pathlib import Path

import mteb
import numpy as np
import pytest
from mteb.cache import ResultCache
from sentence_transformers import SentenceTransformer
from support.encoders import Encoder
from support.mteb_tasks import mean_of, two_sts_tasks
from support.task_folders import ANIMALS, MONEY, TYPES, write_json_lines, write_task
from tqdm.auto import tqdm

from embedkit.errors import UserError
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.summary import EvaluationInterrupted, Summary
from embedkit.evaluation.task_folders.reading import read_task_folders


class Stumbling(Encoder):
    """Fails on texts that hold a word, until it is mended."""

    trouble: BaseException | None = None
    word = "bank"

    def encode(self, texts: Sequence[str], *, prompt: str = "") -> np.ndarray:
        if self.trouble and any(self.word in text for text in texts):
            raise self.trouble
        return super().encode(texts, prompt=prompt)


def test_plain_mteb_gives_a_random_model_anothers_score_and_embedkit_does_not(
    tmp_path: Path, minilm_model: SentenceTransformer, noise_model: SentenceTransformer
) -> None:
    (task,) = read_task_folders(write_task(tmp_path / "mine", "retrieval"))
    # The trap: both models are loaded from folders, so both have the name that mteb gives to all.
    cache = ResultCache(tmp_path / "plain")
    first, second = (
        mteb.evaluate(model, task, cache=cache).task_results[0].main_score
        for model in (minilm_model, noise_model)
    )
    assert first == pytest.approx(second, abs=1e-6)
    minilm, noise = (
        evaluate(Encoder(model, "model"), [task], tmp_path / "own").scores["mine"].score
        for model in (minilm_model, noise_model)
    )
    assert minilm == pytest.approx(first, abs=1e-6)
    assert noise < minilm - 0.3
    alone = evaluate(Encoder(noise_model, "model"), [task], tmp_path / "alone")
    assert alone.scores["mine"].score == noise


def test_a_second_run_scores_only_what_is_missing(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    tasks = two_sts_tasks(tmp_path / "tasks")
    first, second = Encoder(minilm_model, "m"), Encoder(minilm_model, "m")
    evaluate(first, tasks[:1], tmp_path / "out")
    whole = evaluate(second, tasks, tmp_path / "out")
    assert {text for _, texts in first.calls for text in texts} <= set(ANIMALS)
    assert {text for _, texts in second.calls for text in texts} <= set(MONEY)
    assert whole.coverage == "2 of 2 tasks"
    assert evaluate(first, tasks, tmp_path / "out") == whole
    assert not first.calls[2:]
    assert Summary.read(tmp_path / "out" / "summary.json") == whole


def test_a_score_says_with_which_mteb_and_precision_it_was_measured(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    encoder, parts = Encoder(minilm_model, "m"), two_sts_tasks(tmp_path / "tasks")
    evaluate(encoder, parts[:1], tmp_path / "out", dtype="float16")
    (kept,) = (tmp_path / "out" / "results").rglob("animals.json")
    kept.write_text(kept.read_text().replace(mteb.__version__, "2.0.0"))
    tasks = [*parts, mean_of("Both", parts)]
    scores = evaluate(encoder, tasks, tmp_path / "out", dtype="float16").scores
    assert {score.dtype for score in scores.values()} == {"float16"}
    assert scores["money"].mteb_version == mteb.__version__
    # The score was kept from an earlier version's run.
    assert scores["animals"].mteb_version == "2.0.0"
    assert scores["Both"].mteb_version == f"2.0.0, {mteb.__version__}"


def test_changed_data_is_scored_anew(tmp_path: Path, minilm_model: SentenceTransformer) -> None:
    encoder = Encoder(minilm_model, "m")
    folder = write_task(tmp_path / "mine", "sts")
    before = evaluate(encoder, read_task_folders(folder), tmp_path / "out").scores["mine"]
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    write_json_lines(folder / "test.jsonl", [row | {"score": -row["score"]} for row in rows])
    after = evaluate(encoder, read_task_folders(folder), tmp_path / "out").scores["mine"]
    assert after.score == pytest.approx(-before.score)
    assert after.revision != before.revision


def test_a_changed_prompt_is_scored_anew(tmp_path: Path, minilm_model: SentenceTransformer) -> None:
    encoder = Encoder(minilm_model, "m")
    tasks = read_task_folders(write_task(tmp_path / "mine", "sts"))
    for prompt in ("", "Compare: ", ""):
        encoder.prompts = {"STS": prompt}
        summary = evaluate(encoder, tasks, tmp_path / "out")
        assert summary.scores["mine"].prompts == {"text": prompt}
    assert [prompt for prompt, _ in encoder.calls] == ["", "", "Compare: ", "Compare: "]


def test_a_failing_task_is_reported_and_the_others_are_scored(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    encoder = Stumbling(minilm_model, "m")
    encoder.trouble = RuntimeError("out of luck\nand of memory")
    tasks = two_sts_tasks(tmp_path / "tasks")[::-1]
    summary = evaluate(encoder, tasks, tmp_path / "out")
    assert summary.failed == {"money": "RuntimeError: out of luck"}
    assert list(summary.scores) == ["animals"]
    assert "missing: money: RuntimeError: out of luck" in summary.text()
    encoder.trouble = None
    assert evaluate(encoder, tasks, tmp_path / "out").coverage == "2 of 2 tasks"


def test_an_interruption_keeps_the_finished_tasks(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    encoder = Stumbling(minilm_model, "m")
    encoder.trouble = KeyboardInterrupt()
    tasks = two_sts_tasks(tmp_path / "tasks")
    with pytest.raises(EvaluationInterrupted) as stopped:
        evaluate(encoder, tasks, tmp_path / "out")
    assert stopped.value.summary.coverage == "1 of 2 tasks"
    assert "missing: money: not run" in stopped.value.summary.text()
    assert Summary.read(tmp_path / "out" / "summary.json") == stopped.value.summary
    encoder.trouble, encoder.calls = None, []
    evaluate(encoder, tasks, tmp_path / "out")
    assert {text for _, texts in encoder.calls for text in texts} <= set(MONEY)


def test_an_evaluation_stops_between_tasks_when_asked(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    encoder, tasks = Encoder(minilm_model, "m"), two_sts_tasks(tmp_path / "tasks")
    stopped = evaluate(encoder, tasks, tmp_path / "out", stop=lambda: bool(encoder.calls))
    assert list(stopped.scores) == ["animals"]
    assert stopped.missing == ["money"]
    assert not stopped.failed


def test_a_summary_keeps_the_other_tasks_of_the_same_model_and_prompts(
    tmp_path: Path, minilm_model: SentenceTransformer, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder, tasks = Stumbling(minilm_model, "m"), two_sts_tasks(tmp_path / "tasks")
    encoder.trouble = RuntimeError("out of luck")
    file = tmp_path / "summary.json"
    evaluate(encoder, tasks[1:], tmp_path)
    assert list(Summary.read(file).failed) == ["money"]
    second = evaluate(encoder, tasks[:1], tmp_path)
    # The table has what was asked for, and the file all there is.
    assert list(second.tasks) == ["animals"]
    assert Summary.read(file).tasks == {"money": "STS", "animals": "STS"}
    assert Summary.read(file).failed == {"money": "RuntimeError: out of luck"}
    encoder.trouble = None
    evaluate(encoder, tasks[1:], tmp_path)
    assert Summary.read(file).coverage == "2 of 2 tasks"
    assert not Summary.read(file).failed
    assert "is replaced" not in capsys.readouterr().err
    encoder.prompts = {"STS": "Compare: "}
    evaluate(encoder, tasks[1:], tmp_path)
    assert list(Summary.read(file).tasks) == ["money"]
    assert "note: " in (remark := capsys.readouterr().err)
    assert "had the scores of m (float32)" in remark


def test_a_file_of_someone_else_is_not_replaced(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    tasks = two_sts_tasks(tmp_path / "tasks")
    (tmp_path / "summary.json").write_text('{"mine": 1}')
    with pytest.raises(
        UserError, match=r"summary\.json: is no summary of this version of embedkit; choose another"
    ):
        evaluate(Encoder(minilm_model, "m"), tasks, tmp_path)
    assert (tmp_path / "summary.json").read_text() == '{"mine": 1}'


def test_a_result_that_was_cut_short_is_scored_anew(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    encoder = Encoder(minilm_model, "m")
    tasks = read_task_folders(write_task(tmp_path / "mine", "sts"))
    whole = evaluate(encoder, tasks, tmp_path / "out")
    (kept,) = (tmp_path / "out" / "results").rglob("mine.json")
    kept.write_text(kept.read_text()[:100])
    again = evaluate(encoder, tasks, tmp_path / "out")
    assert again.scores["mine"].score == whole.scores["mine"].score
    assert len(encoder.calls) == 4


def test_an_aggregate_is_scored_once_its_failing_part_is_mended(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    encoder = Stumbling(minilm_model, "m")
    encoder.trouble = RuntimeError("out of luck")
    parts = two_sts_tasks(tmp_path / "tasks")
    broken = evaluate(encoder, [mean_of("Both", parts)], tmp_path / "out")
    assert broken.failed == {"Both": "RuntimeError: money: RuntimeError: out of luck"}
    encoder.trouble, encoder.calls = None, []
    mended = evaluate(encoder, [mean_of("Both", parts)], tmp_path / "out").scores["Both"]
    assert {text for _, texts in encoder.calls for text in texts} <= set(MONEY)
    assert set(mended.parts) == {"animals", "money"}
    assert mended.score == pytest.approx(sum(mended.parts.values()) / 2)


def test_nothing_but_a_line_for_each_task_is_printed(
    tmp_path: Path, minilm_model: SentenceTransformer, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in TYPES:
        write_task(tmp_path / "tasks" / name, name)
    tasks = read_task_folders(tmp_path / "tasks")
    capfd.readouterr()
    summary = evaluate(Encoder(minilm_model, "m"), tasks, tmp_path / "out")
    printed = capfd.readouterr()
    assert printed.out == ""
    names = [task.metadata.name for task in tasks]
    assert printed.err.splitlines() == [f"{name}: {summary.outcome(name)}" for name in names]
    # Afterwards, bars are shown as before.
    list(tqdm([1], desc="mine"))
    assert "mine" in capfd.readouterr().err


@pytest.mark.slow
def test_equal_texts_are_encoded_once(tmp_path: Path, minilm_model: SentenceTransformer) -> None:
    encoder = Encoder(minilm_model, "m")
    (task,) = read_task_folders(write_task(tmp_path / "mine", "reranking"))
    folder = tmp_path / "repeated"
    write_task(folder, "reranking")
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    write_json_lines(folder / "test.jsonl", rows * 5)
    (repeated,) = read_task_folders(folder)
    summary = evaluate(encoder, [task, repeated], tmp_path / "out")
    once, many = encoder.calls[:2], encoder.calls[2:]
    assert once == many
    assert summary.scores["mine"].score == pytest.approx(summary.scores["repeated"].score)


def test_prompts_reach_the_texts_of_their_side(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    prompts = {"query": "q: ", "document": "d: "}
    encoder = Encoder(minilm_model, "m", prompts)
    tasks = read_task_folders(write_task(tmp_path / "mine", "retrieval"))
    summary = evaluate(encoder, tasks, tmp_path / "out")
    assert summary.scores["mine"].prompts == prompts
    texts = {prompt: texts for prompt, texts in encoder.calls}
    assert "where does the cat rest" in texts["q: "]
    # A title stands before its text, as in mteb's own corpora.
    assert f"Cats {ANIMALS[0]}" in texts["d: "]


def test_no_task_at_all_is_refused(tmp_path: Path, minilm_model: SentenceTransformer) -> None:
    with pytest.raises(UserError, match="no task to evaluate on"):
        evaluate(Encoder(minilm_model, "m"), [], tmp_path)
