"""Every recipe and manifest of pairs that ships is valid, and trains a tiny model."""

import os
from pathlib import Path
from typing import Any

import pytest
from support.manifests import shipped_manifests
from support.small_runs import metrics_of

from embedkit.api import cluster, finetune, sampling_shares
from embedkit.config import differences, shipped, validated
from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.manifests.sources import FilesSource, HubSource
from embedkit.recipe import Contrastive, Recipe, load_any_recipe, load_recipe
from embedkit.tokens.prompts import SEARCH, as_prefix

RECIPES = sorted(
    str(path.relative_to(shipped("recipes")).with_suffix(""))
    for path in shipped("recipes").rglob("*.toml")
    if isinstance(load_any_recipe(str(path)), Recipe)
)
STARTER = load_recipe("cde-starter")
# Of the sets of Table 7 whose manifests state no rows, as in docs/data.md.
ASSUMED = {
    "concurrentqa": 30_478, "gooaq": 2_286_783, "medmcqa": 182_822, "medmcqa_clust": 182_822,
    "pubmedqa": 2_000, "stackoverflow": 19_847, "sts12": 1_000, "stsbenchmark": 1_000,
    "triviaqa": 60_025, "yahoo_clust": 1_400_000,
}  # fmt: skip


def test_the_starter_ships() -> None:
    assert "starter" in RECIPES
    assert "hpo_synonym" in shipped_manifests()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_valid_and_so_are_its_manifests(name: str) -> None:
    recipe = load_recipe(name)
    assert [load_manifest(mix.manifest).name for mix in recipe.data.mix]


@pytest.mark.parametrize("name", shipped_manifests())
def test_a_manifest_is_valid_pinned_and_licensed(name: str) -> None:
    manifest = load_manifest(name)
    assert manifest.license
    assert manifest.rows or isinstance(manifest.source, HubSource)
    if isinstance(manifest.source, FilesSource):
        assert all(file.sha256 for file in manifest.source.files)


def test_the_open_recipe_is_the_unified_one_over_other_sources() -> None:
    unified, over_files = load_recipe("unified"), load_recipe("unified-open")
    changed = differences(unified.model_dump(mode="json"), over_files.model_dump(mode="json"))
    expected = {f"evaluation.{key}" for key in ("task_dirs", "benchmark", "dtype", "before")}
    expected |= {f"embedder.default_prompts.{side}" for side in ("query", "document")}
    assert {line.partition(":")[0] for line in changed} == {"data.mix", *expected}
    assert len(unified.data.mix) == 22
    kinds = {load_manifest(mix.manifest).source.kind for mix in unified.data.mix}
    assert kinds == {"hub"}
    assert (unified.data.alpha, unified.steps) == (0.5, 2000)
    loss = Contrastive(temperature=0.07, micro_batch_tokens=32_768, known_answers="batch")
    assert unified.objective == loss


def test_the_unified_recipe_reads_nine_million_rows_and_its_sister_all_of_table_7() -> None:
    unified, table_7 = load_recipe("unified"), load_recipe("unified-table7")
    changed = differences(unified.model_dump(mode="json"), table_7.model_dump(mode="json"))
    assert {line.partition(":")[0] for line in changed} == {"data.mix"}
    sampled, whole = ([mix.manifest for mix in each.data.mix] for each in (unified, table_7))
    assert [name.removesuffix("_sample") for name in sampled] == whole
    # The total of the paper's section 5.2.1.
    rows = {
        share.source.name: share.source.rows for share in sampling_shares(unified, rows=ASSUMED)
    }
    assert sum(rows.values()) == pytest.approx(9e6, rel=0.001)
    # Both read the same data set, under one instruction.
    paq, sample = load_manifest("paq"), load_manifest("paq_sample")
    assert paq.model_copy(update={"name": "paq_sample", "max_rows": 870_000}) == sample


def test_the_open_contextual_recipe_is_stage_one_over_the_open_sources() -> None:
    stage, over_files = load_recipe("cde-stage1"), load_recipe("cde-open")
    changed = differences(stage.model_dump(mode="json"), over_files.model_dump(mode="json"))
    expected = {"data.mix", "data.batch_table", "evaluation.task_dirs", "evaluation.instructions"}
    expected |= {f"embedder.default_prompts.{side}" for side in ("query", "document")}
    assert {line.partition(":")[0] for line in changed} == expected
    assert over_files.data.mix == load_recipe("unified-open").data.mix


@pytest.mark.parametrize("name", RECIPES)
def test_default_prompts_are_prompts_of_sources_that_have_them(name: str) -> None:
    recipe = load_recipe(name)
    prompts = {mix.manifest: load_manifest(mix.manifest).prompts for mix in recipe.data.mix}
    for side in ("query", "document"):
        distinct = {getattr(each, side) for each in prompts.values()}
        decided = len(distinct) == 1 or SEARCH[side] in distinct
        named = getattr(recipe.embedder.default_prompts, side)
        assert (named is None) == decided
        if named is not None:
            source, _, of_side = named.rpartition("-")
            assert (of_side, bool(getattr(prompts[source], side))) == (side, True)


def test_recipes_that_train_with_instructions_are_scored_with_the_paper_s() -> None:
    names = ["unified", "unified-open", "cde-open", "starter", "cde-stage1", "cde-starter"]
    scored = [load_recipe(name).evaluation.instructions for name in names]
    assert scored == ["paper"] * 3 + ["none"] * 3


@pytest.mark.parametrize("batches", ["shuffled", "contextual"])
@pytest.mark.parametrize("objective", ["contrastive", "contextual"])
def test_each_of_the_four_trainings_of_the_paper_is_the_starter_with_other_settings(
    batches: str, objective: str
) -> None:
    plain = ["objective.kind=contrastive", "context="] if objective == "contrastive" else []
    recipe = load_recipe("cde-starter", [f"data.batches={batches}", *plain])
    assert (recipe.data.batches, recipe.objective.kind) == (batches, objective)
    kept = {"temperature", "false_negatives", "margin", "micro_batch_tokens"}
    ours, starter = (each.objective.model_dump(include=kept) for each in (recipe, STARTER))
    assert ours == starter


@pytest.mark.parametrize("name", [mix.manifest for mix in load_recipe("unified-open").data.mix])
def test_an_open_source_can_fill_a_batch_and_has_an_instruction(name: str) -> None:
    manifest = load_manifest(name)
    assert manifest.rows
    # A batch sixteen times the recipe's must be possible without a change of manifests.
    assert manifest.rows >= (manifest.batch_size or 16 * 256)
    assert manifest.prompts.query == manifest.prompts.document
    assert as_prefix(manifest.prompts.query.removesuffix(": ")) == manifest.prompts.query


@pytest.mark.slow
@pytest.mark.usefixtures("native_bf16", "starter_cache")
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_takes_two_steps(name: str, tiny_model: Path, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    skip_unless_here([load_manifest(mix.manifest) for mix in recipe.data.mix])
    check_two_steps(recipe.model_dump(mode="json", exclude_none=True), tiny_model, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.usefixtures("starter_cache")
@pytest.mark.parametrize("name", shipped_manifests())
def test_a_manifest_takes_two_steps(name: str, tiny_model: Path, tmp_path: Path) -> None:
    skip_unless_here([load_manifest(name)])
    data = {"batch_size": 8, "mix": [{"manifest": name}]}
    check_two_steps({"data": data, "optim": {"lr": 1e-4}}, tiny_model, tmp_path / "run")


def check_two_steps(tables: dict[str, Any], model: Path, run: Path) -> None:
    """Train on the recipe's own data with its own objective and optimizer, but on ``model``."""
    sections = ("data", "objective", "context", "optim")
    kept: dict[str, Any] = {key: tables[key] for key in sections if key in tables}
    kept["data"] |= {"max_query_tokens": 128, "max_document_tokens": 128}
    if "batch_table" in kept["data"]:
        # One source is enough to cut.
        mix = sorted(
            kept["data"]["mix"], key=lambda each: load_manifest(each["manifest"]).rows or 0
        )
        kept["data"] |= {"mix": mix[:1]}
    if "context" in kept:
        kept["context"] |= {"num_context": 32}
    recipe = validated(Recipe, {**kept, "steps": 2, "model": str(model)}, "tiny")
    if recipe.data.batch_table:
        table = run.with_name("table")
        cluster(recipe, table, surrogate=model, max_tokens=32)
        data = recipe.data.model_copy(update={"batch_table": str(table)})
        recipe = recipe.model_copy(update={"data": data})
    finetune(recipe, run)
    lines = metrics_of(run)
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["loss"] > 0 and line["tokens"] > 0 for line in lines)
    assert (run / "model" / "modules.json").is_file()


def skip_unless_here(wanted: list[Manifest]) -> None:
    for manifest in wanted:
        if isinstance(manifest.source, HubSource):
            pytest.skip(f"{manifest.name} lies on the hub")
        paths = [each.path for each in getattr(manifest.source, "files", ())]
        elsewhere = any(path.startswith("$EMBEDKIT_DATA") for path in paths)
        if elsewhere and "EMBEDKIT_DATA" not in os.environ:
            pytest.skip(f"{manifest.name} needs EMBEDKIT_DATA")
