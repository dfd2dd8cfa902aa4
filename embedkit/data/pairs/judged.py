"""Turns the pairs of a source that score low into hard negatives of their queries."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from embedkit.data.pairs.layout import ColumnLayout
from embedkit.data.pairs.pair import Pair
from embedkit.storage import cache


def with_negatives(pairs: Iterable[Pair], below: float, layout: ColumnLayout) -> Iterator[Pair]:
    """Yield the pairs that score ``below`` or more, in order, with hard negatives of their query.

    These are the documents of the query's other pairs, unless such a document is a positive of the
    query too; they follow the negatives that the row has. ``layout`` counts the low pairs that
    become no negatives. Texts lie on disk meanwhile, so memory does not grow with them.
    """
    with cache.scratch_database("judged") as database:
        database.execute("create table low (query text, document text)")
        database.execute("create table high (query text, document text, pair text)")
        for pair in pairs:
            assert pair.score is not None
            if pair.score < below:
                database.execute("insert into low values (?, ?)", (pair.query, pair.positive))
            else:
                row = (pair.query, pair.positive, json.dumps(asdict(pair) | {"score": None}))
                database.execute("insert into high values (?, ?, ?)", row)
        database.execute("create index positives on high (query, document)")
        layout.unpaired += database.execute(
            "delete from low where query not in (select query from high) or "
            "document in (select document from high where high.query = low.query)"
        ).rowcount
        database.execute("create index negatives on low (query)")
        for (stored,) in database.execute("select pair from high order by rowid"):
            pair = Pair(**json.loads(stored))
            found = database.execute(
                "select document from low where query = ? group by document order by min(rowid)",
                (pair.query,),
            )
            stated = set(pair.negatives)
            pair.negatives += [text for (text,) in found if text not in stated]
            yield pair
