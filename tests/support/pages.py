"""The pages of the documentation, read as fences: what is shown, and what is run.

A comment before a fence says what to do with it. ``<!-- needs: hub, time -->`` names what a test
has not got: the model hub, a GPU, or minutes. ``<!-- file: own.toml -->`` gives the text its file.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda path: (len(path.parts), path)
)
NEEDS = {"hub", "gpu", "time", "package"}
_COMMENT = re.compile(r"<!-- (?P<key>needs|file): (?P<value>.+?) -->\s*")


@dataclass(frozen=True)
class Fence:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    needs: frozenset[str]
    file: str | None

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether running the page runs this block, or writes it to its file."""
        return not self.needs and (self.language in {"python", "console"} or self.file is not None)


def tokens_of(page: Path) -> list[Token]:
    """Return the Markdown tokens of a page, those of its lines included."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def fences_of(page: Path) -> list[Fence]:
    """Return the fenced blocks of a page, without the directives that only Sphinx reads."""
    found = []
    comment = None
    for token in tokens_of(page):
        if token.type == "fence" and not token.info.startswith("{"):
            said: dict[str, str] = {comment["key"]: comment["value"]} if comment else {}
            needs = frozenset(re.split(r",\s*", said["needs"]) if "needs" in said else ())
            assert token.map is not None
            line = token.map[0] + 1
            found.append(
                Fence(page, line, token.info.strip(), token.content, needs, said.get("file"))
            )
        comment = _COMMENT.fullmatch(token.content) if token.type == "html_block" else None
    return found


def transcript(text: str) -> Iterator[tuple[str, str]]:
    """Yield every command of a console block, behind its ``$``, with the output below it."""
    for block in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = block.splitlines(keepends=True)
        count = 1
        while lines[count - 1].endswith("\\\n"):
            count += 1
        yield "".join(lines[:count]).strip(), "".join(lines[count:])


def commands_of(fence: Fence) -> list[str]:
    """Return the commands of a block of ``console`` or ``bash``."""
    if fence.language == "console":
        return [command for command, _ in transcript(fence.text)]
    if fence.language == "bash":
        joined = fence.text.replace("\\\n", " ")
        return [line for line in joined.splitlines() if line.strip()]
    return []


def embedkit_words(command: str) -> list[str] | None:
    """Return the words after ``embedkit`` or ``-m embedkit_cli``; none for another program."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    words = list(takewhile(lambda word: word not in {"|", "&", "&&"}, words))
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words and words[0] == "embedkit":
        return words[1:]
    return words[words.index("embedkit_cli") + 1 :] if "embedkit_cli" in words else None
