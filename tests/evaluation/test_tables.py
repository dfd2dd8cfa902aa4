import pytest
from markdown_it import MarkdownIt
from rich.table import Column, Table

from embedkit.evaluation.tables import as_block, as_code, as_markdown, as_prose

HOSTILE = [
    "a | b",
    "``` end",
    "_own_ task_of_mine *bold* ~~cut~~",
    "<script>alert(1)</script> &amp; [a](http://x) ![b](c)",
    "back\\slash \\| pipe",
    "ends in \\",
    "`tick",
    " spaces around ",
    "query: ",
]


def text_of(markdown: str, kind: str) -> list[str]:
    """The texts of a page's nodes of one kind, by a parser of CommonMark and GitHub's tables."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(markdown)
    found = []
    for token in tokens:
        children = token.children or []
        if kind == "prose" and token.type == "inline":
            assert {child.type for child in children} <= {"text", "text_special", "softbreak"}
            found.append("".join(child.content for child in children))
        found += [child.content for child in (token, *children) if child.type == kind]
    return found


@pytest.mark.parametrize("text", HOSTILE)
def test_data_in_a_page_is_shown_as_it_is(text: str) -> None:
    assert text_of(as_prose(text), "prose") == [text.strip()]
    assert text_of(f"before {as_code(text)} after", "code_inline") == [text]
    assert text_of(as_block(f"{text}\n```\nmore", "toml"), "fence") == [f"{text}\n```\nmore\n"]


def test_a_table_keeps_its_cells() -> None:
    table = Table("name", Column("score", justify="right"))
    for text in HOSTILE:
        table.add_row(text, "1.5")
    shown = text_of(as_markdown(table), "prose")
    assert shown == ["name", "score", *(cell for text in HOSTILE for cell in (text.strip(), "1.5"))]
    assert as_markdown(table).splitlines()[1] == "| --- | ---: |"


def test_line_breaks_cannot_leave_a_cell_or_a_span() -> None:
    assert as_prose("two\nlines") == "two lines"
    assert as_code("find:\n ") == "`find:\\n `"
