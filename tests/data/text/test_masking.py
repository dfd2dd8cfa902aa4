import numpy as np
import pytest

from embedkit.data.text.masked_batches import Masking
from embedkit.recipe import MaskedLM
from embedkit.tokens.vocabulary import Vocabulary

NONE = np.empty(0, dtype=np.int64)
SPECIAL = np.array([0, 1, 2, 3])
VOCABULARY = Vocabulary(
    size=50, mask=3, special=SPECIAL, ordinary=np.arange(4, 50), prefix=NONE, suffix=NONE
)
ALL_MASK = MaskedLM(kind="masked_lm", rate=0.2, replace="mask")
BERT = MaskedLM(kind="masked_lm", rate=0.15, replace="80/10/10")
COUNT = 200_000


def draw(ids: np.ndarray, objective: MaskedLM, key: int = 7) -> tuple[np.ndarray, np.ndarray]:
    return Masking(VOCABULARY, objective).mask(ids, key)


def text(count: int = COUNT) -> np.ndarray:
    return np.arange(count) % 46 + 4


def close(count: int, of: int, share: float) -> bool:
    """Within five standard deviations of what is expected."""
    return abs(count - share * of) < 5 * np.sqrt(of * share * (1 - share))


def test_a_fifth_is_guessed_and_all_of_it_is_masked() -> None:
    seen, places = draw(text(), ALL_MASK)
    assert close(len(places), COUNT, 0.2)
    assert (seen[places] == VOCABULARY.mask).all()
    rest = np.setdiff1d(np.arange(COUNT), places)
    assert np.array_equal(seen[rest], text()[rest])


def test_of_fifteen_percent_eight_tenths_are_masked_and_one_tenth_each_random_and_kept() -> None:
    # One id everywhere, so that a random one shows.
    ids = np.full(COUNT, 20)
    seen, places = draw(ids, BERT)
    assert close(len(places), COUNT, 0.15)
    guessed = seen[places]
    assert close(int((guessed == VOCABULARY.mask).sum()), len(places), 0.8)
    # A random id is the same one in 46.
    assert close(int((guessed == 20).sum()), len(places), 0.1 + 0.1 / 46)
    other = guessed[(guessed != VOCABULARY.mask) & (guessed != 20)]
    counts = np.bincount(other, minlength=50)
    assert not counts[SPECIAL].any()
    assert all(close(int(count), len(places), 0.1 / 46) for count in np.delete(counts, 20)[4:])
    rest = np.setdiff1d(np.arange(COUNT), places)
    assert (seen[rest] == 20).all()


@pytest.mark.parametrize("objective", [ALL_MASK, BERT])
def test_special_tokens_are_never_guessed(objective: MaskedLM) -> None:
    ids = np.arange(COUNT) % 8
    seen, places = draw(ids, objective)
    assert not np.isin(ids[places], SPECIAL).any()
    special = np.isin(ids, SPECIAL)
    assert np.array_equal(seen[special], ids[special])
    assert close(len(places), COUNT // 2, objective.rate)


def test_where_tokens_are_guessed_is_drawn_independently() -> None:
    guessed = np.zeros(COUNT)
    guessed[draw(text(), ALL_MASK)[1]] = 1
    assert abs(np.corrcoef(guessed[1:], guessed[:-1])[0, 1]) < 0.02
    other = np.zeros(COUNT)
    other[draw(text(), ALL_MASK, key=8)[1]] = 1
    assert abs(np.corrcoef(guessed, other)[0, 1]) < 0.02


@pytest.mark.parametrize("objective", [ALL_MASK, BERT])
def test_a_key_draws_the_same_for_ever(objective: MaskedLM) -> None:
    first, again, other = (
        draw(text(), objective),
        draw(text(), objective),
        draw(text(), objective, 8),
    )
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    # Runs are resumed by it.
    assert draw(text(20), ALL_MASK)[1].tolist() == [2, 7, 10, 11, 15]


def test_the_ids_that_are_given_stay_as_they_are() -> None:
    ids = text(100)
    draw(ids, BERT)
    assert np.array_equal(ids, text(100))


def test_a_row_may_have_nothing_to_guess() -> None:
    seen, places = draw(np.array([1, 2]), ALL_MASK)
    assert (seen.tolist(), places.tolist()) == ([1, 2], [])
