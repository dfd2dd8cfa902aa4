import sys
import tomllib
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from embedkit_cli.app import app, main
from support.architecture import GRADIENT_PATH, PACKAGE, ROOT
from support.ranks import launcher_store, run_on_ranks
from support.small_runs import STEPS
from typer.testing import CliRunner

from embedkit import api, distributed
from embedkit.config import validated
from embedkit.errors import UserError
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.recipe import Recipe, load_recipe
from embedkit.training.trainer import Interrupted


def shown(*words: str) -> str:
    """What a command prints that ends well."""
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


def exit_code(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["embedkit", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_warning_is_one_line_without_the_code_that_warns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Put back after the test.
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    assert exit_code(monkeypatch, "show", "starter") == 0
    place = ("mixture.py", 57)
    assert warnings.formatwarning("npr: 12 rows", UserWarning, *place) == "warning: npr: 12 rows\n"
    # Those of libraries say where they come from.
    assert "mixture.py:57" in warnings.formatwarning("old", DeprecationWarning, *place)


def test_a_recipe_is_shown_with_its_defaults_and_reads_back() -> None:
    tables = tomllib.loads(shown("show", "starter"))
    assert validated(Recipe, tables, "shown") == load_recipe("starter")
    assert tables["objective"]["temperature"] == 0.07
    assert tables["data"]["alpha"] == 0.5


def test_a_recipe_is_shown_with_its_overrides() -> None:
    assert tomllib.loads(shown("show", "starter", "--set", "optim.lr=1e-3"))["optim"]["lr"] == 1e-3


def test_three_hops_lead_from_the_command_to_the_gradient(
    small_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def record_calls(*_args: object, **_options: object) -> None:
        calls.extend(frame.filename for frame in traceback.extract_stack())
        raise UserError("seen")

    monkeypatch.setattr(ContrastiveObjective, "backward", record_calls)
    words = ["finetune", "--recipe", str(small_recipe), "--output", str(tmp_path / "run")]
    assert CliRunner().invoke(app, words).exit_code == 1
    # The command's own frame comes after those of typer and of the test.
    begin = calls.index(str(ROOT / GRADIENT_PATH[0]))
    files = dict.fromkeys(call for call in calls[begin:] if call.startswith(str(PACKAGE)))
    assert [str(Path(file).relative_to(ROOT)) for file in files] == GRADIENT_PATH[1:-1]


def test_two_recipes_are_compared(small_recipe: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(small_recipe.read_text().replace("lr = 0.001", "lr = 0.01"))
    assert shown("show", str(small_recipe), str(other)) == "optim.lr: 0.001 -> 0.01\n"
    assert shown("show", str(small_recipe), str(small_recipe)) == ""


def test_a_batch_is_printed_as_the_model_will_see_it(small_recipe: Path) -> None:
    command = ("batch", "--recipe", str(small_recipe), "--step")
    pages = [shown(*command, str(step)).splitlines() for step in range(STEPS)]
    heads = [page[0] for page in pages]
    assert {head.partition(", ")[2] for head in heads} == {"batch 0: pairs", "batch 0: triplets"}
    triplets = next(page for page in pages if page[0].endswith("triplets"))
    rows = [line.split("\t") for line in triplets[1:]]
    assert [(row, role) for row, role, _ in rows] == [
        (str(row), role) for row in range(8) for role in ("query", "positive", *["negative"] * 3)
    ]
    for _, role, text in rows:
        assert text.startswith("query: ") == (role == "query")
    # The number of a pair stands at the beginning of its query and at the end of its positive.
    for (_, _, query), (_, _, positive) in zip(rows[::5], rows[1::5], strict=True):
        assert query.split()[1] == positive.split()[-1]


def test_every_batch_of_an_accumulated_step_is_printed(small_recipe: Path) -> None:
    words = (
        "batch",
        "--recipe",
        str(small_recipe),
        "--step",
        "1",
        "--set",
        "optim.gradient_accumulation_steps=2",
    )
    heads = [line for line in shown(*words).splitlines() if line.startswith("step ")]
    assert [head.partition(":")[0] for head in heads] == ["step 1, batch 0", "step 1, batch 1"]


def test_exit_codes_tell_success_from_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_code(monkeypatch, "show", "starter") == 0
    assert exit_code(monkeypatch, "show", "startr") == 2
    assert exit_code(monkeypatch, "finetune") == 2
    assert exit_code(monkeypatch, "finetune", "--no-such-option") == 2
    assert exit_code(monkeypatch, "no-such-command") == 2


def lines_of_ranks(capfd: pytest.CaptureFixture[str], body: Callable[..., None]) -> list[str]:
    """What two ranks of one launcher print on standard error."""
    capfd.readouterr()
    with launcher_store():
        run_on_ranks(2, body)
    return capfd.readouterr().err.splitlines()


def check_exit_code(expected: int, *words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "PATIENCE", 0.5)
        assert exit_code(patch, *words) == expected


def test_a_mistake_that_every_rank_finds_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    (line,) = lines_of_ranks(capfd, every_rank_is_wrong)
    assert line.startswith("error: startr: not a name under recipes/")


def every_rank_is_wrong() -> None:
    check_exit_code(2, "show", "startr")


@pytest.mark.slow
def test_a_mistake_on_another_rank_is_told_with_its_number(
    capfd: pytest.CaptureFixture[str],
) -> None:
    (line,) = lines_of_ranks(capfd, one_rank_is_wrong)
    assert line.startswith("error: rank 1: startr: not a name under recipes/")


def one_rank_is_wrong() -> None:
    if distributed.rank() == 1:
        check_exit_code(2, "show", "startr")


@pytest.mark.slow
def test_ranks_tell_the_mistakes_in_which_they_differ(capfd: pytest.CaptureFixture[str]) -> None:
    other, one = sorted(lines_of_ranks(capfd, each_rank_is_wrong_in_its_way))
    assert one.startswith("error: recipe-0: not a name under recipes/")
    assert other.startswith("error: rank 1: recipe-1: not a name under recipes/")


def each_rank_is_wrong_in_its_way() -> None:
    check_exit_code(2, "show", f"recipe-{distributed.rank()}")


@pytest.mark.slow
def test_an_error_that_follows_from_the_end_of_another_rank_is_not_told(
    small_recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    with launcher_store():
        run_on_ranks(2, leave_the_other_alone, small_recipe, tmp_path / "run")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: rank 1: startr: not a name under recipes/")


def leave_the_other_alone(recipe: Path, output: Path) -> None:
    if distributed.rank() == 1:
        # Then this rank leaves the group, in which the other one waits.
        check_exit_code(2, "show", "startr")
    else:
        check_exit_code(1, "finetune", "--recipe", str(recipe), "--output", str(output))


def test_mining_under_torchrun_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ("mine", "--source", "pairs", "--model", "starter", "--output", "mined")
    assert exit_code(monkeypatch, *words) == 2
    assert capsys.readouterr().err == (
        "error: embedkit mine works in one process: start it without torchrun\n"
    )


@pytest.mark.parametrize(
    ("recipe", "output"),
    [
        ("starter", "runs/starter"),
        ("paper/large", "runs/paper/large"),
        ("/data/recipes/mine.toml", "runs/mine"),
        ("../mine.toml", "runs/mine"),
    ],
)
def test_a_run_goes_under_runs_by_the_name_of_its_recipe(recipe: str, output: str) -> None:
    assert api.default_output(recipe) == Path(output)


@pytest.mark.parametrize("under_torchrun", [False, True])
def test_a_stopped_run_tells_the_command_that_continues_it(
    under_torchrun: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*_args: object, **_options: object) -> None:
        raise Interrupted(17)

    monkeypatch.setattr(api, "finetune", stop)
    launcher = "embedkit"
    if under_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        launcher = "torchrun --nproc-per-node 2 -m embedkit_cli"
    words = ("finetune", "--recipe", "starter", "--overwrite", "--set", "model=my model")
    assert exit_code(monkeypatch, *words) == 0
    assert capsys.readouterr().out == (
        f"stopped after step 17; continue with: {launcher} finetune --recipe starter "
        "--set 'model=my model' --resume\n"
    )
