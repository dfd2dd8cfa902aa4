"""Results that mteb's own ``ResultCache`` loads."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import mteb
import pytest
from mteb.cache import ResultCache
from mteb.models.model_meta import ScoringFunction
from mteb.results import BenchmarkResults, ModelResult
from sentence_transformers import SentenceTransformer
from support.encoders import Encoder
from support.mteb_tasks import mean_of, two_sts_tasks

import embedkit
from embedkit.errors import UserError
from embedkit.evaluation.encoding.encoders import Truncated
from embedkit.evaluation.mteb.instructions import Instructions
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.mteb.task_selection import leaves, select_tasks
from embedkit.models.settings import Similarity


def loaded(output: Path) -> BenchmarkResults:
    return ResultCache(output / "mteb").load_results()


def only(output: Path) -> ModelResult:
    (result,) = loaded(output).model_results
    return result


def scores_of(result: ModelResult) -> dict[str, float]:
    return {each.task_name: each.get_score() for each in result.task_results}


def test_mteb_loads_one_model_with_all_tasks_and_the_same_scores(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    parts = two_sts_tasks(tmp_path / "tasks")
    encoder = Encoder(minilm_model, "starter", {"query": "q: "})
    evaluate(encoder, parts[:1], tmp_path)
    summary = evaluate(encoder, [*parts, mean_of("Both", parts)], tmp_path)
    result = only(tmp_path)
    assert result.model_name == "embedkit/starter"
    expected = {name: score.score for name, score in summary.scores.items()}
    assert scores_of(result) == pytest.approx(expected, abs=1e-6)
    assert {each.mteb_version for each in result.task_results} == {mteb.__version__}
    folder = tmp_path / "mteb/results/embedkit__starter" / str(result.model_revision)
    settings = [json.loads(line) for line in (folder / "run_settings.jsonl").open()]
    by_task = {line["task"]: line["encode_kwargs"] for line in settings}
    assert by_task["animals"]["prompts"] == {"text": ""}
    assert by_task.keys() == summary.scores.keys()
    # Numbers that are not numbers are no JSON, which other programs refuse.
    json.loads((folder / "Both.json").read_text(), parse_constant=pytest.fail)


def test_the_meta_says_what_the_model_is_and_keeps_what_a_user_adds(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    tasks, encoder = two_sts_tasks(tmp_path / "tasks"), Encoder(minilm_model, "owner/model")
    evaluate(encoder, tasks[:1], tmp_path)
    (path,) = tmp_path.glob("mteb/results/owner__model/*/model_meta.json")
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written | {"license": "mit", "release_date": "2025-01-31"}))
    evaluate(encoder, tasks, tmp_path)
    meta = only(tmp_path).model_meta
    assert meta is not None
    assert (meta.name, meta.revision) == ("owner/model", path.parent.name)
    assert (meta.n_parameters, meta.embed_dim, meta.max_tokens) == (22_713_216, 384, 256)
    assert meta.memory_usage_mb == 87
    assert meta.similarity_fn_name == ScoringFunction.COSINE
    assert meta.framework == ["Sentence Transformers", "PyTorch"]
    assert (meta.license, meta.release_date) == ("mit", "2025-01-31")
    assert written["release_date"][:2] == "20"
    assert not meta.use_instructions
    path.write_text(json.dumps(written | {"license": "my own"}))
    with pytest.raises(UserError, match="does not accept license = 'my own'"):
        evaluate(encoder, tasks, tmp_path)
    path.write_text("[]")
    with pytest.raises(UserError, match="is no JSON object; correct it, or delete the file"):
        evaluate(encoder, tasks, tmp_path)
    path.write_text("{")
    evaluate(encoder, tasks, tmp_path)
    assert only(tmp_path).model_meta is not None


def test_other_prompts_instructions_and_dimensions_are_other_revisions(
    tmp_path: Path, minilm_model: SentenceTransformer
) -> None:
    tasks = two_sts_tasks(tmp_path / "tasks")[:1]
    plain, prompted = (Encoder(minilm_model, "m", prompts) for prompts in ({}, {"STS": "Say: "}))
    scores = [
        evaluate(plain, tasks, tmp_path),
        evaluate(prompted, tasks, tmp_path),
        evaluate(plain, tasks, tmp_path, instructions=Instructions({"another": "Read: "})),
        evaluate(Truncated(plain, 8), tasks, tmp_path),
    ]
    found = [scores_of(result)["animals"] for result in loaded(tmp_path).model_results]
    expected = [summary.scores["animals"].score for summary in scores]
    assert sorted(found) == pytest.approx(sorted(expected))
    assert len(set(expected)) == 3


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_the_meta_names_any_similarity_in_a_second_call_too(
    tmp_path: Path, minilm_model: SentenceTransformer, similarity: Similarity
) -> None:
    tasks, encoder = two_sts_tasks(tmp_path / "tasks"), Encoder(minilm_model, "m")
    encoder.facts = replace(encoder.facts, similarity=similarity)
    for task in tasks:
        assert not evaluate(encoder, [task], tmp_path).failed
    meta = only(tmp_path).model_meta
    assert meta is not None
    assert meta.similarity_fn_name == similarity
    assert len(only(tmp_path).task_results) == 2


@pytest.mark.slow
def test_the_aggregate_of_cqadupstack_is_loaded_with_its_parts(
    mirror: Path, tiny_model: Path, tmp_path: Path
) -> None:
    names = ["CQADupstackRetrieval", "STS12", "Banking77Classification"]
    parts = [part for task in select_tasks(tasks=names) for part in leaves(task)]
    for part in parts:
        source = mirror / str(part.metadata.dataset["path"])
        like = source if source.is_dir() else mirror / "mteb/cqadupstack-gaming"
        shutil.copytree(like, tmp_path / "mirror" / str(part.metadata.dataset["path"]))
    summary = embedkit.evaluate(
        tiny_model, names, tmp_path / "out", data_dir=tmp_path / "mirror", dtype="fp32"
    )
    result = only(tmp_path / "out")
    found = scores_of(result)
    assert len(found) == 12 + 3
    assert {name: found[name] for name in names} == pytest.approx(
        {name: score.score for name, score in summary.scores.items()}, abs=1e-6
    )
    tasks = mteb.get_tasks(tasks=names)
    frame = BenchmarkResults(model_results=[result]).select_tasks(tasks).to_dataframe()
    assert set(frame["task_name"]) == set(names)
