"""An export knows the prompts of its training, and says so where others are read."""

import contextlib
import io
import json
import re
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from sentence_transformers import SentenceTransformer
from support.task_folders import write_task

import embedkit
from embedkit.config import read_toml
from embedkit.data.pairs.records import Records
from embedkit.errors import UserError
from embedkit.finetuning.model import undecided_sides
from embedkit.models.contextual.loading import load_contextual
from embedkit.models.contextual.model import Contextual
from embedkit.models.trained_prompts import FILE, TrainedPrompts
from embedkit.recipe import Recipe

PROMPTS = {
    "pairs": {"query": "find: ", "document": "page: "},
    "triplets": {"query": "ask: ", "document": ""},
}
BY_SIDE = {"query": ["find: ", "ask: "], "document": ["page: ", ""]}
DEFAULTS = {"query": "pairs-query", "document": "pairs-document"}
TEXTS = ["cardiac arrest", "brain bleed"]


def recipe_of(folder: Path, small_recipe: Path, *settings: str, **embedder: Any) -> Recipe:
    """The small recipe, over sources that differ in their prompts."""
    tables = read_toml(small_recipe)
    for name, prompts in PROMPTS.items():
        manifest = read_toml(small_recipe.parent / f"{name}.toml") | {"prompts": prompts}
        (folder / f"{name}.toml").write_text(tomli_w.dumps(manifest))
    tables["data"]["mix"] = [{"manifest": str(folder / f"{name}.toml")} for name in PROMPTS]
    tables["embedder"] = embedder
    tables["optim"]["warmup_steps"] = 0
    (folder / "recipe.toml").write_text(tomli_w.dumps(tables))
    return embedkit.load_recipe(str(folder / "recipe.toml"), ["steps=1", *settings])


@pytest.fixture(scope="module")
def exported(small_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    recipe = recipe_of(folder, small_recipe, default_prompts=DEFAULTS)
    return embedkit.finetune(recipe, folder / "run")


@pytest.fixture(scope="module")
def exported_in_context(small_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained_in_context")
    settings = ["objective={kind = 'contextual'}", "context={num_context = 4}"]
    return embedkit.finetune(recipe_of(folder, small_recipe, *settings), folder / "run")


def lines_of(work: Callable[[], object]) -> list[str]:
    """The warnings on prompts that ``work`` causes."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        work()
    told = [str(each.message) for each in heard]
    assert not any("\n" in line for line in told)
    return [line for line in told if "its training" in line]


def run_example(folder: Path) -> dict[str, Any]:
    """Run the card's example with stock sentence-transformers, and return its names."""
    card = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code.replace("path/to/this/folder", str(folder)), names)
    return names


def test_an_export_records_what_stood_before_each_side_and_saves_it_again(
    exported: Path, tmp_path: Path
) -> None:
    assert json.loads((exported / FILE).read_text()) == BY_SIDE
    model = embedkit.load(exported)
    assert model.trained_prompts is not None
    model.save(tmp_path / "again")
    assert (tmp_path / "again" / FILE).read_bytes() == (exported / FILE).read_bytes()
    theirs = SentenceTransformer(str(exported), device="cpu")
    # What sentence-transformers has trained on or changed has no record any more.
    theirs.save(str(tmp_path / "theirs"))
    assert embedkit.load(tmp_path / "theirs").trained_prompts is None


def test_two_stages_record_their_prompts_too(exported_in_context: Path, tmp_path: Path) -> None:
    assert json.loads((exported_in_context / FILE).read_text()) == BY_SIDE
    model = load_contextual(str(exported_in_context))
    model.save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / FILE).read_text()) == BY_SIDE
    context = model.build_context(TEXTS, prompt="page: ")
    assert not lines_of(lambda: model.encode(TEXTS, prompt="page: ", context=context))
    (line,) = lines_of(lambda: model.encode(TEXTS, prompt="elsewhere: ", context=context))
    assert "texts behind 'elsewhere: ', which its training by embedkit never had" in line


def test_training_goes_on_from_the_record_of_its_model(
    exported: Path, small_recipe: Path, tmp_path: Path
) -> None:
    recipe = embedkit.load_recipe(
        str(small_recipe), [f"model={exported}", "steps=1", "optim.warmup_steps=0"]
    )
    record = TrainedPrompts.read(embedkit.finetune(recipe, tmp_path / "run"))
    assert record is not None
    assert record.by_side == {"query": ("find: ", "ask: ", "query: "), "document": ("page: ", "")}


def test_a_prompt_that_training_had_is_read_in_silence_and_another_is_told_once(
    exported: Path,
) -> None:
    model = embedkit.load(exported, dtype="fp32")
    quiet: list[Callable[[], object]] = [
        lambda: model.encode(TEXTS, role="query"),
        lambda: model.encode(TEXTS, role="document"),
        lambda: model.encode(TEXTS, prompt="ask: ", role="query"),
        lambda: model.encode(TEXTS, prompt="page: "),
        # Training read documents of the triplets without a prompt.
        lambda: model.encode(TEXTS),
    ]
    assert not [line for work in quiet for line in lines_of(work)]
    (line,) = lines_of(lambda: model.encode(TEXTS, prompt="", role="query"))
    assert line == (
        "run: queries without a prompt, which its training by embedkit never had; it had queries "
        "behind 'find: ' (and 1 other), documents behind 'page: ' (and 1 other)"
    ).replace("run:", f"{model.name}:")
    assert not lines_of(lambda: model.encode(TEXTS, prompt="", role="query"))
    assert len(lines_of(lambda: model.encode(TEXTS, prompt="page: ", role="query"))) == 1


def test_of_a_model_that_records_nothing_nothing_is_said(tiny_model: Path) -> None:
    model = embedkit.load(tiny_model, dtype="fp32")
    assert not lines_of(lambda: model.encode(TEXTS, prompt="anything: "))


def test_mining_and_clustering_tell_it_in_one_line(
    exported: Path, small_recipe: Path, tmp_path: Path
) -> None:
    rows = [{"query": f"{n} amber", "positive": f"birch {n}"} for n in range(12)]
    settings: Any = {"negatives": 2, "depth": 9, "margin_kind": "none"}

    def mine(prompts: dict[str, str], name: str) -> list[str]:
        source = Records.from_rows(rows, prompts=prompts)
        return lines_of(lambda: embedkit.mine(source, exported, tmp_path / name, **settings))

    assert not mine(PROMPTS["pairs"], "quiet")
    (line,) = mine({"query": "other: ", "document": "far: "}, "told")
    assert "queries behind 'other: ' and documents behind 'far: ', which" in line
    model = embedkit.load(exported)
    model.trained_prompts = TrainedPrompts({"query": ["find: "], "document": ["page: "]})
    recipe = embedkit.load_recipe(str(small_recipe))
    (line,) = lines_of(lambda: embedkit.cluster(recipe, tmp_path / "table", surrogate=model))
    assert "texts without a prompt, which its training by embedkit never had" in line


def test_an_evaluation_tells_all_tasks_in_one_line(exported: Path, tmp_path: Path) -> None:
    for name, type_ in {"s1": "sts", "s2": "sts", "c": "clustering", "r": "retrieval"}.items():
        write_task(tmp_path / "tasks" / name, type_)
    file = tmp_path / "told.toml"
    file.write_text('s1 = "x: "\ns2 = "x: "\nr-query = "y: "\nc = "page: "\n')

    def scored(model: Path, *more: Path) -> None:
        settings: Any = {"instructions": more[0]} if more else {}
        embedkit.evaluate(model, [tmp_path / "tasks"], tmp_path / "out", dtype="fp32", **settings)

    assert not lines_of(lambda: scored(exported))
    (line,) = lines_of(lambda: scored(exported, file))
    expected = "3 of 4 tasks and parts (r, s1, s2) have texts that its training by embedkit never"
    assert expected in line
    assert "such as queries behind 'y: '; it had" in line


def test_encode_query_of_an_export_reads_behind_the_prompt_that_the_recipe_names(
    exported: Path,
) -> None:
    theirs, ours = SentenceTransformer(str(exported), device="cpu"), embedkit.load(exported)
    assert isinstance(ours.prompts, dict)
    for side, prompt in PROMPTS["pairs"].items():
        vectors = getattr(theirs, f"encode_{side}")(TEXTS)
        told = theirs.encode(TEXTS, prompt=prompt)
        np.testing.assert_allclose(vectors, told, atol=1e-6)
        assert np.abs(vectors - theirs.encode(TEXTS)).max() > 1e-3
        assert ours.prompts[side] == prompt


def test_the_card_s_example_reads_behind_prompts_of_the_training(
    exported: Path, small_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "model.encode_query([" in (exported / "README.md").read_text()
    run_example(exported)
    undecided = embedkit.finetune(recipe_of(tmp_path, small_recipe), tmp_path / "run")
    names = run_example(undecided)
    expected = names["model"].encode(["a query"], prompt="find: ")
    np.testing.assert_allclose(names["queries"], expected, atol=1e-6)
    told = " ".join(capsys.readouterr().out.split())
    assert 'such as embedder.default_prompts.query = "pairs-query"' in told
    # Some documents were read without a prompt, as ``encode_document`` reads them.
    assert "encode_document" not in told
    assert "model.encode_document([" in (undecided / "README.md").read_text()


def test_a_run_names_its_own_prompts_and_not_those_of_the_training_before(tiny_model: Path) -> None:
    rows = [{"query": "a query", "positive": "a document"}]
    records = [Records.from_rows(rows, prompts={"query": each}) for each in ("find: ", "ask: ")]
    model = embedkit.load(tiny_model, dtype="fp32")
    model.prompts = {"base-query": "base: ", "a-query": "find: ", "b-query": "ask: "}
    model.trained_prompts = TrainedPrompts({"query": ["base: ", ""], "document": [""]})
    assert undecided_sides(model, records) == {"query": "a-query"}


def test_the_card_of_two_stages_has_an_example_too(exported_in_context: Path) -> None:
    names = run_example(exported_in_context)
    model = load_contextual(str(exported_in_context))
    assert isinstance(model, Contextual)
    context = model.build_context(names["corpus"])
    ours = model.encode(["a query"], prompt="find: ", context=context)
    np.testing.assert_allclose(names["queries"], ours.vectors, atol=1e-5)


def test_the_card_names_stored_prompts_that_training_never_had(
    small_recipe: Path, tmp_path: Path
) -> None:
    settings = {"default_prompts": DEFAULTS, "benchmark_prompts": True}
    folder = embedkit.finetune(recipe_of(tmp_path, small_recipe, **settings), tmp_path / "run")
    told = re.search(
        r"No text was read in training behind the stored prompts (.*)\.\n",
        (folder / "README.md").read_text(),
    )
    assert told is not None
    assert told[1] == "`ArguAna`, `ClimateFEVER`, `CQADupstackAndroidRetrieval` and 64 more"


def test_the_card_is_named_after_the_run_and_has_its_recipe(exported: Path) -> None:
    card, run = (exported / "README.md").read_text(), exported.parent
    assert f"\n# {run.name}\n" in card
    (recipe,) = re.findall(r"```toml\n(.*?)```", card, flags=re.DOTALL)
    assert tomllib.loads(recipe) == tomllib.loads((run / "recipe.toml").read_text())


def test_a_default_prompt_that_is_not_stored_is_refused(small_recipe: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, small_recipe, default_prompts={"query": "pair-query"})
    with pytest.raises(UserError) as told:
        embedkit.finetune(recipe, tmp_path / "run")
    assert str(told.value).startswith(
        'embedder.default_prompts.query = "pair-query": the model will store no such prompt; '
        "choose one of pairs-query, "
    )


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"query": ["a", 1], "document": [""]}')
    with pytest.raises(UserError, match=r"trained_prompts\.json: is no table of query and doc"):
        TrainedPrompts.read(tmp_path)


def test_adapters_leave_the_record_and_the_prompts_of_a_search(
    small_recipe: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(tmp_path, small_recipe, "lora={rank = 2}", default_prompts=DEFAULTS)
    model = embedkit.load(embedkit.finetune(recipe, tmp_path / "run"))
    assert model.trained_prompts is not None
    assert {side: list(found) for side, found in model.trained_prompts.by_side.items()} == BY_SIDE
    assert {side: model.prompts[side] for side in DEFAULTS} == PROMPTS["pairs"]
