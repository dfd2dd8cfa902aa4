"""``embedkit data prepare --recipe`` of a recipe for fine-tuning."""

from pathlib import Path

import pytest
from embedkit_cli.data import prepare
from hub_fixtures import FIXTURES, write_data_set
from tiny import MINILM

from embedkit.data.lengths import Lengths
from embedkit.recipe import load_recipe


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│ ").split("│")]


def test_a_recipe_s_sources_are_opened_and_listed(
    small_recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    prepare(recipe=str(small_recipe), workers=1)
    printed = capsys.readouterr()
    assert [line.split("\t")[0] for line in printed.err.splitlines()] == ["1/2", "2/2"]
    rows = [cells(line) for line in printed.out.splitlines() if line.startswith("│")]
    assert [row[:2] for row in rows] == [["pairs", "60"], ["triplets", "40"]]
    # 60 ** 0.5 against 40 ** 0.5; a share of 12 steps of 8 rows.
    assert [row[3:5] for row in rows] == [["55.1%", "0.88"], ["44.9%", "1.08"]]


@pytest.mark.slow
def test_all_of_table_7_is_prepared_from_folders_that_stand_for_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBEDKIT_HUB", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    for id_ in FIXTURES:
        write_data_set(tmp_path, id_)
    prepare(recipe="unified", tokenizer=MINILM)
    rows = [cells(line) for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    names = [row[0] for row in rows if row[0]]
    assert names == [mix.manifest for mix in load_recipe("unified").data.mix]
    assert sum(float(row[3].rstrip("%")) for row in rows if row[3]) == pytest.approx(100, abs=2)


def test_the_truncated_share_is_of_all_texts_by_their_own_limit() -> None:
    lengths = Lengths(3, {"query": [4, 5, 6], "positive": [9, 9, 9], "negatives": [11, 10]})
    assert lengths.truncated(5, 10) == pytest.approx(2 / 8)
    assert lengths.truncated(6, 8) == pytest.approx(5 / 8)
