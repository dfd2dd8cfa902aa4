import errno
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from embedkit.config import validated
from embedkit.errors import UserError
from embedkit.recipe import Logging, Recipe
from embedkit.storage.folders import whole_folder
from embedkit.training import checkpoint, run_folder
from embedkit.training.optim import build_optimizer

TABLES: dict[str, Any] = {
    "steps": 100,
    "model": "starter",
    "data": {"batch_size": 8, "mix": [{"manifest": "pairs"}]},
    "optim": {"lr": 1e-4},
}


def recipe_with(**changes: Any) -> Recipe:
    """The recipe of ``TABLES`` after changes by dotted key, the dot written as ``__``."""
    tables = {
        key: dict(value) if isinstance(value, dict) else value for key, value in TABLES.items()
    }
    for key, value in changes.items():
        *parents, last = key.split("__")
        table = tables
        for parent in parents:
            table = table.setdefault(parent, {})
        table[last] = value
    return validated(Recipe, tables, "recipe")


def facts_of(recipe: Recipe, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "recipe": recipe.model_dump(mode="json"),
        "sources": {"pairs": "a" * 64},
        "model": {"identity": "b" * 64},
        "extensions": {"objective": "hinge 1.0"},
        "world_size": 1,
        "threads": 2,
    }
    return facts | changes


def run_with_checkpoint(path: Path, recipe: Recipe) -> Path:
    run_folder.claim(path, resume=False, overwrite=False)
    model = nn.Linear(2, 2)
    optimizer = build_optimizer(model, recipe.optim)
    state = checkpoint.captured(model, optimizer)
    checkpoint.save(path / "checkpoints", 50, state, facts_of(recipe), keep=2)
    run_folder.describe(path, recipe, facts_of(recipe), {})
    return path


def run_without_checkpoint(path: Path, recipe: Recipe) -> Path:
    run_folder.claim(path, resume=False, overwrite=False)
    run_folder.describe(path, recipe, facts_of(recipe), {})
    return path


def resumed(folder: Path, facts: dict[str, Any], *, allow: bool = False) -> list[str]:
    """The remarks when the run is resumed with ``facts``."""
    found, remarks = run_folder.newest_checkpoint(folder, facts, allow_world_size_change=allow)
    assert found is not None
    assert found.step == 50
    return remarks


def test_an_empty_folder_and_none_may_become_a_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "a" / "b"):
        run_folder.claim(path, resume=False, overwrite=False)
        assert path.is_dir()


def test_checking_a_folder_changes_nothing(tmp_path: Path) -> None:
    run_folder.check(tmp_path / "run", resume=False, overwrite=False)
    run_folder.check(tmp_path / "run", resume=False, overwrite=True)
    assert not list(tmp_path.iterdir())


def test_what_lies_there_is_never_overwritten_unasked(tmp_path: Path) -> None:
    run_with_checkpoint(tmp_path / "run", recipe_with())
    with pytest.raises(UserError, match="run: is not empty; continue the run in it with --resume"):
        run_folder.claim(tmp_path / "run", resume=False, overwrite=False)
    assert (tmp_path / "run" / "run.json").is_file()


def test_overwriting_a_run_removes_it(tmp_path: Path) -> None:
    run_with_checkpoint(tmp_path / "run", recipe_with())
    run_folder.claim(tmp_path / "run", resume=False, overwrite=True)
    assert not list((tmp_path / "run").iterdir())


def test_overwriting_a_run_loses_nothing_that_it_did_not_write(tmp_path: Path) -> None:
    run = run_with_checkpoint(tmp_path / "run", recipe_with())
    (run / "notes.md").write_text("mine")
    with pytest.raises(UserError, match=r"since no run of embedkit wrote notes\.md there; move it"):
        run_folder.claim(run, resume=False, overwrite=True)
    (run / "notes.md").rename(tmp_path / "notes.md")
    with whole_folder(run / "model", "a model") as aside:
        (aside / "README.md").write_text("card")
    (run / "model" / "README.md").write_text("mine")
    for resume in (False, True):
        with pytest.raises(UserError, match=r"changed: README\.md; move them elsewhere, or choose"):
            run_folder.claim(run, resume=resume, overwrite=not resume)
    assert (run / "model" / "README.md").read_text() == "mine"
    (run / "model" / "README.md").unlink()
    run_folder.claim(run, resume=False, overwrite=True)
    assert not list(run.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"run", "notes.md"}


def test_a_run_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with_checkpoint(tmp_path / "run", recipe_with())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", fail)
        with pytest.raises(UserError, match=r"run: cannot be written \(No space left on device\)"):
            run_folder.claim(run, resume=False, overwrite=True)
    assert (run / "checkpoints" / "step-000050").is_dir()


def fail(*_arguments: object, **_options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_resuming_a_run_removes_nothing(tmp_path: Path) -> None:
    run_with_checkpoint(tmp_path / "run", recipe_with())
    run_folder.claim(tmp_path / "run", resume=True, overwrite=False)
    assert (tmp_path / "run" / "checkpoints" / "step-000050").is_dir()


def test_overwrite_leaves_alone_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not a run of embedkit, so --overwrite leaves it alone"):
        run_folder.claim(tmp_path, resume=False, overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="no run to resume; leave --resume out, or check --out"):
            run_folder.check(path, resume=True, overwrite=False)


def test_resume_and_overwrite_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--resume and --overwrite exclude each other"):
        run_folder.check(tmp_path, resume=True, overwrite=True)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file; choose another --output"):
        run_folder.check(tmp_path / "file", resume=False, overwrite=False)
    with pytest.raises(UserError, match=r"cannot be written \(Not a directory\); choose another"):
        run_folder.claim(tmp_path / "file" / "run", resume=False, overwrite=False)


def test_a_run_says_what_it_is(tmp_path: Path) -> None:
    recipe = recipe_with(optim__max_grad_norm=0.5)
    folder = run_with_checkpoint(tmp_path / "run", recipe)
    stored = tomllib.loads((folder / "recipe.toml").read_text())
    assert validated(Recipe, stored, "recipe.toml") == recipe
    told = json.loads((folder / "run.json").read_text())
    assert told["versions"]["torch"] == torch.__version__
    assert told["sources"] == {"pairs": "a" * 64}
    assert told["model"] == {"identity": "b" * 64}
    assert told["recipe"] == recipe.model_dump(mode="json")
    assert {"python", "hardware", "threads", "world_size"} <= told.keys()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"steps": 200}, "steps: 100 -> 200"),
        ({"model": "other"}, 'model: "starter" -> "other"'),
        ({"precision": "bf16"}, 'precision: "auto" -> "bf16"'),
        ({"data__batch_size": 16}, "data.batch_size: 8 -> 16"),
        ({"data__alpha": 1.0}, "data.alpha: 0.5 -> 1.0"),
        ({"data__max_query_tokens": 64}, "data.max_query_tokens: 512 -> 64"),
        ({"objective__temperature": 0.05}, "objective.temperature: 0.07 -> 0.05"),
        ({"objective__micro_batch_tokens": 64}, "objective.micro_batch_tokens: null -> 64"),
        ({"optim__lr": 1e-3}, "optim.lr: 0.0001 -> 0.001"),
        ({"optim__gradient_accumulation_steps": 2}, "optim.gradient_accumulation_steps: 1 -> 2"),
        ({"embedder": {"pooling": "cls"}}, 'embedder.pooling: null -> "cls"'),
        ({"seed": 1, "optim__max_grad_norm": 0.0}, "seed: 0 -> 1; optim.max_grad_norm: 1.0 -> 0.0"),
    ],
)
def test_a_changed_key_is_refused_by_name(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    folder = run_with_checkpoint(tmp_path / "run", recipe_with())
    with pytest.raises(UserError) as refusal:
        resumed(folder, facts_of(recipe_with(**changes)))
    assert str(refusal.value) == (
        f"{folder}: this is another run than the one of its checkpoint: {named}; "
        "undo the change, or choose another --output"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"data__workers": 4},
        {"data__batch_table": "elsewhere"},
        {"logging": {"every": 1, "trackers": ["tensorboard"]}},
        {"checkpoints": {"every": 7, "keep": 9}},
        {"evaluation": {"held_out": True, "every": 10, "max_documents": 5}},
    ],
)
def test_a_key_that_cannot_change_the_result_may_change(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = run_with_checkpoint(tmp_path / "run", recipe_with())
    assert resumed(folder, facts_of(recipe_with(**changes))) == []


def test_only_at_a_constant_rate_may_a_run_grow(tmp_path: Path) -> None:
    folder = run_with_checkpoint(tmp_path / "run", recipe_with(optim__schedule="constant"))
    longer = recipe_with(optim__schedule="constant", steps=200)
    assert resumed(folder, facts_of(longer)) == []
    shorter = recipe_with(optim__schedule="constant", steps=60)
    with pytest.raises(UserError, match="steps: 100 -> 60"):
        resumed(folder, facts_of(shorter))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sources": {"pairs": "c" * 64}}, 'sources.pairs: "aaaaaaaaaaaa" -> "cccccccccccc"'),
        ({"sources": {"rows": "a" * 64}}, 'sources.pairs: "aaaaaaaaaaaa" -> null'),
        ({"model": {"identity": "d" * 64}}, 'model.identity: "bbbbbbbbbbbb" -> "dddddddddddd"'),
        (
            {"extensions": {"objective": "hinge 1.1", "pooling": "last 1.0"}},
            'extensions.objective: "hinge 1.0" -> "hinge 1.1"; extensions.pooling: null -> "last 1',
        ),
    ],
)
def test_other_data_or_another_model_is_refused_by_name(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    folder = run_with_checkpoint(tmp_path / "run", recipe_with())
    with pytest.raises(UserError) as refusal:
        resumed(folder, facts_of(recipe_with(), **changes))
    assert named in str(refusal.value)


def test_another_world_size_is_refused_unless_allowed(tmp_path: Path) -> None:
    folder = run_with_checkpoint(tmp_path / "run", recipe_with())
    facts = facts_of(recipe_with(), world_size=4)
    with pytest.raises(UserError, match=r"made on 1 ranks, now there are 4; .*--allow-world-size"):
        resumed(folder, facts)
    assert resumed(folder, facts, allow=True) == ["world size 1 -> 4"]


def test_where_ranks_have_batches_of_their_own_others_would_read_other_ones(tmp_path: Path) -> None:
    folder = run_with_checkpoint(tmp_path / "run", recipe_with())
    facts = facts_of(recipe_with(), world_size=4, batches_per_rank=True)
    with pytest.raises(UserError, match=r"4; every rank reads batches of its own, so that steps"):
        resumed(folder, facts)


def test_another_number_of_threads_is_remarked(tmp_path: Path) -> None:
    folder = run_with_checkpoint(tmp_path / "run", recipe_with())
    (remark,) = resumed(folder, facts_of(recipe_with(), threads=1))
    assert remark.startswith("2 threads then, 1 now")


OTHER_RUNS = [
    ({}, {"seed": 1}, "seed: 0 -> 1"),
    ({"sources": {"pairs": "c" * 64}}, {}, 'sources.pairs: "aaaaaaaaaaaa" -> "cccccccccccc"'),
    ({"model": {"identity": "d" * 64}}, {}, 'model.identity: "bbbbbbbbbbbb" -> "dddddddddddd"'),
]


def test_a_setting_newer_than_the_run_had_its_default(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_folder.claim(folder, resume=False, overwrite=False)
    facts = facts_of(recipe_with())
    del facts["recipe"]["embedder"]["train_dense"], facts["recipe"]["embedder"]["default_prompts"]
    (folder / "run.json").write_text(json.dumps(facts))
    assert begun(folder, facts_of(recipe_with()))
    with pytest.raises(UserError, match=r"embedder\.train_dense: true -> false; undo"):
        begun(folder, facts_of(recipe_with(embedder__train_dense=False)))


def forget_recipe(folder: Path) -> None:
    """Take the recipe out of ``run.json``, where earlier versions did not have it."""
    told = json.loads((folder / "run.json").read_text())
    del told["recipe"]
    (folder / "run.json").write_text(json.dumps(told))


def begun(folder: Path, facts: dict[str, Any]) -> list[str]:
    """The remarks when a run without a checkpoint is resumed with ``facts``."""
    found, remarks = run_folder.newest_checkpoint(folder, facts, allow_world_size_change=False)
    assert found is None
    return remarks


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize(("facts", "changes", "named"), OTHER_RUNS)
def test_another_run_is_refused_before_its_first_checkpoint_too(
    earlier: bool, facts: dict[str, Any], changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    folder = run_without_checkpoint(tmp_path / "run", recipe_with())
    if earlier:
        forget_recipe(folder)
    with pytest.raises(UserError) as refusal:
        begun(folder, facts_of(recipe_with(**changes), **facts))
    assert str(refusal.value) == (
        f"{folder}: this is another run than the one of its run.json: {named}; "
        "undo the change, or choose another --output"
    )


@pytest.mark.parametrize("earlier", [False, True])
def test_the_same_run_starts_from_step_0_where_there_is_no_checkpoint(
    earlier: bool, tmp_path: Path
) -> None:
    recipe = recipe_with(data__mix=[{"manifest": "pairs"}, {"manifest": "rows"}])
    folder = run_without_checkpoint(tmp_path / "run", recipe)
    if earlier:
        forget_recipe(folder)
    facts = facts_of(recipe.model_copy(update={"logging": Logging(every=1)}), world_size=4)
    assert begun(folder, facts) == ["no checkpoint yet: starting from step 0"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null"])
def test_a_damaged_record_of_a_run_without_a_checkpoint_is_refused(
    content: str, tmp_path: Path
) -> None:
    folder = run_without_checkpoint(tmp_path / "run", recipe_with())
    (folder / "run.json").write_text(content)
    with pytest.raises(UserError, match=r"run\.json: is damaged, and there is no checkpoint"):
        begun(folder, facts_of(recipe_with()))


def checkpoints_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in (folder / "checkpoints").rglob("*") if path.is_file())
    return {str(path.relative_to(folder / "checkpoints")): path.read_bytes() for path in files}


def damage(folder: Path, step: int) -> None:
    weights = folder / "checkpoints" / f"step-{step:06d}" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def test_no_whole_checkpoint_is_refused_and_all_are_kept(tmp_path: Path) -> None:
    folder = run_with_checkpoint(tmp_path / "run", recipe_with())
    shutil.copytree(folder / "checkpoints" / "step-000050", folder / "checkpoints" / "step-000060")
    for step in (50, 60):
        damage(folder, step)
    before = checkpoints_of(folder)
    for recipe in (recipe_with(), recipe_with(seed=1)):
        with pytest.raises(UserError) as refusal:
            begun(folder, facts_of(recipe))
        reason = "model.safetensors does not match sha256.json"
        assert str(refusal.value) == (
            f"{folder}/checkpoints: no checkpoint is whole (step-000060: {reason}; step-000050: "
            f"{reason}): restore one from a backup, or begin anew with --overwrite or another "
            "--output; nothing was changed"
        )
    assert checkpoints_of(folder) == before


def test_a_damaged_checkpoint_is_set_aside_for_an_older_one_of_the_same_run(
    tmp_path: Path,
) -> None:
    folder = run_with_checkpoint(tmp_path / "run", recipe_with())
    newer = folder / "checkpoints" / "step-000060"
    shutil.copytree(folder / "checkpoints" / "step-000050", newer)
    damage(folder, 60)
    before = checkpoints_of(folder)
    with pytest.raises(UserError, match="seed: 0 -> 1"):
        resumed(folder, facts_of(recipe_with(seed=1)))
    with pytest.raises(UserError, match="--allow-world-size-change"):
        resumed(folder, facts_of(recipe_with(), world_size=2))
    assert checkpoints_of(folder) == before
    assert resumed(folder, facts_of(recipe_with())) == [
        f"{newer}: model.safetensors does not match sha256.json; set aside as damaged-step-000060"
    ]
    moved = {
        name.replace("step-000060", "damaged-step-000060"): each for name, each in before.items()
    }
    assert checkpoints_of(folder) == moved
    assert resumed(folder, facts_of(recipe_with())) == []


def test_a_run_of_which_all_was_set_aside_is_not_begun_again(tmp_path: Path) -> None:
    folder = run_with_checkpoint(tmp_path / "run", recipe_with())
    checkpoint.set_aside(folder / "checkpoints" / "step-000050")
    with pytest.raises(UserError, match=r"no checkpoint is whole \(damaged-step-000050: was set"):
        begun(folder, facts_of(recipe_with()))
