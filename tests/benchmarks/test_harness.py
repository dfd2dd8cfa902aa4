"""What the benchmarks share."""

import json
import os
import re
import sys
from functools import partial
from pathlib import Path

import harness
import numpy as np
import pytest
import torch

CPU = torch.device("cpu")


def answer(number: int, *, name: str) -> list[object]:
    """What another process is asked for."""
    sys.stdout.write("a line before the answer\n")
    return [os.getpid(), number, name, os.environ.get("HARNESS_TEST")]


def fail() -> None:
    raise ValueError("a mistake in the other process")


@pytest.mark.slow
def test_a_process_answers_through_json() -> None:
    process, *rest = harness.in_a_process(partial(answer, 3, name="x"), HARNESS_TEST="yes")
    assert process != os.getpid()
    assert rest == [3, "x", "yes"]


@pytest.mark.slow
def test_what_goes_wrong_in_a_process_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="non-zero exit status 1"):
        harness.in_a_process(partial(fail))
    assert "ValueError: a mistake in the other process" in capfd.readouterr().err


def test_contenders_take_turns_and_the_warm_up_does_not_count() -> None:
    calls: list[str] = []

    def run(name: str) -> int:
        calls.append(name)
        return len(calls)

    results = harness.in_turns({name: partial(run, name) for name in "ab"}, 2, warm_up=1)
    assert calls == ["a", "b"] * 3
    assert results == {"a": [3, 5], "b": [4, 6]}
    assert harness.Spread.of([3.0, 1.0, 2.5]) == harness.Spread(2.5, 1.0, 3.0)


def peak_of_an_array() -> list[float]:
    """Return the sum of an array of 64 MiB, the peak of making it, and that of this process."""
    before = np.ones(2**24)
    del before
    total, peak = harness.peak_beyond(lambda: float(np.ones(2**23).sum()))
    return [total, peak, harness.peak_bytes(CPU)]


@pytest.mark.slow
def test_the_peak_is_that_of_the_call_and_not_of_the_process_before() -> None:
    # In a process of its own: one that has run other tests may have freed memory to reuse.
    total, peak, highest = harness.in_a_process(partial(peak_of_an_array))
    assert total == 2**23
    assert peak / harness.MIB == pytest.approx(64, abs=4)
    assert highest >= peak


def test_sections_are_added_under_the_command_of_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "new" / "page.md"
    table = harness.markdown(("what", "s"), [("a", "1"), ("b", "2")])
    for word in ("one", "two words"):
        monkeypatch.setattr("sys.argv", ["/any/where/speed.py", "--set", word])
        harness.append_section(page, "Speed", harness.stamp(CPU, np), table)
    text = page.read_text()
    assert text.startswith("# Speed\n\n## `python benchmarks/speed.py --set one`\n\n20")
    assert "\n\n## `python benchmarks/speed.py --set 'two words'`\n\n" in text
    assert text.count("# Speed\n") == 1
    assert text.endswith("| what | s |\n| --- | ---: |\n| a | 1 |\n| b | 2 |\n")
    stamp = re.escape(f"torch {torch.__version__}, numpy {np.__version__}")
    assert re.search(
        rf"^\d{{4}}-\d\d-\d\d, .+, {torch.get_num_threads()} threads?, {stamp}$", text, re.M
    )


def test_rows_are_added_to_a_table_of_the_same_columns_alone(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    for number in "12":
        harness.append_row(table, ("date", "s"), ("today", number))
    assert table.read_text() == "| date | s |\n|---|---|\n| today | 1 |\n| today | 2 |\n"
    with pytest.raises(SystemExit, match=r"is a table of other columns; choose another --results"):
        harness.append_row(table, ("date", "ms"), ("today", "3"))


def test_a_record_lies_beside_its_results(tmp_path: Path) -> None:
    harness.write_record(tmp_path / "speed.md", {"s": 1.5}, "cpu", "starter")
    record = tmp_path / f"speed_{harness.today()}_cpu_starter.json"
    assert json.loads(record.read_text()) == {"s": 1.5}
