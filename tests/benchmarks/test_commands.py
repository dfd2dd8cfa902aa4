"""The commands that pages and scripts tell people to run."""

import importlib
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *FOLDER.rglob("*.md")]
COMMANDS = sorted(
    {
        command
        for page in PAGES
        for command in re.findall(r"python (benchmarks/\w+\.py[^`\n]*)", page.read_text())
    }
)
RECORDER = """#!/usr/bin/env bash
printf '%s\\n' "$(printf ' %q' "${0##*/}" "$@")" >> "$RECORDED"
"""


def assert_parses(command: str) -> None:
    """A benchmark takes the words of a command, which begins with its file."""
    script, *words = shlex.split(command)
    importlib.import_module(Path(script).stem).read_options(words)


@pytest.mark.slow
def test_every_command_of_the_gpu_script_parses(tmp_path: Path) -> None:
    for name in ("python", "nvidia-smi"):
        recorder = tmp_path / name
        recorder.write_text(RECORDER)
        recorder.chmod(0o755)
    recorded = tmp_path / "recorded"
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": "python"}
    subprocess.run(
        [FOLDER / "gpu.sh"], check=True, env={**os.environ, **path, "RECORDED": str(recorded)}
    )
    _, tests, *commands = recorded.read_text().splitlines()
    assert tests == " python -m pytest -m gpu"
    assert commands
    for command in commands:
        assert_parses(command.removeprefix(" python "))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_pages_parses(command: str) -> None:
    assert_parses(command)


def test_the_readme_lists_every_benchmark() -> None:
    scripts = [path for path in FOLDER.glob("*.py") if "def main()" in path.read_text()]
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert scripts
    assert not [path.name for path in scripts if f"| `python benchmarks/{path.name}" not in listed]
