"""Replaces ids in rows by the rows they name, in memory that does not grow with them."""

import pickle
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from embedkit.data.manifests.columns import ColumnPath
from embedkit.data.manifests.sources import HubJoin
from embedkit.data.sources.rows import Row, errors_named
from embedkit.storage import cache

Rows = Iterable[Row]


def joined(rows: Callable[[], Rows], tables: Iterable[tuple[HubJoin, Rows]]) -> Iterator[Any]:
    """Yield each of ``rows`` with the rows of ``tables`` in place of their ids.

    ``rows`` is read once for each table and once more. Only rows that are named are kept, in a
    file. An id that its table lacks becomes ``None``; the first row with an id counts.
    """
    with cache.scratch_database("joins") as database:
        lookups = [
            (join.column, _lookup(database, number, join, rows(), table))
            for number, (join, table) in enumerate(tables)
        ]
        for row in rows():
            yield {**row, **{column: find(row[column]) for column, find in lookups}}


def _lookup(
    database: sqlite3.Connection, number: int, join: HubJoin, rows: Rows, table: Rows
) -> Callable[[Any], Any]:
    """Store the rows of ``table`` that ``rows`` name; return a function from an id to its row."""
    # Rows are pickled, since those of parquet may hold what JSON cannot express. Ids are text,
    # since one side may have numbers where the other has their digits.
    database.execute(f"create table table{number} (id text primary key, row blob)")
    ids, keys = ColumnPath(join.column), ColumnPath(join.key)
    database.executemany(
        f"insert or ignore into table{number} (id) values (?)", ((ids(row),) for row in rows)
    )
    with errors_named(join.config):
        database.executemany(
            f"update table{number} set row = ? where id = ? and row is null",
            ((pickle.dumps(row), keys(row)) for row in table),
        )

    def find(id_: Any) -> Any:
        match = database.execute(f"select row from table{number} where id = ?", (id_,)).fetchone()
        return pickle.loads(match[0]) if match and match[0] is not None else None

    return find
