"""``embedkit data shares``: what the sampler draws, from the manifests alone."""

from pathlib import Path

import pytest
from embedkit_cli.data import app
from typer.testing import CliRunner

from embedkit.config import shipped
from embedkit.errors import UserError

# Of the sets whose manifests state none, as in docs/data.md.
ASSUMED = {
    "concurrentqa": 30_478, "gooaq": 2_286_783, "medmcqa": 182_822, "medmcqa_clust": 182_822,
    "pubmedqa": 2_000, "stackoverflow": 19_847, "sts12": 1_000, "stsbenchmark": 1_000,
    "triviaqa": 60_025, "yahoo_clust": 1_400_000,
}  # fmt: skip


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """Of two sources whose data are nowhere; only the first states its rows."""
    for name, more in (("large", "rows = 900"), ("small", "batch_size = 4")):
        source = 'source = { kind = "files", files = [{ path = "absent.jsonl" }] }'
        (tmp_path / f"{name}.toml").write_text(f"{more}\n{source}\n")
    mix = ", ".join(f'{{ manifest = "{tmp_path / name}.toml" }}' for name in ("large", "small"))
    path = tmp_path / "recipe.toml"
    tables = f"data = {{ batch_size = 8, mix = [{mix}] }}\noptim = {{ lr = 1e-4 }}\n"
    path.write_text(f'steps = 400\nmodel = "starter"\n{tables}')
    return str(path)


def run(*words: str) -> list[list[str]]:
    result = CliRunner().invoke(app, ["shares", *words], catch_exceptions=False)
    return [line.split("\t") for line in result.output.splitlines()]


def test_drawn_shares_follow_the_square_roots_of_the_rows(recipe: str) -> None:
    _, large, small = run("--recipe", recipe, "--rows", "small=100")
    # 900 ** 0.5 against 100 ** 0.5.
    assert (large[3], small[3]) == ("75.00%", "25.00%")
    steps = [int(line[5]) for line in (large, small)]
    assert sum(steps) == 400
    # A standard deviation is (400 * 0.75 * 0.25) ** 0.5.
    assert large[6] == f"{(steps[0] - 300) / 75**0.5:+.1f}"
    assert abs(steps[0] - 300) < 4 * 75**0.5
    # Batches of 8 and of 4, of which 112 and 25 make an epoch.
    assert [large[7], small[7]] == [f"{steps[0] / 112:.2f}", f"{steps[1] / 25:.2f}"]


def test_other_steps_may_be_asked_for(recipe: str) -> None:
    lines = run("--recipe", recipe, "--rows", "small=100", "--steps", "10")[1:]
    assert sum(int(line[5]) for line in lines) == 10


def test_the_steps_of_a_recipe_in_epochs_follow_from_the_rows(recipe: str) -> None:
    path = Path(recipe)
    path.write_text(path.read_text().replace("steps = 400", "epochs = 2"))
    lines = run("--recipe", recipe, "--rows", "small=100")[1:]
    assert sum(int(line[5]) for line in lines) == 2 * (112 + 25)


def test_the_rows_that_validation_may_expect_to_hold_out_are_not_counted(recipe: str) -> None:
    path = Path(recipe)
    path.write_text(f"{path.read_text()}validation = {{ share = 0.5 }}\n")
    lines = run("--recipe", recipe, "--rows", "small=100")[1:]
    assert [line[1] for line in lines] == ["450", "50"]


def test_the_unified_recipe_can_have_batches_of_4096(tmp_path: Path) -> None:
    recipe = (shipped("recipes") / "unified.toml").read_text()
    path = tmp_path / "large.toml"
    path.write_text(recipe.replace("batch_size = 256", "batch_size = 4096"))
    told = [word for name, rows in ASSUMED.items() for word in ("--rows", f"{name}={rows}")]
    batches = {line[0]: line[2] for line in run("--recipe", str(path), *told)[1:]}
    own = dict.fromkeys(("pubmedqa", "sts12", "stsbenchmark"), "256")
    assert batches == dict.fromkeys(batches, "4096") | own


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), r"small: its manifest states no rows: pass --rows small=ROWS"),
        (("--rows", "smal=3"), r"--rows: the recipe's data\.mix has no source smal"),
        (("--rows", "small"), r"--rows small: write NAME=ROWS"),
        (("--rows", "small=0"), r"--rows small=0: write NAME=ROWS"),
    ],
)
def test_a_mistake_is_told(recipe: str, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run("--recipe", recipe, *words)
