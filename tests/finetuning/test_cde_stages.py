"""The two stages of contextual training, on folders that stand for the hub and the bucket."""

from pathlib import Path

import pytest
from support.cde_sets import BGE_ID, write_bucket, write_hub
from support.small_runs import metrics_of

from embedkit.api import cluster, finetune
from embedkit.models.contextual.loading import load_contextual
from embedkit.recipe import load_recipe


def test_stage_two_differs_from_stage_one_in_its_data_alone() -> None:
    one, two = (load_recipe(name).model_dump() for name in ("cde-stage1", "cde-stage2"))
    own = {"model", "data", "checkpoints"}
    assert {key: one[key] for key in one.keys() - own} == {
        key: two[key] for key in one.keys() - own
    }
    own = {"mix", "batch_table"}
    assert {key for key in one["data"] if one["data"][key] != two["data"][key]} == own
    assert two["model"] == "runs/cde-stage1/model"


def test_stage_one_is_as_appendix_g_says() -> None:
    recipe = load_recipe("cde-stage1")
    assert (recipe.epochs, recipe.data.batch_size, recipe.data.batches) == (3, 512, "contextual")
    assert recipe.data.max_query_tokens == recipe.data.max_document_tokens == 512
    assert recipe.context
    assert recipe.context.num_context == 512
    assert not recipe.objective.needs.cross_device
    optim = recipe.optim
    assert (optim.name, optim.lr, optim.warmup_steps) == ("adam", 5e-5, 1000)
    assert (optim.schedule, optim.min_lr_ratio, optim.decay_until) == ("linear", 0, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("native_bf16")
@pytest.mark.filterwarnings("ignore:.*12 rows, expected")
def test_stage_two_goes_on_from_the_model_of_stage_one(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDKIT_HUB", str(tmp_path / "hub"))
    for name in ("nomic/paq", "nomic/reddit_title_body"):
        write_bucket(tmp_path / "hub", name)
    write_hub(tmp_path / "hub", BGE_ID)
    one = take_two_steps(
        "cde-stage1", ["nomic/paq", "nomic/reddit_title_body"], tiny_model, tiny_model, tmp_path
    )
    two = take_two_steps("cde-stage2", ["bge/nq", "bge/quora"], one, tiny_model, tmp_path)
    model = load_contextual(str(two))
    assert model.config.num_context == 32
    # A set of each use is among those of stage one.
    search = {"query": "search_query: ", "document": "search_document: "}
    assert search.items() <= load_contextual(str(one)).prompts.items()
    assert search.items() <= model.prompts.items()


def take_two_steps(name: str, sets: list[str], model: Path, surrogate: Path, folder: Path) -> Path:
    """Train ``model`` by the recipe on some of its sets; the folder of what it makes."""
    mix = ", ".join(f'{{ manifest = "{each}" }}' for each in sets)
    overrides = [
        "epochs=",
        "steps=2",
        f"model={model}",
        f"data.mix=[{mix}]",
        f"data.batch_table={folder / name}-table",
        # Of 24 texts; and the tiny model reads no more than 128 tokens.
        "context.num_context=32",
        "data.max_query_tokens=128",
        "data.max_document_tokens=128",
    ]
    recipe = load_recipe(name, overrides)
    cluster(recipe, folder / f"{name}-table", surrogate=surrogate, max_tokens=32)
    finetune(recipe, folder / name)
    lines = metrics_of(folder / name)
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["loss"] > 0 for line in lines)
    return folder / name / "model"
