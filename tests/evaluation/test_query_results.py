from pathlib import Path

import pyarrow.parquet as pq
import pytest

from embedkit.evaluation.query_results import (
    QueryResult,
    read_query_results,
    write_query_results,
)

FOUND = QueryResult("test", "default", "q1", 0.5, 2, ["d3", "d1"], [0.75, 0.5], ["d1"])
MISSED = QueryResult("test", "default", "q2", 0.0, None, [], [], ["d2"])


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_query_results(tmp_path / "new" / "t.parquet", "ndcg_at_10", [FOUND, MISSED])
    assert read_query_results(tmp_path / "new" / "t.parquet") == [FOUND, MISSED]


def test_a_damaged_file_and_one_of_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with pytest.raises(ValueError, match=r"t\.parquet: is no whole Parquet file"):
        read_query_results(path)
    write_query_results(path, "ndcg_at_10", [FOUND])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"t\.parquet: is no whole Parquet file"):
        read_query_results(path)
    path.write_bytes(whole)
    pq.write_table(pq.read_table(path).replace_schema_metadata({"format": "0"}), path)
    with pytest.raises(ValueError, match="was written by another version"):
        read_query_results(path)
