"""Reads OBO ontologies: labels, definitions and synonyms, and sibling terms as hard negatives."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt

from embedkit.data.manifests.readers import Reader
from embedkit.data.sources.readers.siblings import negatives_of, others, row_of
from embedkit.errors import DataError

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(.*)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": " ", "t": " ", "W": " "}


@dataclass(slots=True, eq=False)
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


class OboReader(Reader):
    """Terms of an OBO ontology; columns query, positive, negatives, negative_concepts, id."""

    kind: Literal["obo"]
    relation: Literal["definition", "synonym", "term"]
    """Pairs of label and definition, or of exact synonym and label; or for ``term`` a row of each
    term that has either, with the columns name, definition, synonyms and id."""
    siblings: NonNegativeInt = 8
    """The most terms under the same parents that a row gets as hard negatives."""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the rows of all terms that are not obsolete, in the file's order."""
        terms = {term.id: term for term in _terms(path) if term.name and not term.obsolete}
        if not terms:
            raise DataError(f"{path}: no [Term] with id and name: is this an OBO file?")
        children: defaultdict[str, list[_Term]] = defaultdict(list)
        for term in terms.values():
            for parent in term.parents:
                children[parent].append(term)
        for term in terms.values():
            synonyms, document = term.new_synonyms(), self._document(term)
            if self.relation == "term" and (term.definition or synonyms):
                row = {"name": term.name, "definition": term.definition}
                yield {**row, "synonyms": synonyms, "id": term.id}
            elif self.relation != "term" and document:
                # The smallest family comes first.
                families = sorted((len(children[parent]), parent) for parent in term.parents)
                siblings = (
                    (self._document(sibling), sibling.id)
                    for _, parent in families
                    for sibling in others(children[parent], term)
                )
                negatives = negatives_of(document, siblings, self.siblings)
                for query in [term.name] if self.relation == "definition" else synonyms:
                    yield row_of(query, document, term.id, negatives)

    def _document(self, term: _Term) -> str:
        return term.definition if self.relation == "definition" else term.name


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
        term.definition, _ = _quoted(value)
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
