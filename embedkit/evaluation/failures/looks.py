"""Guesses from its texts alone why a query was answered badly."""

import re
from collections.abc import Collection, Sequence

DUPLICATE = "duplicate of the answer"
TRUNCATED = "truncated"
NO_COMMON_WORD = "no word in common with the answer"
MISSING_JUDGEMENT = "suspected missing judgement"

_CHARACTERS_A_TOKEN = 4
_SHORTEST = 4
"""Words with fewer letters are mostly articles and prepositions."""
_NEARLY_ALL = 0.8


def looks_of(
    query: str,
    answers: Sequence[str],
    front: Sequence[str],
    judged: Collection[int],
    max_tokens: int,
) -> list[str]:
    """Return what a query and the documents in front of its answers look like.

    These are hints for a reader. Words are those of four letters or more.

    - ``DUPLICATE``: a document in front has at least 80 % of the words of both together in common
      with an answer.
    - ``TRUNCATED``: the query or all answers have more than ``max_tokens`` tokens, at an estimated
      four characters each.
    - ``NO_COMMON_WORD``: no answer has a word of the query.
    - ``MISSING_JUDGEMENT``: a document in front without a judgement has all words of the query, of
      which there are at least two, and no answer has.

    Args:
        query: text of the query.
        answers: texts of the relevant documents.
        front: texts of the documents in front of them.
        judged: numbers of the documents in front that are judged, as not relevant.
        max_tokens: length at which the model cuts texts.
    """
    asked = words(query)
    answering, ahead = [words(text) for text in answers], [words(text) for text in front]
    found = []
    if any(_alike(one, other) for one in ahead for other in answering):
        found.append(DUPLICATE)
    longest = _CHARACTERS_A_TOKEN * max_tokens
    if len(query) > longest or (answers and all(len(text) > longest for text in answers)):
        found.append(TRUNCATED)
    if asked and answers and not any(asked & answer for answer in answering):
        found.append(NO_COMMON_WORD)
    unjudged = [own for number, own in enumerate(ahead) if number not in judged]
    in_answer = any(asked <= answer for answer in answering)
    if len(asked) > 1 and not in_answer and any(asked <= own for own in unjudged):
        found.append(MISSING_JUDGEMENT)
    return found


def words(text: str) -> set[str]:
    """Return the words of four letters or digits and more, in lower case; all if there is none."""
    every = re.findall(r"\w+", text.casefold())
    return {word for word in every if len(word) >= _SHORTEST} or set(every)


def _alike(one: set[str], other: set[str]) -> bool:
    return len(one & other) >= _NEARLY_ALL * len(one | other) > 0
