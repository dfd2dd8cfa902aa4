import sys
from pathlib import Path

import pytest
from embedkit_cli.app import main

import embedkit
from embedkit.errors import UserError
from embedkit.models import deploy_check, hub
from embedkit.models.deploy_tools import Tool

SAME = """\
from embedkit.models import hub

model = hub.load(FOLDER)
query_vectors = model.encode(QUERIES, prompt=QUERY_PROMPT)
document_vectors = model.encode(DOCUMENTS, prompt=DOCUMENT_PROMPT)
"""
TOOLS = (
    Tool("right", "numpy", "weights", SAME),
    Tool("swapped", "numpy", "weights", SAME.replace("DOCUMENT_PROMPT", "QUERY_PROMPT")),
    Tool("fewer", "numpy", "weights", SAME + "query_vectors = query_vectors[1:]\n"),
    Tool("broken", "numpy", "weights", "raise ValueError('no such thing')\n"),
    Tool("absent", "no-such-distribution", "weights", ""),
    Tool("graphs", "numpy", "graph", ""),
)


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    model = hub.load(str(tiny_model))
    model.prompts = {"query": "find: ", "document": ""}
    model.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
def test_each_tool_s_vectors_are_compared_in_a_process_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy_check, "TOOLS", TOOLS)
    checked = embedkit.deploy_check(folder)
    right, swapped, fewer, broken, absent, graphs = checked.rows
    assert right.difference is not None
    assert right.difference < 1e-5
    assert right.version
    assert not right.failed
    assert swapped.difference is not None
    assert swapped.difference > 1e-3
    assert swapped.failed
    assert "vectors of shape (6, 32) and not (7, 32)" in fewer.obstacle
    assert broken.obstacle == "failed: ValueError: no such thing"
    assert [row.failed for row in (fewer, broken, absent, graphs)] == [True, True, False, False]
    assert (absent.obstacle, graphs.obstacle) == ("not installed", "the folder holds no graph")
    assert not checked.is_sound


@pytest.mark.slow
def test_the_command_opens_what_is_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["embedkit", "deploy-check", "--model", str(folder)])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "formers  " in line]
    assert float(row.split("│")[3]) < 1e-5


def test_what_cannot_be_checked_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no-such-python: is no program that can be run; check"):
        embedkit.deploy_check(folder, python="no-such-python")
    with pytest.raises(UserError, match="org/name: is no folder here"):
        embedkit.deploy_check("org/name", python=sys.executable)
    (folder / "model.safetensors").unlink()
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").touch()
    with pytest.raises(UserError, match="holds an ONNX graph and no weights; name the model that"):
        embedkit.deploy_check(folder)
