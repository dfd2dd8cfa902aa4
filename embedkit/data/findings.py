"""Counts what is odd about the rows of a source of pairs, in one pass over them."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from embedkit import rng
from embedkit.data.manifests.columns import ColumnPath
from embedkit.data.pairs.pair import Pair
from embedkit.data.pairs.recognition import Recognition
from embedkit.data.sources.rows import Row, RowStream

EXAMPLES = 10
"""Pairs that are kept from the beginning, to be shown."""
_MEASURED = 2000
"""Pairs whose lengths and scripts are shown, drawn from all."""


@dataclass
class Findings:
    """Counts over all rows of a source; texts are remembered by their hashes alone."""

    rows: int = 0
    empty: Counter[str] = field(default_factory=Counter)
    """Rows without text, by part."""
    pairs: int = 0
    with_negatives: int = 0
    negatives: int = 0
    wrong_negatives: int = 0
    """Negatives whose text is that of their own positive."""
    same_text: int = 0
    """Pairs whose query is their positive."""
    answers: dict[int, set[int]] = field(default_factory=dict)
    """Distinct positives of each query, by hashes."""
    positives: set[int] = field(default_factory=set)
    examples: list[Pair] = field(default_factory=list)
    sample: list[Pair] = field(default_factory=list)
    """Pairs drawn from all, each as likely as any other."""

    def add(self, pair: Pair) -> None:
        """Count a pair."""
        if len(self.examples) < EXAMPLES:
            self.examples.append(pair)
        if len(self.sample) < _MEASURED:
            self.sample.append(pair)
        elif (place := rng.fold_in(0, "inspect", self.pairs) % (self.pairs + 1)) < _MEASURED:
            self.sample[place] = pair
        query, positive = hash(pair.query), hash(pair.positive)
        self.pairs += 1
        self.with_negatives += bool(pair.negatives)
        self.negatives += len(pair.negatives)
        self.wrong_negatives += pair.negatives.count(pair.positive)
        self.same_text += pair.query == pair.positive
        self.answers.setdefault(query, set()).add(positive)
        self.positives.add(positive)

    def scripts(self) -> list[tuple[str, float]]:
        """Return the five most frequent scripts of the sample, with their shares of the letters."""
        letters: Counter[str] = Counter()
        for pair in self.sample:
            letters.update(filter(str.isalpha, pair.query + pair.positive))
        scripts: Counter[str] = Counter()
        for letter, count in letters.items():
            # The first word of a letter's name in Unicode is its script.
            scripts[unicodedata.name(letter, "unnamed").partition(" ")[0].capitalize()] += count
        return [(script, count / scripts.total()) for script, count in scripts.most_common(5)]

    @property
    def repeated(self) -> int:
        """Number of pairs whose query and positive stood together in an earlier pair."""
        return self.pairs - sum(map(len, self.answers.values()))

    @property
    def several_answers(self) -> int:
        """Number of distinct queries that have several positives."""
        return sum(len(positives) > 1 for positives in self.answers.values())


def counted(
    streams: Iterable[RowStream], recognition: Recognition, found: Findings
) -> Iterator[RowStream]:
    """Pass rows on, and count them and those that lack a text."""
    paths = recognition.columns.paths()
    parts = ("query",) if recognition.same_label else ("query", "positive")
    sides = {part: [ColumnPath(path.removesuffix("[]")) for path in paths[part]] for part in parts}

    def count(rows: Iterable[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
        for number, row in rows:
            found.rows += 1
            for part, side in sides.items():
                known = [path for path in side if path.text in row or path.column in row]
                if known and not any(any(path.texts_in(row)) for path in known):
                    found.empty[part] += 1
            yield number, row

    for place, rows in streams:
        yield place, count(rows)
