from datetime import date

from embedkit.data.joins import joined
from embedkit.data.manifest import HubJoin

JOIN = HubJoin(column="answer", config="corpus", split="train")


def test_a_joined_row_keeps_values_of_every_type() -> None:
    document = {"_id": 7, "text": "A cold.", "dated": date(2026, 1, 2), "scan": b"\x00\xff"}
    (row,) = joined(lambda: [{"question": "What?", "answer": "7"}], [(JOIN, [document])])
    assert row == {"question": "What?", "answer": document}
