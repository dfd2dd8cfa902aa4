import sys
from pathlib import Path

import pytest
from embedkit_cli.app import app, main
from support.small_runs import write_source
from typer.testing import CliRunner

from embedkit.data.faiss_library import load_faiss
from embedkit.errors import UserError


def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line of a mistake."""
    monkeypatch.setattr(sys, "argv", ["embedkit", "mine", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.usefixtures("native_bf16")
def test_the_command_prints_the_audit_and_where_the_manifest_is(
    tiny_model: Path, tmp_path: Path
) -> None:
    source = write_source(tmp_path, "pairs", 20, 0)
    words = ["mine", "--source", str(source), "--model", str(tiny_model), "--negatives", "2"]
    output = str(tmp_path / "mined")
    result = CliRunner().invoke(app, [*words, "--depth", "9", "--output", output])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["rows", "20"]
    assert ["negatives", "equal", "to", "a", "positive", "0"] in [line.split() for line in lines]
    assert any(line.split() == ["score", "positives", "negatives"] for line in lines)
    assert lines[-1] == f"manifest: {tmp_path / 'mined' / 'mined.toml'}"
    checked = CliRunner().invoke(app, ["data", "check", lines[-1].partition(" ")[2]])
    assert checked.exit_code == 0, checked.output
    assert "\tok\t20 rows" in checked.stdout


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("--depth", "3"), "error: --negatives 5 are more than the ranks from --skip 0 to --depth"),
        (
            ("--search", "annoy"),
            "error: --search: 'annoy' is not one of 'torch', 'faiss-flat', 'faiss-ivf'",
        ),
        (("--margin", "nan"), "error: --margin: Input should be"),
        (
            ("--dtype", "int8"),
            "error: --dtype: 'int8' is not one of 'auto', 'bf16', 'fp16', 'fp32'",
        ),
        (("--model", "./nowhere"), "error: ./nowhere: no such folder"),
        (("--source", "hpo_synonims"), "error: hpo_synonims: not a name under data_manifests/"),
        (("--output", "file"), "file: is a file; choose another --output"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    words: tuple[str, ...],
    answer: str,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    source = write_source(tmp_path, "pairs", 20, 0)
    sound = ("--source", str(source), "--model", str(tiny_model), "--output", "mined")
    line = told(monkeypatch, capsys, *sound, *words)
    assert answer in line
    assert line.count("\n") == 1
    assert not Path("mined").exists()


def test_faiss_that_is_not_installed_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(
        UserError, match=r'search: faiss is not .* pip install "embedkit-neobert\[faiss\]"'
    ):
        load_faiss("search")
