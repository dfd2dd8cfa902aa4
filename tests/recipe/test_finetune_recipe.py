from pathlib import Path
from typing import Any

import pytest
import tomli_w
from pydantic import ValidationError

from embedkit.config import differences, expand, find, shipped, validated
from embedkit.errors import UserError
from embedkit.recipe import ContextualConfig, Contrastive, InContext, Recipe, load_recipe

TABLES: dict[str, Any] = {
    "steps": 100,
    "model": "starter",
    "data": {"batch_size": 8, "mix": [{"manifest": "a"}, {"manifest": "b"}]},
    "optim": {"lr": 1e-4},
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(TABLES))
    return str(path)


def test_a_recipe_is_complete_with_its_defaults(file: str) -> None:
    recipe = load_recipe(file)
    assert recipe.model_dump(exclude_defaults=True, mode="json") == TABLES
    assert recipe.objective == Contrastive(temperature=0.07)
    assert recipe.data.alpha == 0.5


def test_a_resolved_recipe_reads_back(file: str) -> None:
    recipe = load_recipe(file, ["objective.micro_batch_tokens=64", "evaluation.tasks=['STS12']"])
    Path(file).write_text(tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True)))
    assert load_recipe(file) == recipe


def test_a_recipe_cannot_be_changed(file: str) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_recipe(file).optim.lr = 1.0


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("optim.lr=3e-5", ("optim", "lr"), 3e-5),
        ("optim.lr = 3e-5", ("optim", "lr"), 3e-5),
        ("model=some/model", ("model",), "some/model"),
        ('model="a=b"', ("model",), "a=b"),
        ("model=a=b", ("model",), "a=b"),
        ("objective.symmetric=true", ("objective", "symmetric"), True),
        ("data.mix=[{manifest = 'c'}]", ("data", "mix", 0, "manifest"), "c"),
        ("logging.trackers=['wandb']", ("logging", "trackers"), ["wandb"]),
        ("seed=1_000", ("seed",), 1000),
    ],
)
def test_a_value_is_overridden(override: str, key: tuple[Any, ...], value: Any, file: str) -> None:
    found: Any = load_recipe(file, [override]).model_dump(mode="json")
    for part in key:
        found = found[part]
    assert found == value


def test_an_override_without_a_value_takes_the_key_out(file: str) -> None:
    assert load_recipe(file, ["seed=1", "seed=", "evaluation.tasks="]).seed == 0
    with pytest.raises(UserError, match="model: Field required"):
        load_recipe(file, ["model="])


def test_the_last_override_wins(file: str) -> None:
    assert load_recipe(file, ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch_size=32", r"batch_size: .*, did you mean data\.batch_size\?"),
        ("data.lr=1", r"data\.lr: .*, did you mean optim\.lr\?"),
        ("optim.lrr=1", r"optim\.lrr: there is no such key, did you mean optim\.lr\?"),
        ("optim.lr=fast", r"optim\.lr: Input should be a valid number .*got 'fast'"),
        ("optim.lr=-1", r"optim\.lr: Input should be greater than 0 .*got -1"),
        ("steps=0", "steps: Input should be greater than 0"),
        ("steps=1.5", "steps: Input should be a valid integer"),
        ("seed='1'", "seed: Input should be a valid integer"),
        ("optim.schedule=wsd", r"optim\.schedule: Input should be 'constant', 'linear' or"),
        ("data.mix=[]", r"data\.mix: .*at least 1 item"),
        ("data.mix=[{manifest='a',weight=1.0},{manifest='b'}]", "weight is missing for b: give"),
        ("data.mix=[{manifest='a'},{manifest='a'}]", "a stands more than once in the mixture"),
        ("epochs=1.0", "give exactly one of steps and epochs"),
        (
            "objective.kind=mlm",
            "objective: kind = 'mlm': the kinds known are contrastive, contextual",
        ),
        (
            "objective.temprature=1",
            r"objective\.temprature: .*, did you mean objective\.temperature\?",
        ),
        ("objective.temperature=0", r"mine\.toml: objective\.temperature: Input should be great"),
        ("objective.margin=0.1", r'mine\.toml: objective: margin = 0\.1: false_negatives is "off"'),
        ("context.num_context=4", r'context: goes with objective\.kind = "contextual"; set that'),
        ("optim", r"--set optim: write KEY=VALUE, e\.g\. optim\.lr=3e-5"),
        ("model.name=x", r"--set model\.name: model is a value, not a table"),
    ],
)
def test_a_wrong_value_is_named(override: str, message: str, file: str) -> None:
    with pytest.raises(UserError, match=message) as told:
        load_recipe(file, [override])
    assert "\n" not in str(told.value)


def test_all_mistakes_are_told_at_once(file: str) -> None:
    with pytest.raises(UserError, match=r"mine\.toml: optim\.lrr: .*; data\.batch: "):
        load_recipe(file, ["optim.lrr=1", "data.batch=2"])


def test_epochs_stand_in_for_steps(file: str) -> None:
    tables = {key: value for key, value in TABLES.items() if key != "steps"}
    assert validated(Recipe, tables | {"epochs": 0.5}, "recipe").steps is None


def test_an_unknown_name_is_answered_with_those_known() -> None:
    with pytest.raises(
        UserError, match=r"startr: not a name under recipes/ \(.*starter.*\); a path"
    ):
        load_recipe("startr")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.toml: no such file"):
        load_recipe(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("content", [b"steps = ", b"\xff\xfe"])
def test_what_is_no_toml_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.toml: not valid TOML: "):
        load_recipe(str(tmp_path / "bad.toml"))


def test_a_name_is_a_file_that_ships() -> None:
    assert find("recipes", "starter") == shipped("recipes") / "starter.toml"


def test_a_path_may_start_with_the_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDKIT_DATA", "/data")
    assert expand("$EMBEDKIT_DATA/a.jsonl") == "/data/a.jsonl"
    monkeypatch.delenv("EMBEDKIT_DATA")
    with pytest.raises(UserError, match="set EMBEDKIT_DATA to the folder that holds the data"):
        expand("$EMBEDKIT_DATA/a.jsonl")


def test_differences_are_told_leaf_by_leaf() -> None:
    then = {"a": 1, "b": {"c": 2, "d": [1]}, "e": 5}
    now = {"a": 1, "b": {"c": 3, "d": [1, 2]}, "f": "x"}
    expected = ["b.c: 2 -> 3", "b.d: [1] -> [1, 2]", "e: 5 -> null", 'f: null -> "x"']
    assert differences(then, now) == expected
    assert differences(then, then) == []
    assert differences({}, {"long": "x" * 90}) == [f'long: null -> "{"x" * 56}...']


CONTEXTUAL = ["objective.kind=contextual", "context={}"]


def test_a_contextual_recipe_has_the_values_of_its_paper(file: str) -> None:
    recipe = load_recipe(file, CONTEXTUAL)
    assert isinstance(recipe.objective, InContext)
    assert (recipe.objective.temperature, recipe.objective.cross_device) == (0.02, False)
    assert recipe.context == ContextualConfig(num_context=512, context_dropout=0.005)
    assert load_recipe(file, [*CONTEXTUAL, "objective.kind=contrastive", "context="]) == (
        load_recipe(file)
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["context="], r'kind = "contextual" needs a \[context\] table: num_context = 512'),
        (["lora={}"], r'lora: objective\.kind = "contextual" trains all weights of two encoders'),
        (["embedder.pooling=cls"], r'embedder\.pooling = "cls": a two-stage model takes the mean'),
        (["embedder.benchmark_prompts=true"], r"benchmark_prompts: .* is told uses of text"),
        (
            ["embedder.include_prompt=false"],
            r"embedder\.include_prompt = false, but context\.include_prompt = true: set both alike",
        ),
        (["context.null_vector=false"], r"context: context_dropout = 0\.005: drops to the null"),
    ],
)
def test_what_a_contextual_recipe_cannot_do_is_named(
    overrides: list[str], message: str, file: str
) -> None:
    with pytest.raises(UserError, match=message) as told:
        load_recipe(file, [*CONTEXTUAL, *overrides])
    assert "\n" not in str(told.value)
