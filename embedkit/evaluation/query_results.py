"""Results of single queries of a retrieval or reranking task, in a Parquet file."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from embedkit.storage.atomic import written_aside

FORMAT = 1
"""Version of the file's columns; a file of another version is not read."""
FRONT = 10
"""Number of documents in front that are kept for each query."""

_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("subset", pa.string()),
        ("query", pa.string()),
        ("score", pa.float64()),
        ("first_relevant", pa.int32()),
        ("front", pa.list_(pa.string())),
        ("front_scores", pa.list_(pa.float32())),
        ("relevant", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The documents that a model retrieved for a query, and what mteb makes of them."""

    split: str
    subset: str
    query: str
    """Id of the query."""
    score: float
    """Main score of the task for this query alone."""
    first_relevant: int | None
    """Rank, from 1 on, of the first relevant document; ``None`` if none was retrieved."""
    front: Sequence[str]
    """Ids of the documents of ranks 1 to ``FRONT``."""
    front_scores: Sequence[float]
    """Similarity of each document in ``front`` to the query."""
    relevant: Sequence[str]
    """Ids of all documents that are judged relevant."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Split, subset and id, which no two queries of a task share."""
        return self.split, self.subset, self.query


def write_query_results(path: Path, metric: str, results: Sequence[QueryResult]) -> None:
    """Write the queries of a task, all at once or not at all."""
    facts = {"format": str(FORMAT), "metric": metric}
    table = pa.Table.from_pylist([asdict(result) for result in results], schema=_SCHEMA)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(path) as aside:
        pq.write_table(table.replace_schema_metadata(facts), aside, compression="zstd")


def read_query_results(path: Path) -> list[QueryResult]:
    """Read what ``write_query_results`` wrote.

    Raises:
        ValueError: the file is not there, is damaged, or is of another version.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid):
        raise ValueError(f"{path}: is no whole Parquet file") from None
    if (table.schema.metadata or {}).get(b"format") != str(FORMAT).encode():
        raise ValueError(f"{path}: was written by another version of embedkit")
    return [QueryResult(**row) for row in table.to_pylist()]
