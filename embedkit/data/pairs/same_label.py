"""Makes pairs of texts that share a label, for sources that have labels but no pairs.

The texts of a label, each counted once, stand in an order drawn by the seed. The positive of a text
is the next one, and of the last the first: every text is one query and one positive, and never its
own. A label that has one text makes no pair.
"""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, pairwise
from operator import itemgetter

from embedkit.storage import cache


def pairs(texts: Iterable[tuple[str, str]], seed: int) -> Iterator[tuple[str, str, str]]:
    """Yield (text, positive, label) for each (text, label), label by label.

    Texts lie on disk meanwhile, so memory does not grow with them.
    """
    with cache.scratch_database("labels") as database:
        database.execute("create table texts (label text, rank integer, text text)")
        rows = ((label, _rank(text, seed), text) for text, label in texts)
        database.executemany("insert into texts values (?, ?, ?)", rows)
        database.execute("create index order_of_texts on texts (label, rank)")
        # Equal texts have equal ranks.
        ordered = database.execute(
            "select label, text from texts group by label, rank order by label, rank"
        )
        for label, group in groupby(ordered, key=itemgetter(0)):
            first = next(group)
            for (_, text), (_, positive) in pairwise(chain([first], group, [first])):
                if text != positive:
                    yield text, positive, label


def _rank(text: str, seed: int) -> int:
    digest = hashlib.blake2b(text.encode(), key=str(seed).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
