"""``embedkit data`` on text."""

from pathlib import Path

import pytest
from embedkit_cli.data import app
from typer.testing import CliRunner

from embedkit.errors import UserError
from embedkit.storage import cache

RUNNER = CliRunner(env={"COLUMNS": "200"})


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    """A hundred documents of two to eleven words, a fifth of them held out."""
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"{n} {'word ' * (1 + n % 10)}\n" for n in range(100)))
    path = tmp_path / "mine.toml"
    path.write_text(
        f'source = {{ kind = "files", files = [{{ path = "{lines}" }}] }}\n'
        'columns = { text = "text" }\nheld_out = { share = 0.2 }\nlicense = "CC0"\n'
    )
    return str(path)


def cells(output: str, name: str) -> list[list[str]]:
    rows = [line.strip("│").split("│") for line in output.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows if row[0].strip() == name]


def test_prepare_tokenizes_and_says_what_there_is(manifest: str) -> None:
    result = RUNNER.invoke(app, ["prepare", manifest, "--tokenizer", "starter"])
    assert result.exit_code == 0, result.output
    (row,) = cells(result.output, "mine")
    documents, held_out = int(row[1]), int(row[3])
    assert documents + held_out == 100
    assert 10 < held_out < 30
    # Two special tokens included.
    assert row[-1] == "13"
    assert max(map(len, result.output.splitlines())) <= 80
    assert len(list((cache.root() / "tokens").glob("*/train.ids"))) == 1


def test_prepare_takes_the_sources_and_the_tokenizer_of_a_recipe(
    manifest: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        f"""
        steps = 1
        model = {{ tokenizer = "starter" }}
        objective = {{ kind = "masked_lm" }}
        optim = {{ lr = 1e-3 }}
        [data]
        mix = [{{ manifest = "{manifest}" }}, {{ manifest = "{manifest}", min_tokens = 10 }}]
        max_tokens = 16
        batch_tokens = 64
        draw_rows = 4
        """
    )
    result = RUNNER.invoke(app, ["prepare", "--recipe", str(recipe)])
    assert result.exit_code == 0, result.output
    assert len(cells(result.output, "mine")) == 1


@pytest.mark.parametrize(
    "words", [[], ["text_hpo"], ["text_hpo", "--recipe", "x"], ["--tokenizer", "starter"]]
)
def test_prepare_wants_names_and_a_tokenizer_or_a_recipe(words: list[str]) -> None:
    with pytest.raises(UserError, match=r"takes NAME.* and --tokenizer, or --recipe alone"):
        RUNNER.invoke(app, ["prepare", *words], catch_exceptions=False)


def test_prepare_refuses_pairs() -> None:
    words = ["prepare", "hpo_synonym", "--tokenizer", "starter"]
    with pytest.raises(UserError, match="hpo_synonym: describes pairs"):
        RUNNER.invoke(app, words, catch_exceptions=False)


def test_check_counts_documents_and_finds_a_changed_byte(manifest: str) -> None:
    result = RUNNER.invoke(app, ["check", manifest])
    name, verdict, found = result.output.strip().split("\t")
    assert (name, verdict) == (manifest, "ok")
    assert found.endswith(" held out")
    words = ["check", manifest, "--tokenizer", "starter"]
    assert RUNNER.invoke(app, words).output.strip().endswith(" tokens")
    (ids,) = (cache.root() / "tokens").glob("*/held_out.ids")
    ids.write_bytes(bytes(ids.stat().st_size))
    result = RUNNER.invoke(app, words)
    assert result.exit_code == 1
    assert "block 0 of held_out is not as it was written" in result.output


def test_show_prints_source_documents_and_lengths(manifest: str) -> None:
    result = RUNNER.invoke(app, ["show", manifest])
    assert result.exit_code == 0, result.output
    # A long title goes on in a second line.
    output = " ".join(result.output.split())
    for shown in ("CC0", "20 % of the documents", "3 word word word word", "first 100 documents"):
        assert shown in output
