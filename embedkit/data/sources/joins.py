"""Rows whose ids are replaced by the rows they name, in memory that does not grow with them."""

import pickle
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from embedkit.data.manifests.columns import ColumnPath
from embedkit.data.manifests.manifest import HubJoin
from embedkit.errors import DataError
from embedkit.storage import cache

Rows = Iterable[Mapping[str, Any]]


def joined(rows: Callable[[], Rows], tables: Iterable[tuple[HubJoin, Rows]]) -> Iterator[Any]:
    """Yield each of ``rows`` with the rows of ``tables`` in place of their ids.

    ``rows`` is read once for each table and once more; of a table only what is named is kept, in a
    file. An id that a table does not have becomes ``None``, and of rows with one id the first
    counts.
    """
    with cache.scratch("joins") as folder, closing(_database(folder)) as database:
        lookups = [
            (join.column, _gathered(database, number, join, rows(), table))
            for number, (join, table) in enumerate(tables)
        ]
        for row in rows():
            yield {**row, **{column: find(row[column]) for column, find in lookups}}


def _database(folder: Path) -> sqlite3.Connection:
    database = sqlite3.connect(folder / "rows.sqlite")
    database.execute("pragma journal_mode = off")
    return database


def _gathered(
    database: sqlite3.Connection, number: int, join: HubJoin, rows: Rows, table: Rows
) -> Callable[[Any], Any]:
    """Store the rows of ``table`` that ``rows`` name; a function from an id to its row."""
    # Pickled: rows of parquet may hold what JSON knows nothing of. Ids are text, since one side
    # may have numbers where the other has their digits.
    database.execute(f"create table found{number} (id text primary key, row blob)")
    ids = ColumnPath(join.column)
    database.executemany(
        f"insert or ignore into found{number} (id) values (?)", ((ids(row),) for row in rows)
    )
    key = ColumnPath(join.key)
    try:
        database.executemany(
            f"update found{number} set row = ? where id = ? and row is null",
            ((pickle.dumps(row), key(row)) for row in table),
        )
    except DataError as error:
        raise DataError(f"{join.config}: {error}") from None

    def find(id_: Any) -> Any:
        found = database.execute(f"select row from found{number} where id = ?", (id_,)).fetchone()
        return pickle.loads(found[0]) if found and found[0] is not None else None

    return find
