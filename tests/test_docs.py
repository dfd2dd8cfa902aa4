"""The pages of the documentation hold: their blocks run, their commands and links exist."""

import os
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from embedkit_cli.app import app
from support.page_runner import PageRunner
from support.pages import (
    NEEDS,
    PAGES,
    ROOT,
    Fence,
    commands_of,
    embedkit_words,
    fences_of,
    tokens_of,
)
from typer.core import TyperGroup

FENCES = [fence for page in PAGES for fence in fences_of(page)]
COMMANDS = [(fence, command) for fence in FENCES for command in commands_of(fence)]
RUN = [page for page in PAGES if any(fence.is_run for fence in fences_of(page))]


def by_name(value: object) -> str:
    return value.name if isinstance(value, Fence) else str(value)


def parse(words: list[str]) -> None:
    """Parse the words of a command as the command line does, without calling it."""
    command = typer.main.get_command(app)
    context = command.make_context("embedkit", list(words))
    # No group has options, so that its words begin with the name of a command.
    while isinstance(command, TyperGroup):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, found.make_context(name, list(words), parent=context)


def options_of(words: list[str]) -> set[str]:
    """Return the options of the command that ``words`` begin with."""
    command = typer.main.get_command(app)
    for word in words:
        if isinstance(command, TyperGroup) and not word.startswith("-"):
            command = command.commands[word]
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return options | {"--help"}


def test_there_is_something_to_read() -> None:
    assert {"README.md", "docs/data.md"} <= {str(page.relative_to(ROOT)) for page in PAGES}
    assert RUN
    assert COMMANDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_stands_in_fences(page: Path) -> None:
    indented = [token.content for token in tokens_of(page) if token.type == "code_block"]
    assert not indented


@pytest.mark.parametrize("fence", FENCES, ids=by_name)
def test_every_block_is_run_or_says_what_it_needs(fence: Fence) -> None:
    assert fence.needs <= NEEDS
    if fence.language == "toml":
        tomllib.loads(fence.text)
    elif fence.language == "text":
        starts = ("$ ", "embedkit ", "torchrun ", "python ", "pip ", "make ")
        assert not [line for line in fence.text.splitlines() if line.startswith(starts)]
    else:
        assert fence.is_run or fence.needs, "no test runs this: say what it needs, or make it text"


@pytest.mark.parametrize(("fence", "command"), COMMANDS, ids=by_name)
def test_every_command_can_be_parsed(fence: Fence, command: str) -> None:
    words = embedkit_words(command)
    if words is not None:
        parse(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_within_a_sentence_have_options_that_exist(page: Path) -> None:
    spans = [child for token in tokens_of(page) for child in token.children or []]
    for span in spans:
        if span.type == "code_inline" and span.content.startswith("embedkit "):
            words = embedkit_words(span.content) or []
            unknown = (
                {word for word in words if word.startswith("--")} - options_of(words) - {"--help"}
            )
            assert not unknown, f"{span.content}: there is no {', '.join(unknown)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    children = [child for token in tokens_of(page) for child in token.children or []]
    targets = [str(child.attrs.get("href") or child.attrs.get("src") or "") for child in children]
    files = [target.partition("#")[0] for target in targets if "://" not in target]
    assert not [file for file in files if not (page.parent / file).exists()]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_runs_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMBEDKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    scripts = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", scripts, prepend=os.pathsep)
    runner = PageRunner()
    for fence in fences_of(page):
        if fence.is_run:
            runner.run(fence)
