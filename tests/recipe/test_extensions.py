"""What is registered wrongly is answered in one line, and what is read is what was written."""

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from support.json_schema import violations

from embedkit.errors import UserError
from embedkit.recipe import Recipe, explain, extensions, load_recipe
from embedkit.recipe.pair_objectives import OBJECTIVES

TABLES: dict[str, Any] = {
    "steps": 100,
    "model": "starter",
    "data": {"batch_size": 8, "mix": [{"manifest": "a"}]},
    "optim": {"lr": 1e-4},
}
SECTION = """
from typing import Literal
from embedkit.recipe import PairObjective
class Mine(PairObjective):
    kind: Literal["mine"] = "mine"
    strength: float = 1.0
    implementation = "nowhere:Mine"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(TABLES | {"objective": {"kind": "mine", "strength": 2.0}}))
    return str(path)


def register(site: Path, name: str, value: str, code: str = SECTION) -> None:
    """Install the distribution ``name`` whose loss ``mine`` is at ``value``."""
    site.mkdir(exist_ok=True)
    (site / f"{value.partition(':')[0]}.py").write_text(code)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[embedkit.objectives]\nmine = {value}\n")


def test_a_registered_section_reads_back_with_its_fields(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path / "site", "first", "mine_one:Mine")
    monkeypatch.syspath_prepend(tmp_path / "site")
    read = load_recipe(recipe, ["objective.strength=3.0"])
    dumped = read.model_dump(mode="json", exclude_none=True)
    assert dumped["objective"] == {"kind": "mine", "strength": 3.0}
    assert Recipe.model_validate(dumped) == read
    assert OBJECTIVES.identity_of(read.objective) == "first 1.0 mine_one:Mine"
    assert extensions.names("embedkit.objectives") == ["mine"]
    with pytest.raises(UserError, match=r"Mine\.implementation = \'nowhere:Mine\' cannot be load"):
        read.objective.build()


@pytest.mark.parametrize("kind", ['kind: Literal["mine"] = "mine"', 'kind: str = "mine"'])
def test_a_registered_section_is_in_the_schema_and_explained(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"mine_{len(kind)}"
    code = SECTION.replace('kind: Literal["mine"] = "mine"', kind)
    code += "    weights: dict[str, float] = {'a': 0.5}\n    ''\n"
    register(tmp_path / "site", "first", f"{module}:Mine", code)
    monkeypatch.syspath_prepend(tmp_path / "site")
    schema = Recipe.model_json_schema()
    for objective, mistakes in (
        ({"kind": "mine", "strength": 2.0}, 0),
        ({"kind": "contrastive", "temperature": 0.1}, 0),
        ({"kind": "contrastive", "strength": 2.0}, 1),
        ({"kind": "mine", "strenght": 2.0}, 1),
        ({"kind": "other"}, 1),
    ):
        found = violations(TABLES | {"objective": objective}, schema, schema)
        assert bool(found) == bool(mistakes), (objective, found)
    assert explain("objective.weights") == (
        'objective.weights (fine-tuning, objective.kind = mine)\n  table, default {"a": 0.5}\n'
    )
    assert explain("objective.strength").splitlines()[:2] == [
        "objective.strength (fine-tuning, objective.kind = mine)",
        "  number, default 1.0",
    ]


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        ("mine_two:Mine", "import no_such_module", "mine_two:Mine of one 1.0 cannot be loaded: No"),
        ("mine_three:Mine", "", "mine: mine_three:Mine of one 1.0 cannot be loaded: .*attribute"),
        ("mine_four:Mine", "Mine = 3", r"mine_four:Mine of one 1\.0 is no subclass of embedkit\."),
        (
            "mine_five:Mine",
            SECTION.replace('"mine"', '"other"'),
            r"objective\.kind: Input should be 'other' \(got 'mine'\)",
        ),
    ],
)
def test_what_is_registered_wrongly_is_named(
    value: str,
    code: str,
    message: str,
    recipe: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(tmp_path / "site", "one", value, code)
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(UserError, match=message) as told:
        load_recipe(recipe)
    assert "\n" not in str(told.value)


def test_a_name_that_two_distributions_register_is_refused(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path / "site", "first", "mine_six:Mine")
    register(tmp_path / "site", "second", "mine_seven:Mine")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(UserError, match=r"mine: (\w+ 1\.0) and (\w+ 1\.0) both register it in emb"):
        load_recipe(recipe)


def test_what_is_not_installed_is_answered_with_what_is(recipe: str) -> None:
    with pytest.raises(UserError, match=r"objective: kind = 'mine': the kinds known are contrast"):
        load_recipe(recipe)
