"""OBO ontologies: labels with definitions or synonyms, and sibling terms as hard negatives."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
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


def read(
    path: Path, relation: Literal["definition", "synonym", "term"], siblings: int
) -> Iterator[dict[str, Any]]:
    """Yield label -> definition, exact synonym -> label, or whole terms, in the file's order.

    Obsolete terms are left out.
    """
    terms = {term.id: term for term in _terms(path) if term.name and not term.obsolete}
    if not terms:
        raise DataError(f"{path}: no [Term] with id and name: is this an OBO file?")
    if relation == "term":
        yield from filter(None, map(_whole, terms.values()))
        return
    if relation == "definition":
        pairs: Callable[[_Term], list[tuple[str, str]]] = _definitions
        document: Callable[[_Term], str] = lambda term: term.definition  # noqa: E731
    else:
        pairs, document = _synonyms, lambda term: term.name
    children: defaultdict[str, list[_Term]] = defaultdict(list)
    for term in terms.values():
        for parent in term.parents:
            children[parent].append(term)
    for term in terms.values():
        others = _siblings(term, children, document, siblings)
        for query, positive in pairs(term):
            yield {
                "query": query,
                "positive": positive,
                "negatives": [document(other) for other in others],
                "negative_concepts": [other.id for other in others],
                "id": term.id,
            }


def _whole(term: _Term) -> dict[str, Any] | None:
    """All that is said of a term; ``None`` where that is its name alone."""
    synonyms = [synonym for synonym, _ in _synonyms(term)]
    if not term.definition and not synonyms:
        return None
    return {
        "name": term.name,
        "definition": term.definition,
        "synonyms": synonyms,
        "id": term.id,
    }


def _definitions(term: _Term) -> list[tuple[str, str]]:
    return [(term.name, term.definition)] if term.definition else []


def _synonyms(term: _Term) -> list[tuple[str, str]]:
    # A lay synonym is often the label in other letters: there is nothing to learn from it.
    own = term.name.casefold()
    distinct = dict.fromkeys(each for each in term.synonyms if each.casefold() != own)
    return [(synonym, term.name) for synonym in distinct]


def _siblings(
    term: _Term,
    children: dict[str, list[_Term]],
    document: Callable[[_Term], str],
    limit: int,
) -> list[_Term]:
    """Terms under the same parents, the smallest family first, from the term's own place on."""
    found: dict[str, _Term] = {}
    for parent in sorted(term.parents, key=lambda parent: (len(children[parent]), parent)):
        family = children[parent]
        place = next(i for i, each in enumerate(family) if each.id == term.id)
        for other in family[place + 1 :] + family[:place]:
            if len(found) == limit:
                return list(found.values())
            if document(other) and document(other) != document(term):
                found.setdefault(document(other), other)
    return list(found.values())


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
