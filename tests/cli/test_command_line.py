"""How the command line reads words: help, versions, completion, and mistakes in one line."""

import ast
import errno
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import embedkit_cli
import pytest
from embedkit_cli.app import app, main
from typer.main import get_command
from typer.testing import CliRunner

from embedkit.errors import UserError

EMBEDKIT = str(Path(sys.executable).with_name("embedkit"))
ALLOWED = {"embedkit.api", "embedkit.errors", "embedkit.config", "embedkit.recipe"}
FILES = sorted(Path(embedkit_cli.__file__).parent.glob("*.py"))


def commands() -> dict[str, Any]:
    """Return every command by its words."""
    root: Any = get_command(app)
    data = {f"data {name}": each for name, each in root.commands["data"].commands.items()}
    return {**root.commands, **data}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_go_through_the_api(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not [each.name for each in node.names if each.name.startswith("embedkit.")]
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            inner = node.module.startswith("embedkit.")
            assert not inner or node.module in ALLOWED, f"{path} imports from {node.module}"


@pytest.mark.parametrize("words", [["-h"], ["--help"], []])
def test_help_lists_the_commands_in_the_order_of_the_work(words: list[str]) -> None:
    result = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert result.exit_code == 0
    listed = re.findall(r"^│ ([a-z][a-z-]+)  ", result.output, flags=re.M)
    assert listed == [
        *("data", "inspect", "pretrain", "finetune", "init", "mine", "cluster"),
        *("eval-mteb", "eval-perplexity", "compare", "failures", "export", "blend"),
        *("deploy-check", "recipes", "show", "batch", "explain", "schema"),
    ]


@pytest.mark.parametrize("name", commands())
def test_every_command_and_option_has_a_sentence_of_help(name: str) -> None:
    command = commands()[name]
    texts = {"": command.help}
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            texts[parameter.opts[0]] = parameter.help
    for option, text in texts.items():
        assert text, f"{name} {option}"
        assert text.rstrip().endswith("."), f"{name} {option}: {text}"
        assert len(text.split()) > 3, f"{name} {option}: {text}"
        # What is put in front of a sentence that lost its subject.
        assert not re.match(r"(Of|For|That|How many|From|Default) ", text), f"{name}: {text}"


def test_h_is_help_of_every_command() -> None:
    for words in (["mine", "-h"], ["data", "-h"], ["data", "check", "-h"]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert "Usage: " in result.output


def printed_without_torch(*words: str) -> str:
    """Return what a command prints in a process that must end without a heavy import."""
    script = f"import sys; sys.argv = {['embedkit', *words]}\n"
    script += "from embedkit_cli.app import main\n"
    script += "try: main()\nexcept SystemExit as end: assert end.code == 0\n"
    script += "heavy = {'torch', 'transformers', 'mteb', 'datasets', 'numpy'} & set(sys.modules)\n"
    script += "assert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_does_not_wait_for_torch() -> None:
    assert "--recipe" in printed_without_torch("finetune", "--help")


def test_versions_are_printed_without_an_import() -> None:
    named = ["embedkit-neobert", "torch", "transformers", "sentence-transformers", "mteb"]
    lines = printed_without_torch("--version").splitlines()
    assert lines == [f"{name} {version(name)}" for name in named]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("mine --searhc torch", "--searhc: no such option; did you mean --search or --source?"),
        ("show starter --frobnicate", "--frobnicate: no such option; embedkit show --help lists"),
        ("mine --source", "option '--source' requires an argument"),
        ("mine --source a --output b", "--model is missing; embedkit mine --help describes it"),
        ("show", "RECIPE is missing; embedkit show --help describes it"),
        (
            "mine --source a --model b --output c --search annoy",
            "--search: 'annoy' is not one of 'torch', 'faiss-flat', 'faiss-ivf'",
        ),
        (
            "mine --source a --model b --output c --depth deep",
            "--depth: Input should be a valid integer, unable to parse string as an integer "
            "(got deep)",
        ),
        (
            "batch --recipe starter --step -1",
            "--step: Input should be greater than or equal to 0 (got -1)",
        ),
        ("mine --source a --model b --output c --margin -1", "--margin: Input should be greater"),
        ("finetun", "no such command 'finetun'; did you mean 'finetune'?"),
        ("train --recipe starter", "no such command 'train'; did you mean 'finetune'?"),
        ("data chek", "no such command 'chek'; did you mean 'check'?"),
        ("schema recipes", "KIND: 'recipes' is not one of 'recipe', 'pretrain-recipe', 'mani"),
        ("explain optim.lr starter", "got unexpected extra argument"),
        ("explain optim.lrr", "optim.lrr: no recipe has such a key, did you mean optim.lr"),
    ],
)
def test_wrong_words_are_answered_in_one_line(
    words: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["embedkit", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"error: {line}")
    assert told.err.count("\n") == 1


def test_a_mistake_in_a_program_is_not_taken_for_one_of_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from embedkit import api

    def broken(*_args: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(api, "explain", broken, raising=False)
    result = CliRunner().invoke(app, ["explain", "optim.lr"])
    assert isinstance(result.exception, KeyError)
    assert not isinstance(result.exception, UserError)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), "a/b: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (FileExistsError(errno.EEXIST, "File exists", "a"), "a: File exists"),
        (OSError(errno.EIO, "Input/output error", "a/b"), None),
    ],
)
def test_a_disk_that_cannot_be_written_is_answered_in_one_line(
    error: OSError,
    line: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from embedkit import api

    def full(*_args: object) -> None:
        raise error

    monkeypatch.setattr(api, "explain", full, raising=False)
    monkeypatch.setattr(sys, "argv", ["embedkit", "explain", "optim.lr"])
    with pytest.raises(OSError if line is None else SystemExit) as ended:
        main()
    if line is not None:
        assert isinstance(ended.value, SystemExit)
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"error: {line}\n"


def test_a_cache_that_cannot_be_made_is_answered_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "pairs.jsonl").write_text('{"query": "a", "positive": "b"}\n')
    manifest = tmp_path / "pairs.toml"
    files = f'[{{ path = "{tmp_path}/pairs.jsonl" }}]'
    manifest.write_text(f'[source]\nkind = "files"\nfiles = {files}\n')
    monkeypatch.setenv("EMBEDKIT_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(sys, "argv", ["embedkit", "data", "show", str(manifest)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"error: {tmp_path}/file/cache/records: cannot be written (Not a directory); set "
        "EMBEDKIT_CACHE to a folder that can be written"
    ]


def completed(*words: str) -> set[str]:
    """Return what bash is offered behind the last of ``words``."""
    request = {
        "_EMBEDKIT_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["embedkit", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([EMBEDKIT], env=os.environ | request, capture_output=True, text=True)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["fin"], {"finetune"}),
        (["finetune", "--recipe", "cde-s"], {"cde-stage1", "cde-stage2", "cde-starter"}),
        (["show", "ablations/m1"], {"ablations/m1"}),
        (["mine", "--source", "hpo_"], {"hpo_definition", "hpo_synonym"}),
        (["data", "show", "open/hpo_"], {"open/hpo_definition", "open/hpo_synonym"}),
        (["mine", "--search", "faiss"], {"faiss-flat", "faiss-ivf"}),
        (["data", "show", "instr"], set()),
    ],
)
def test_the_shell_completes_commands_choices_and_names(words: list[str], offers: set[str]) -> None:
    assert completed(*words) == offers


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_the_completion_is_shown(shell: str) -> None:
    request = {"_EMBEDKIT_COMPLETE": f"source_{shell}"}
    done = subprocess.run([EMBEDKIT], env=os.environ | request, capture_output=True, text=True)
    assert "_EMBEDKIT_COMPLETE=complete" in done.stdout
