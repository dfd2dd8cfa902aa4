from pathlib import Path

import pytest
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from support.summaries import summary_of, task_score

from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.manifests.sources import HubSource
from embedkit.evaluation.summary import Summary
from embedkit.finetuning.card_metadata import front_matter


def parsed(
    scores: Summary | None, base: str = "owner/base", manifests: tuple[Manifest, ...] = ()
) -> ModelCardData:
    metadata = front_matter("mine: a 'name'", base, scores, manifests)
    data = ModelCard(f"---\n{metadata}\n---\n\n# text\n").data
    assert isinstance(data, ModelCardData)
    return data


def test_the_hub_reads_the_scores_of_a_card() -> None:
    parts = {"CQADupstackAndroidRetrieval": 0.3, "CQADupstackEnglishRetrieval": 0.5}
    datasets = dict(
        zip(parts, ("mteb/cqadupstack-android", "mteb/cqadupstack-english"), strict=True)
    )
    scores = {
        "STS13": task_score(
            "STS13", "STS", 0.6, datasets={"STS13": "mteb/sts13"}, folders={"STS13": "/mirror"}
        ),
        "STS12": task_score("STS12", "STS", 0.731234567, datasets={"STS12": "mteb/sts12-sts"}),
        "own": task_score("own", "STS", 0.5, datasets={"own": "own"}),
        "CQADupstackRetrieval": task_score(
            "CQADupstackRetrieval", "Retrieval", 0.4, parts=parts, datasets=datasets
        ),
    }
    data = parsed(summary_of(scores, failed={"BIOSSES": "OSError"}))
    assert data.model_name == "mine: a 'name'"
    assert data.eval_results is not None
    found = {result.dataset_name: result for result in data.eval_results}
    assert found["MTEB STS12"] == EvalResult(
        task_type="STS",
        dataset_type="mteb/sts12-sts",
        dataset_name="MTEB STS12",
        dataset_split="test",
        dataset_revision="r",
        metric_type="metric",
        metric_value=0.731234567,
    )
    assert found["own"].dataset_type == "own"
    for name, score in parts.items():
        assert found[f"MTEB {name}"].dataset_type == datasets[name]
        assert found[f"MTEB {name}"].metric_value == pytest.approx(score)
    assert len(found) == 5
    # What a task folder or a mirror holds is hashed, and the hub has no such revision.
    assert found["own"].dataset_revision is found["MTEB STS13"].dataset_revision is None
    assert "mteb" in (data.tags or [])


def test_a_task_folder_is_none_of_mteb_s() -> None:
    scores = {"own": task_score("own", "STS", 0.5, datasets={"own": "own"})}
    data = parsed(summary_of(scores))
    assert data.tags == ["sentence-transformers", "embedkit"]


def test_a_card_without_scores_has_no_index() -> None:
    data = parsed(None)
    assert data.eval_results is None
    assert data.tags == ["sentence-transformers", "embedkit"]
    assert data.pipeline_tag == "sentence-similarity"


@pytest.mark.parametrize("base", ["starter", "~/bert", "$EMBEDKIT_DATA/mlm", "package:dist/model"])
def test_only_a_hub_id_is_named_as_the_base(base: str) -> None:
    assert parsed(None).base_model == "owner/base"
    assert parsed(None, base).base_model is None


def test_a_folder_is_not_named_as_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "mlm").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parsed(None, "runs/mlm").base_model is None


def test_the_hub_s_data_sets_are_named_once() -> None:
    manifests = tuple(map(load_manifest, ("agnews", "agnews", "hpo_synonym")))
    source = manifests[0].source
    assert isinstance(source, HubSource)
    assert parsed(None, manifests=manifests).datasets == [source.id]
    assert parsed(None).datasets is None
