"""Reads OBO ontologies: labels, definitions and synonyms, and sibling terms as hard negatives."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from embedkit.errors import DataError

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(.*)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": " ", "t": " ", "W": " "}


@dataclass(slots=True)
class _Term:
    id: str = ""
    name: str = ""
    definition: str = ""
    synonyms: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)
    obsolete: bool = False

    def new_synonyms(self) -> list[str]:
        # A lay synonym is often the label in other letters: there is nothing to learn from it.
        label = self.name.casefold()
        return [text for text in dict.fromkeys(self.synonyms) if text.casefold() != label]


def read(
    path: Path, relation: Literal["definition", "synonym", "term"], siblings: int
) -> Iterator[dict[str, Any]]:
    """Yield label -> definition, exact synonym -> label, or whole terms, in the file's order.

    Obsolete terms are left out.
    """
    terms = {term.id: term for term in _terms(path) if term.name and not term.obsolete}
    if not terms:
        raise DataError(f"{path}: no [Term] with id and name: is this an OBO file?")
    children: defaultdict[str, list[_Term]] = defaultdict(list)
    for term in terms.values():
        for parent in term.parents:
            children[parent].append(term)
    documents = {
        term.id: term.definition if relation == "definition" else term.name
        for term in terms.values()
    }
    for term in terms.values():
        synonyms = term.new_synonyms()
        if relation == "term":
            if term.definition or synonyms:
                yield {
                    "name": term.name,
                    "definition": term.definition,
                    "synonyms": synonyms,
                    "id": term.id,
                }
            continue
        if not documents[term.id]:
            continue
        negatives = _siblings(term, children, documents, siblings)
        for query in [term.name] if relation == "definition" else synonyms:
            yield {
                "query": query,
                "positive": documents[term.id],
                "negatives": list(negatives),
                "negative_concepts": list(negatives.values()),
                "id": term.id,
            }


def _siblings(
    term: _Term,
    children: Mapping[str, list[_Term]],
    documents: Mapping[str, str],
    limit: int,
) -> dict[str, str]:
    """Return documents and ids of terms under the same parents, the smallest family first."""
    siblings: dict[str, str] = {}
    for parent in sorted(term.parents, key=lambda parent: (len(children[parent]), parent)):
        family = [child.id for child in children[parent]]
        index = family.index(term.id)
        for sibling in family[index + 1 :] + family[:index]:
            document = documents[sibling]
            if len(siblings) < limit and document and document != documents[term.id]:
                siblings.setdefault(document, sibling)
    return siblings


def _terms(path: Path) -> Iterator[_Term]:
    term: _Term | None = None
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            try:
                line = raw.decode("utf-8").strip()
                if line.startswith("["):
                    if term:
                        yield term
                    term = _Term() if line == "[Term]" else None
                elif term:
                    _read_tag(term, line)
            except UnicodeDecodeError as error:
                raise DataError(f"{path}, line {number}: not UTF-8 ({error.reason})") from None
            except DataError as error:
                raise DataError(f"{path}, line {number}: {error}") from None
    if term:
        yield term


def _read_tag(term: _Term, line: str) -> None:
    tag, _, value = line.partition(": ")
    if tag == "id":
        term.id = value
    elif tag == "name":
        term.name = _unescaped(value)
    elif tag == "def":
        term.definition = _quoted(value)[0]
    elif tag == "synonym":
        synonym, rest = _quoted(value)
        if rest.startswith("EXACT") and "obsolete_synonym" not in rest:
            term.synonyms.append(synonym)
    elif tag == "is_a":
        term.parents.append(value.split(maxsplit=1)[0])
    elif tag == "is_obsolete":
        term.obsolete = value.startswith("true")


def _quoted(value: str) -> tuple[str, str]:
    match = _QUOTED.match(value)
    if match is None:
        raise DataError(f"expected text in quotes, found {value!r:.60}")
    return _unescaped(match[1]), match[2]


def _unescaped(text: str) -> str:
    unescaped = _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)
    return " ".join(unescaped.split())
