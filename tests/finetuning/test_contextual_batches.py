"""Runs on batches from a table: what they read, how they resume, and which tables are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.interrupted import CrashError, at_step
from support.ranks import run_on_ranks
from support.small_runs import STEPS, metrics_of, state_of, write_source

import embedkit
from embedkit import BatchTable, api, distributed
from embedkit.errors import DataError, UserError
from embedkit.finetuning.mixture import build_batch_sampler, open_batches, open_mixture
from embedkit.finetuning.show_batch import texts_of_step
from embedkit.recipe import Recipe, load_recipe

pytestmark = pytest.mark.slow

FILTER = "objective.false_negatives=relative"


def contextual(recipe: Path, table: Path, *overrides: str) -> Recipe:
    settings = ["data.batches=contextual", f"data.batch_table={table}", *overrides]
    return load_recipe(str(recipe), settings)


def test_a_step_reads_a_batch_of_the_table(small_recipe: Path, small_tables: Path) -> None:
    recipe = contextual(small_recipe, small_tables / "one")
    mixture = open_batches(open_mixture(recipe), recipe)
    triplets = dict(zip((each.name for each in mixture.records), mixture.records, strict=True))
    batches = BatchTable.open(small_tables / "one")["triplets"]
    # 40 rows in batches of 8: none is left to change places.
    whole = [{row.query for row in triplets["triplets"].take(batches[n])} for n in range(5)]
    seen = 0
    for step in range(STEPS):
        header, *lines = texts_of_step(recipe, step)
        if header.endswith(": triplets"):
            asked = {line.split("\t")[2] for line in lines if line.split("\t")[1] == "query"}
            assert {query.removeprefix("query: ") for query in asked} in whole
            seen += 1
    assert seen


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_resumed_run_equals_the_unbroken_one_bit_for_bit(
    world_size: int, small_recipe: Path, small_tables: Path, tmp_path: Path
) -> None:
    recipe = contextual(small_recipe, small_tables / "one", FILTER)
    run_on_ranks(world_size, check_resume, recipe, tmp_path)


def check_resume(recipe: Recipe, folder: Path) -> None:
    api.finetune(recipe, folder / "whole")
    broken = folder / "broken"
    with at_step(7, crash), pytest.raises(CrashError):
        api.finetune(recipe, broken)
    api.finetune(recipe, broken, resume=True)
    if distributed.is_main():
        assert state_of(broken) == state_of(folder / "whole")
        lines = metrics_of(broken)
        assert lines == metrics_of(folder / "whole")
        assert all(0 <= line["filtered"] < 1 for line in lines)
        assert any(line["filtered"] for line in lines)


def crash() -> None:
    raise CrashError


def test_a_run_resumed_with_another_table_is_refused(
    small_recipe: Path, small_tables: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    shutil.copytree(small_tables / "one", table)
    recipe = contextual(small_recipe, table, "steps=4")
    api.finetune(recipe, tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["sources"]["batch table"] == BatchTable.open(small_tables / "one").hash
    shutil.rmtree(table)
    shutil.copytree(small_tables / "other", table)
    with pytest.raises(UserError, match=r"sources\.batch table: .* -> .*; undo the change"):
        api.finetune(recipe, tmp_path / "run", resume=True)


def test_shuffled_batches_can_be_filtered_too_whatever_their_size(
    small_recipe: Path, small_tables: Path, tmp_path: Path
) -> None:
    overrides = ["data.batches=shuffled", "data.batch_size=12", "steps=2", FILTER]
    api.finetune(contextual(small_recipe, small_tables / "one", *overrides), tmp_path / "run")
    assert all("filtered" in line for line in metrics_of(tmp_path / "run"))


def refusal_of(recipe: Recipe) -> str:
    with pytest.raises(DataError) as refused:
        open_batches(open_mixture(recipe), recipe)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_table_that_is_not_there_is_refused(small_recipe: Path, tmp_path: Path) -> None:
    message = refusal_of(contextual(small_recipe, tmp_path / "none"))
    assert f"run embedkit cluster --output {tmp_path / 'none'}" in message


def test_a_table_of_another_batch_size_is_refused(small_recipe: Path, small_tables: Path) -> None:
    message = refusal_of(contextual(small_recipe, small_tables / "one", "data.batch_size=16"))
    assert "made for batch_size = 8, not 16" in message
    assert "run embedkit cluster again" in message


def test_a_table_without_a_source_is_refused(
    small_recipe: Path, small_tables: Path, tmp_path: Path
) -> None:
    more = write_source(tmp_path, "more", 20, 0)
    mix = f'data.mix=[{{ manifest = "{more}" }}]'
    message = refusal_of(contextual(small_recipe, small_tables / "one", mix))
    assert "more: has no batches here (pairs, triplets have): run embedkit cluster" in message


def test_a_table_of_other_rows_is_refused(
    small_recipe: Path, small_tables: Path, tmp_path: Path
) -> None:
    pairs = write_source(tmp_path, "pairs", 61, 0)
    mix = f'data.mix=[{{ manifest = "{pairs}" }}]'
    message = refusal_of(contextual(small_recipe, small_tables / "one", mix))
    assert "pairs: its rows are not those that the batches were made of: run embedkit" in message


def test_a_batch_that_does_not_reach_all_ranks_is_refused(
    tiny_model: Path, small_recipe: Path, tmp_path: Path
) -> None:
    few = write_source(tmp_path, "few", 3, 0)
    mix = f'data.mix=[{{ manifest = "{few}" }}]'
    embedkit.cluster(load_recipe(str(small_recipe), [mix]), tmp_path / "t", surrogate=tiny_model)
    run_on_ranks(4, check_few, contextual(small_recipe, tmp_path / "t", mix))


def check_few(recipe: Recipe) -> None:
    mixture = open_batches(open_mixture(recipe), recipe)
    with pytest.raises(DataError, match="source few has batches of 3, fewer than the 4 ranks"):
        build_batch_sampler(mixture, recipe)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "data.batches=contextual",
            r"data: batches = \"contextual\" takes them from a batch_table",
        ),
        (FILTER, r"false_negatives = \"relative\" goes by the vectors of a data.batch_table"),
        ("objective.margin=0.1", r"objective: margin = 0.1: false_negatives is \"off\""),
        ("objective.margin=1.5", "objective.margin"),
    ],
)
def test_settings_that_lack_what_they_go_by_are_refused(
    override: str, message: str, small_recipe: Path
) -> None:
    with pytest.raises(UserError, match=message) as refused:
        load_recipe(str(small_recipe), [override])
    assert "\n" not in str(refused.value)


def test_a_cut_source_is_counted_in_its_batches_per_rank(tiny_model: Path, tmp_path: Path) -> None:
    few = write_source(tmp_path, "few", 5, 0)
    tables: dict[str, Any] = {
        "model": str(tiny_model),
        "epochs": 3,
        "data": {
            "batch_size": 8,
            "max_query_tokens": 32,
            "max_document_tokens": 32,
            "mix": [{"manifest": str(few)}],
        },
        "optim": {"lr": 1e-3},
    }
    embedkit.cluster(Recipe.model_validate(tables), tmp_path / "table", surrogate=tiny_model)
    tables["data"] |= {"batches": "contextual", "batch_table": str(tmp_path / "table")}
    # A source smaller than a batch, which shuffled batches refuse, is one of 5 rows.
    api.finetune(Recipe.model_validate(tables), tmp_path / "run")
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [1, 2, 3]
