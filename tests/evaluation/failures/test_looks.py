import pytest

from embedkit.evaluation.failures.looks import (
    DUPLICATE,
    MISSING_JUDGEMENT,
    NO_COMMON_WORD,
    TRUNCATED,
    looks_of,
    words,
)

QUERY, ANSWER = "painful swollen knee", "Effusion of the knee joint"


def test_words_are_long_ones_in_lower_case_or_else_all() -> None:
    assert words("The Knee, of a dog") == {"knee"}
    assert words("A b c") == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("query", "answers", "front", "expected"),
    [
        (QUERY, [ANSWER], ["Fracture of the wrist"], []),
        (QUERY, [ANSWER], ["effusion of knee joint."], [DUPLICATE]),
        (QUERY, ["Gonarthrosis"], ["Fracture of the wrist"], [NO_COMMON_WORD]),
        (QUERY, [ANSWER], ["A knee that is swollen and painful"], [MISSING_JUDGEMENT]),
        ("knee", ["Gonarthrosis"], ["knee"], [NO_COMMON_WORD]),
        (QUERY, ["painful swollen left knee"], ["A painful, much too swollen knee"], []),
        ("", [""], [""], []),
        (QUERY, [], [ANSWER], []),
    ],
)
def test_looks_come_from_the_words(
    query: str, answers: list[str], front: list[str], expected: list[str]
) -> None:
    assert looks_of(query, answers, front, [], 256) == expected


def test_a_document_that_is_judged_misses_no_judgement() -> None:
    front = ["A knee that is swollen and painful"]
    assert looks_of(QUERY, [ANSWER], front, [0], 256) == []


def test_long_texts_are_truncated_unless_an_answer_is_whole() -> None:
    long = "knee joint " * 100
    assert looks_of(long, [ANSWER], [], [], 256) == [TRUNCATED]
    assert looks_of(QUERY, [long], [], [], 256) == [TRUNCATED]
    assert looks_of(QUERY, [long, ANSWER], [], [], 256) == []
