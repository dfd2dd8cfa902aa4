from pathlib import Path

import pytest

from embedkit.data.pairs.records import open_records
from embedkit.data.sources.readers.docstring import DocstringReader
from embedkit.data.sources.readers.icd import IcdReader
from embedkit.data.sources.readers.obo import OboReader
from embedkit.data.sources.readers.siblings import negatives_of
from embedkit.errors import DataError

OBO = r"""format-version: 1.2

[Term]
id: X:1
name: Root

[Term]
id: X:2
name: Round eyes
def: "Eyes that are \"round\"." [source]
synonym: "Circular eyes" EXACT []
synonym: "ROUND EYES" EXACT layperson []
synonym: "Big eyes" RELATED []
synonym: "Ring eyes" EXACT obsolete_synonym []
is_a: X:1 ! Root

[Term]
id: X:3
name: Square eyes
def: "Eyes that are square." []
is_a: X:1 ! Root

[Term]
id: X:4
name: Old eyes
def: "No longer used." []
synonym: "Aged eyes" EXACT []
is_a: X:1 ! Root
is_obsolete: true

[Typedef]
id: part_of
name: part of
"""

ICD = """<tabular><chapter><name>1</name><desc>Eyes and ears (A00-B99)</desc>
<section id="A00-A09"><desc>Eyes</desc>
<diag><name>A00</name><desc>Red eye</desc>
  <inclusionTerm><note>Ruddy eye</note><note>Red Eye</note></inclusionTerm>
  <diag><name>A00.0</name><desc>Red left eye</desc>
    <inclusionTerm><note>Left  eye
      red</note></inclusionTerm></diag>
  <diag><name>A00.1</name><desc>Red right eye</desc></diag>
</diag>
<diag><name>A01</name><desc>Blue eye</desc></diag>
</section></chapter></tabular>"""

MODULE = '''"""A module."""


class Stack:
    """A class."""

    def push(self, item):
        """Put an item on
        the top.

        More is said here.
        """
        # A comment stays.

        self.items.append(item)
        return self

    def pop(self):
        """Take it."""
        return self.items.pop()

    def size(self):
        """Say how many items there are."""

    def clear(self):
        self.items = []


async def fetch(
    address,
):
    """Fetch a page from an address."""
    if address:
        return await get(address)
    raise ValueError(address)
'''


def test_obo_definitions_have_the_definitions_of_siblings_as_negatives(tmp_path: Path) -> None:
    (tmp_path / "x.obo").write_text(OBO)
    first, second = OboReader(kind="obo", relation="definition").read(tmp_path / "x.obo")
    assert first == {
        "query": "Round eyes",
        "positive": 'Eyes that are "round".',
        "negatives": ["Eyes that are square."],
        "negative_concepts": ["X:3"],
        "id": "X:2",
    }
    assert second["negatives"] == ['Eyes that are "round".']


def test_obo_synonyms_are_exact_current_and_not_the_label_itself(tmp_path: Path) -> None:
    (tmp_path / "x.obo").write_text(OBO)
    (row,) = OboReader(kind="obo", relation="synonym").read(tmp_path / "x.obo")
    assert (row["query"], row["positive"]) == ("Circular eyes", "Round eyes")
    assert row["negatives"] == ["Square eyes"]


def test_a_broken_obo_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.obo").write_text("[Term]\nid: X:1\nname: Root\ndef: no quotes\n")
    with pytest.raises(DataError, match=r"x\.obo, line 4: expected text in quotes"):
        list(OboReader(kind="obo", relation="definition").read(tmp_path / "x.obo"))


def test_a_file_without_terms_is_no_obo(tmp_path: Path) -> None:
    (tmp_path / "x.obo").write_text("hello\n")
    with pytest.raises(DataError, match="is this an OBO file"):
        list(OboReader(kind="obo", relation="definition").read(tmp_path / "x.obo"))


def test_a_large_family_is_read_no_further_than_for_the_negatives() -> None:
    family = (("same" if number < 2 else f"text {number}", f"c{number}") for number in range(100))
    assert negatives_of("text 2", family, 2) == {"same": "c0", "text 3": "c3"}
    assert next(family)[0] == "text 5"
    assert negatives_of("text 2", family, 0) == {}


def test_icd_inclusion_terms_have_the_titles_of_sibling_codes_as_negatives(tmp_path: Path) -> None:
    (tmp_path / "icd.xml").write_text(ICD)
    category, code = IcdReader(kind="icd").read(tmp_path / "icd.xml")
    assert category == {
        "query": "Ruddy eye",
        "positive": "Red eye",
        "negatives": ["Blue eye"],
        "negative_concepts": ["A01"],
        "id": "A00",
        "category": "A00",
        "chapter": "Eyes and ears",
    }
    assert (code["query"], code["negatives"], code["negative_concepts"]) == (
        "Left eye red",
        ["Red right eye"],
        ["A00"],
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [(ICD[:200], "not whole XML"), ("<tabular/>", "no <chapter>")],
)
def test_a_cut_or_foreign_xml_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "icd.xml").write_text(text)
    with pytest.raises(DataError, match=message):
        list(IcdReader(kind="icd").read(tmp_path / "icd.xml"))


def test_docstrings_lead_to_their_code_without_them(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODULE)
    push, fetch = DocstringReader(kind="docstring", siblings=1).read(tmp_path / "m.py")
    assert push["query"] == "Put an item on the top."
    assert push["positive"] == (
        "def push(self, item):\n"
        "    # A comment stays.\n"
        "    self.items.append(item)\n"
        "    return self"
    )
    assert push["negatives"] == ["def pop(self):\n    return self.items.pop()"]
    assert (push["id"], push["module"], push["negative_concepts"]) == ("m.Stack.push", "m", ["m"])
    assert fetch["positive"].startswith("async def fetch(\n    address,\n):\n    if address:")


def test_long_code_is_cut_at_a_line(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODULE)
    push, *_ = DocstringReader(kind="docstring", max_words=7).read(tmp_path / "m.py")
    assert push["positive"] == "def push(self, item):\n    # A comment stays."


def test_a_form_feed_in_a_module_does_not_shift_the_code(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text('\x0c\nX = "\x0c"\n' + MODULE)
    push, *_ = DocstringReader(kind="docstring").read(tmp_path / "m.py")
    assert push["positive"].startswith("def push(self, item):\n    # A comment stays.")


def test_a_module_that_cannot_be_parsed_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def broken(:\n")
    with pytest.raises(DataError, match=r"m\.py: module pkg\.m cannot be parsed"):
        list(DocstringReader(kind="docstring").read_modules([("pkg.m", tmp_path / "m.py")]))


def test_a_file_is_read_by_the_reader_that_its_manifest_names(tmp_path: Path) -> None:
    (tmp_path / "eyes.txt").write_text(OBO)
    (tmp_path / "eyes.toml").write_text(
        f"""
        ignore = ["negatives", "negative_concepts", "id"]
        [source]
        kind = "files"
        files = [{{ path = "{tmp_path / "eyes.txt"}" }}]
        reader = {{ kind = "obo", relation = "definition" }}
        """
    )
    records = open_records(tmp_path / "eyes.toml")
    found = [(each.query, each.positive) for each in records.take(range(len(records)))]
    rows = OboReader(kind="obo", relation="definition").read(tmp_path / "eyes.txt")
    assert found == [(row["query"], row["positive"]) for row in rows]
    assert found[0] == ("Round eyes", 'Eyes that are "round".')
