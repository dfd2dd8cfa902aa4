from typing import Any

from embedkit.training.idle_steps import LIMIT, IdleSteps


def steps(
    count: int, source: str = "a", grad_norm: float = 0.0, **more: Any
) -> list[dict[str, Any]]:
    return [{"step": 7, "source": source, "grad_norm": grad_norm, **more}] * count


def test_steps_in_a_row_count_over_blocks_and_for_each_source() -> None:
    idle = IdleSteps()
    assert idle.add(steps(LIMIT - 1)) is None
    assert idle.add(steps(LIMIT, source="b", grad_norm=0.1)) is None
    told = idle.add(steps(1))
    assert told is not None
    assert told.startswith("step 7: the run learns nothing from source a")


def test_one_gradient_begins_the_count_anew() -> None:
    idle = IdleSteps()
    for _ in range(3):
        assert idle.add([*steps(LIMIT - 1), *steps(1, grad_norm=1e-30)]) is None


def test_what_lacks_is_told_where_it_is_known() -> None:
    missing = IdleSteps().add(steps(LIMIT, negatives=0.0))
    other = IdleSteps().add(steps(LIMIT, negatives=3.0))
    assert missing is not None
    assert "no query had a negative" in missing
    assert other is not None
    assert "look at its rows" in other
