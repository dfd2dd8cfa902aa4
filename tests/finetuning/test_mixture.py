from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_on_ranks
from support.small_runs import STEPS

from embedkit.data.pairs.records import Records
from embedkit.errors import DataError, UserError
from embedkit.finetuning.mixture import (
    build_batch_sampler,
    open_mixture,
    resolve_steps,
)
from embedkit.finetuning.model import stored_prompts
from embedkit.finetuning.show_batch import texts_of_step
from embedkit.recipe import Recipe, load_recipe

PROMPTS = {"query": "find: ", "document": "text: "}


def records(count: int, name: str = "rows", **options: Any) -> Records:
    rows = [{"query": f"q{row}", "positive": f"{name} {row}"} for row in range(count)]
    return Records.from_rows(rows, name=name, **options)


def recipe_over(*names: str, **changes: Any) -> Recipe:
    mix = [{"manifest": name} for name in names]
    tables = {"model": "starter", "data": {"batch_size": 4, "mix": mix}, "optim": {"lr": 1e-3}}
    return Recipe.model_validate({"steps": 10, **tables, **changes})


def test_given_records_stand_in_for_manifests_under_their_names_in_the_recipe() -> None:
    # Both were made without a name, and are called "rows".
    given = {"b": records(16), "a": records(64, batch_size=2)}
    mixture = open_mixture(recipe_over("a", "b"), given)
    assert [each.name for each in mixture.records] == ["a", "b"]
    assert [(each.name, each.rows, each.batch_size) for each in mixture.sources] == [
        ("a", 64, 2),
        ("b", 16, 4),
    ]
    assert mixture.fingerprints == {name: given[name].fingerprint for name in ("a", "b")}
    assert len(set(mixture.fingerprints.values())) == 2


def test_sources_come_up_as_the_root_of_their_size_or_as_the_recipe_says() -> None:
    given = {"a": records(64), "b": records(16)}
    assert open_mixture(recipe_over("a", "b"), given).shares == pytest.approx([2 / 3, 1 / 3])
    mix = [{"manifest": "a", "weight": 1.0}, {"manifest": "b", "weight": 3.0}]
    explicit = recipe_over(data={"batch_size": 4, "mix": mix})
    assert open_mixture(explicit, given).shares == [0.25, 0.75]


def test_a_source_that_the_recipe_does_not_mention_is_refused() -> None:
    with pytest.raises(UserError, match=r"sources: c is not in the recipe's data\.mix.* a, b"):
        open_mixture(recipe_over("a", "b"), {"c": records(8)})


def test_validation_rows_are_in_no_source_and_in_the_facts_of_the_run() -> None:
    given = {"a": records(400, "one"), "b": records(200, "two")}
    whole = open_mixture(recipe_over("a", "b"), given)
    divided = open_mixture(recipe_over("a", "b", validation={"share": 0.1}), given)
    assert whole.validation == ()
    assert [each.name for each in divided.validation] == ["a", "b"]
    for source, training, held in zip(
        divided.sources, divided.records, divided.validation, strict=True
    ):
        assert source.rows == len(training) == len(given[source.name]) - len(held)
    assert divided.fingerprints.keys() == {"a", "b", "validation: a", "validation: b"}
    assert not set(divided.fingerprints.values()) & set(whole.fingerprints.values())


def test_two_sources_of_one_name_are_refused(tmp_path: Path) -> None:
    names = []
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.jsonl").write_text('{"query": "q", "positive": "p"}\n')
        manifest = tmp_path / folder / "mine.toml"
        rows = tmp_path / folder / "rows.jsonl"
        manifest.write_text(f'source = {{ kind = "files", files = [{{ path = "{rows}" }}] }}\n')
        names.append(str(manifest))
    with pytest.raises(UserError, match=r"two sources are called mine; rename one"):
        open_mixture(recipe_over(*names))


def test_a_prompt_on_which_sources_agree_is_the_models() -> None:
    both = [records(8, "a", prompts=PROMPTS), records(8, "b", prompts=PROMPTS)]
    assert stored_prompts(both) == PROMPTS


def test_a_prompt_on_which_sources_differ_keeps_their_names() -> None:
    both = [records(8, "a", prompts=PROMPTS), records(8, "b", prompts={"document": "text: "})]
    assert stored_prompts(both) == {"a-query": "find: ", "b-query": "", "document": "text: "}


def test_of_the_prompts_of_several_uses_those_of_a_search_are_the_models() -> None:
    search = {"query": "search_query: ", "document": "search_document: "}
    alike = {side: "clustering: " for side in search}
    both = [records(8, "a", prompts=alike), records(8, "b", prompts=search)]
    assert stored_prompts(both) == {
        "a-query": "clustering: ",
        "a-document": "clustering: ",
        "b-query": "search_query: ",
        "b-document": "search_document: ",
        **search,
    }


def test_epochs_become_steps_and_a_step_may_take_several_batches() -> None:
    recipe = recipe_over(
        "a", steps=None, epochs=2.0, optim={"lr": 1e-3, "gradient_accumulation_steps": 2}
    )
    mixture = open_mixture(recipe, {"a": records(64)})
    resolved = resolve_steps(recipe, mixture)
    # 16 batches an epoch, two a step.
    assert (resolved.steps, resolved.epochs) == (16, None)
    sampler = build_batch_sampler(mixture, resolved)
    assert len(sampler) == 32
    assert sampler.passes() == [2.0]
    assert resolve_steps(resolved, mixture) is resolved


def test_an_epoch_has_fewer_steps_where_more_ranks_read_batches_of_their_own() -> None:
    # 16 batches an epoch.
    data = {"batch_size": 4, "mix": [{"manifest": "a"}], "batches": "contextual"}
    changes: dict[str, Any] = {"steps": None, "epochs": 2.0, "data": {**data, "batch_table": "t"}}
    mixture = open_mixture(recipe_over("a", **changes), {"a": records(64)})
    for cross_device, steps in ((True, 32), (False, 8)):
        recipe = recipe_over("a", **changes, objective={"cross_device": cross_device})
        assert recipe.batches_per_rank is not cross_device
        resolved = resolve_steps(recipe, mixture, ranks=4)
        assert resolved.steps == steps
        assert build_batch_sampler(mixture, resolved, ranks=4).passes() == [2.0]


def test_a_batch_that_does_not_reach_all_ranks_is_refused() -> None:
    run_on_ranks(2, check_small_batch, records(8, batch_size=1))


def check_small_batch(given: Records) -> None:
    recipe = recipe_over("a")
    with pytest.raises(DataError, match="source a has batches of 1, fewer than the 2 ranks"):
        build_batch_sampler(open_mixture(recipe, {"a": given}), recipe)


@pytest.mark.slow
def test_a_step_is_shown_with_its_pairs_and_their_negatives(small_recipe: Path) -> None:
    recipe = load_recipe(str(small_recipe))
    for step in range(STEPS):
        header, *lines = texts_of_step(recipe, step)
        source = header.removeprefix(f"step {step}, batch 0: ")
        roles = ["query", "positive"] + ["negative"] * 3 * (source == "triplets")
        shown = [line.split("\t") for line in lines]
        assert [(row, role) for row, role, _ in shown] == [
            (str(row), role) for row in range(8) for role in roles
        ]
        assert all(text for _, _, text in shown)


def test_every_batch_of_an_accumulated_step_is_shown(small_recipe: Path) -> None:
    recipe = load_recipe(str(small_recipe), ["optim.gradient_accumulation_steps=3"])
    headers = [line for line in texts_of_step(recipe, 2) if line.startswith("step 2, batch ")]
    assert len(headers) == 3
    assert len({header.rpartition(" ")[2] for header in headers}) == 1


def test_a_step_that_the_recipe_has_not_is_refused(small_recipe: Path) -> None:
    recipe = load_recipe(str(small_recipe))
    with pytest.raises(UserError, match=f"step: the recipe has {STEPS} steps, .*got {STEPS}"):
        list(texts_of_step(recipe, STEPS))
