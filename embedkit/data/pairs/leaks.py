"""Finds which evaluation texts also stand in training texts."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

_MIN_WORDS = 4
"""Texts with fewer words are phrases of the language, which training may well contain."""


def fold(text: str) -> str:
    """Return the text without differences of case and of white space."""
    return " ".join(text.casefold().split())


def leaked(evaluated: Iterable[str], training: Iterable[str]) -> set[str]:
    """Return those of ``evaluated`` that are, when folded, a training text or a piece of one.

    Texts of fewer than four words are never reported.
    """
    # A piece may begin and end inside a word, but its inner words stand whole in the training text:
    # two of them lead to the few texts that are worth comparing.
    by_anchor: defaultdict[tuple[str, str], dict[str, list[str]]] = defaultdict(dict)
    for text in set(evaluated):
        folded = fold(text)
        if len(words := folded.split()) >= _MIN_WORDS:
            # The longest neighbours are the rarest.
            anchor = max(pairwise(words[1:-1]), key=lambda pair: len(pair[0]) + len(pair[1]))
            by_anchor[anchor].setdefault(folded, []).append(text)
    leaks: set[str] = set()
    for text in map(fold, training):
        for anchor in set(pairwise(text.split())) & by_anchor.keys():
            for folded in [folded for folded in by_anchor[anchor] if folded in text]:
                leaks.update(by_anchor[anchor].pop(folded))
    return leaks
