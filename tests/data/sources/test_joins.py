import tracemalloc
from collections.abc import Iterator
from datetime import date
from typing import Any

from embedkit.data.manifests.sources import HubJoin
from embedkit.data.sources.joins import joined

JOIN = HubJoin(column="answer", config="corpus", split="train")


def test_a_joined_row_keeps_values_of_every_type() -> None:
    document = {"_id": 7, "text": "A cold.", "dated": date(2026, 1, 2), "scan": b"\x00\xff"}
    (row,) = joined(lambda: [{"question": "What?", "answer": "7"}], [(JOIN, [document])])
    assert row == {"question": "What?", "answer": document}


def numbered(count: int) -> Iterator[dict[str, Any]]:
    return ({"_id": number, "text": f"{number} ".ljust(500, "x")} for number in range(count))


def test_memory_grows_neither_with_the_rows_nor_with_the_documents() -> None:
    count = 20_000
    tracemalloc.start()
    try:
        rows = joined(
            lambda: ({"answer": number} for number in range(count)), [(JOIN, numbered(count))]
        )
        assert sum(row["answer"]["_id"] for row in rows) == sum(range(count))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The ids alone would take more than this, and the texts 10 MB. What the database holds is not
    # traced: its own cache has a fixed size.
    assert peak < 1e6
