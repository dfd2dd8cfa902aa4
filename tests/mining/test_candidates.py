from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from embedkit.config import validated
from embedkit.errors import UserError
from embedkit.mining.audit import Audit
from embedkit.mining.candidates import CANDIDATE, limits, select
from embedkit.mining.settings import MiningSettings


def candidates(*rows: list[tuple[int, float]]) -> NDArray[Any]:
    return np.array(list(rows), dtype=CANDIDATE)


RANKED = [(3, 0.9), (8, 0.76), (1, 0.7), (5, 0.5), (-1, -np.inf)]


def chosen(positive: float, *, row: int = 0, **settings: Any) -> list[int]:
    wanted = MiningSettings(**({"negatives": 2, "depth": 5} | settings))
    scores = np.array([positive], dtype=np.float32)
    documents, _ = select(candidates(RANKED), scores, np.array([row]), wanted, Audit())
    return cast(list[int], documents[0].tolist())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"margin": 0.05, "margin_kind": "relative"}, [8, 1]),  # at most 0.76
        ({"margin": 0.06, "margin_kind": "relative"}, [1, 5]),  # at most 0.752
        ({"margin": 0.1, "margin_kind": "absolute"}, [1, 5]),
        ({"margin": 0.0, "margin_kind": "absolute"}, [8, 1]),
        ({"margin_kind": "none"}, [3, 8]),
        ({"margin_kind": "none", "skip": 1}, [8, 1]),
        ({"margin_kind": "none", "skip": 1, "depth": 3}, [8, 1]),
        ({"margin_kind": "none", "skip": 3}, [5, -1]),
        ({"margin": 0.5, "margin_kind": "absolute"}, [-1, -1]),
    ],
)
def test_negatives_are_the_best_within_window_and_margin(
    settings: dict[str, Any], expected: list[int]
) -> None:
    assert chosen(0.8000001, **settings) == expected


def test_a_relative_margin_lies_below_a_positive_that_scores_below_zero() -> None:
    scores = np.array([0.8, -0.4], dtype=np.float32)
    found = limits(scores, MiningSettings(margin=0.5, margin_kind="relative"))
    np.testing.assert_allclose(found, [0.4, -0.6], rtol=1e-6)


def test_a_random_draw_depends_on_seed_and_row_alone() -> None:
    drawn = {"sampling": "random", "margin_kind": "none"}
    many = {
        (seed, row): chosen(1.0, row=row, seed=seed, **drawn)
        for seed in (0, 1)
        for row in range(40)
    }
    assert many == {
        (seed, row): chosen(1.0, row=row, seed=seed, **drawn) for seed, row in reversed(many)
    }
    assert {each for pair in many.values() for each in pair} == {3, 8, 1, 5}
    assert [many[0, row] for row in range(40)] != [many[1, row] for row in range(40)]
    order = [3, 8, 1, 5]
    assert all(order.index(a) < order.index(b) for a, b in many.values())


def test_what_was_left_out_is_counted() -> None:
    rows = candidates(RANKED, [(2, 0.3), *[(-1, -np.inf)] * 4])
    scores = np.array([0.8, 0.9], dtype=np.float32)
    audit, settings = Audit(asked=2), MiningSettings(negatives=2, depth=5)
    documents, _ = select(rows, scores, np.array([0, 1]), settings, audit)
    assert (audit.candidates, audit.above_margin, audit.outranked) == (5, 1, 1)
    assert (audit.rows, audit.negatives, audit.short, audit.without) == (2, 3, 1, 0)
    np.testing.assert_array_equal(documents, [[8, 1], [2, -1]])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"skip": 100}, "--negatives 5 are more than the ranks from --skip 100 to --depth 100; r"),
        ({"negatives": 8, "depth": 10, "skip": 5}, "--negatives 8 are more than the ranks"),
        ({"lists": 5}, "--lists and --probes are of faiss-ivf, not of --search torch"),
        ({"margin": -0.1}, "margin: Input should be greater than or equal to 0 (got -0.1)"),
        ({"sampling": "best"}, "sampling: Input should be 'top' or 'random' (got 'best')"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as refused:
        validated(MiningSettings, settings, "mine")
    assert told in str(refused.value)
