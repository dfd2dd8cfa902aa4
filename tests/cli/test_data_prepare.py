"""``embedkit data prepare --recipe`` of a recipe for fine-tuning."""

from pathlib import Path

import pytest
from embedkit_cli.data import prepare
from support.hub_sets import FIXTURES, write_data_set
from support.tiny_bert import MINILM

from embedkit.data.pairs.records import open_records
from embedkit.errors import UserError
from embedkit.models.hub import load_tokenizer
from embedkit.recipe import load_recipe


def unwrapped(printed: str) -> str:
    """What is printed as one line: where a title breaks depends on the length of a path in it."""
    return " ".join(printed.split())


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│ ").split("│")]


def test_a_recipe_s_sources_are_opened_and_listed(
    small_recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    prepare(recipe=str(small_recipe), workers=1)
    printed = capsys.readouterr()
    assert [line.split(" ")[0] for line in printed.err.splitlines()] == ["1/2", "2/2"] * 2
    assert printed.err.endswith("2/2 triplets: tokenized\n")
    rows = [cells(line) for line in printed.out.splitlines() if line.startswith("│")]
    shares, lengths = rows[:2], rows[2:]
    # 60 ** 0.5 against 40 ** 0.5; a share of 12 steps of 8 rows.
    assert [row[:4] for row in shares] == [
        ["pairs", "60", "55.1%", "0.88"],
        ["triplets", "40", "44.9%", "1.08"],
    ]
    assert [row[0] for row in lengths] == ["pairs", "triplets"]
    assert "every text: median" in unwrapped(printed.out)
    records = open_records(load_recipe(str(small_recipe)).data.mix[0].manifest)
    whole = load_tokenizer(load_recipe(str(small_recipe)).model)
    counts = sorted(
        len(whole(f"query: {each.query}").input_ids) for each in records.take(range(60))
    )
    assert lengths[0][1] == f"{counts[30]} {counts[57]} {counts[-1]}"
    assert lengths[0][3] == ""


def test_a_sample_is_read_where_not_all_is_asked_for(
    small_recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    prepare(recipe=str(small_recipe), workers=1, sample=1)
    printed = capsys.readouterr().out
    assert "1 rows at most: median" in unwrapped(printed)
    rows = [cells(line) for line in printed.splitlines() if line.startswith("│")]
    # Of one row all quantiles are the same.
    assert len(set(rows[2][1].split())) == 1


def test_text_is_never_sampled() -> None:
    with pytest.raises(UserError, match=r"sample: text is tokenized whole; leave it out \(got 3\)"):
        prepare(names=["text_hpo"], tokenizer=MINILM, sample=3)


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
    expected = [mix.manifest for mix in load_recipe("unified").data.mix]
    assert names == expected * 2
    shares = [float(row[2].rstrip("%")) for row in rows[: len(rows) // 2] if row[2]]
    assert sum(shares) == pytest.approx(100, abs=2)
