"""Plans which tokens make a row of training, from the lengths of documents, and reads the rows."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from embedkit.data.text.token_store import TokenStore
from embedkit.tokens.vocabulary import Vocabulary

Packing = Literal["none", "exact", "crossing"]
Ids = NDArray[np.int64]


class Rows(Protocol):
    """Rows by number. Pickle size is at most that of the documents' lengths."""

    documents: int
    """Number of documents that are read."""
    tokens: int
    """Number of tokens in all rows, special ones included."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> list[Ids]:
        """Return the sequences of a row, with their special tokens."""
        ...


def pack(
    store: TokenStore,
    vocabulary: Vocabulary,
    packing: Packing,
    *,
    max_tokens: int,
    min_tokens: int = 0,
) -> Rows:
    """Plan the rows of the documents of ``min_tokens`` or more, special tokens included."""
    view = _View(store, vocabulary, min_tokens)
    if packing == "none":
        return TruncateRows(view, max_tokens)
    return BestFitRows(view, max_tokens) if packing == "exact" else ConcatRows(view, max_tokens)


class _View:
    """The documents that a plan is made of: all of a store, or the long ones."""

    def __init__(self, store: TokenStore, vocabulary: Vocabulary, min_tokens: int) -> None:
        self._store = store
        self.prefix, self.suffix = vocabulary.prefix, vocabulary.suffix
        self.framing = vocabulary.framing
        self._least = min_tokens - self.framing
        # Every document has a token.
        self._numbers = _at_least(store, self._least) if self._least > 1 else None

    def __len__(self) -> int:
        return len(self._store) if self._numbers is None else len(self._numbers)

    def length_blocks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the lengths of all documents without special tokens, some millions at a time."""
        for lengths in self._store.lengths():
            yield lengths[lengths >= self._least]

    def lengths(self) -> NDArray[np.int64]:
        return np.concatenate([np.empty(0, dtype=np.int64), *self.length_blocks()])

    def framed(self, document: int, start: int, stop: int) -> Ids:
        """Return ids of a document from ``start`` to ``stop`` or its end, between special ones."""
        number = document if self._numbers is None else int(self._numbers[document])
        begin, end = self._store.offsets[number : number + 2]
        ids = self._store.ids[begin + start : min(begin + stop, end)]
        return np.concatenate([self.prefix, ids, self.suffix], dtype=np.int64)


class TruncateRows:
    """A row is the beginning of a document; what does not fit is never read."""

    def __init__(self, view: _View, max_tokens: int) -> None:
        self._view, self._room = view, max_tokens - view.framing
        read = sum(int(np.minimum(lengths, self._room).sum()) for lengths in view.length_blocks())
        self.documents = len(view)
        self.tokens = read + len(view) * view.framing

    def __len__(self) -> int:
        return self.documents

    def __getitem__(self, row: int) -> list[Ids]:
        return [self._view.framed(row, 0, self._room)]


class BestFitRows:
    """A row is as many pieces as fit, each a sequence: short documents whole, long ones cut.

    Every token of the documents is in exactly one row.
    """

    def __init__(self, view: _View, max_tokens: int) -> None:
        self._view, self._room = view, max_tokens - view.framing
        lengths = view.lengths()
        pieces = -(-lengths // self._room)
        # The pieces before those of each document, and before the end.
        self._first = np.concatenate([[0], np.cumsum(pieces)])
        sizes = np.full(self._first[-1], max_tokens, dtype=np.int32)
        sizes[self._first[1:] - 1] = lengths - (pieces - 1) * self._room + view.framing
        self._pieces, self._starts = _fill(sizes, max_tokens)
        self.documents = len(view)
        self.tokens = int(sizes.sum(dtype=np.int64))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> list[Ids]:
        pieces = self._pieces[self._starts[row] : self._starts[row + 1]]
        documents = np.searchsorted(self._first, pieces, side="right") - 1
        starts = (pieces - self._first[documents]) * self._room
        return [
            self._view.framed(int(document), int(start), int(start) + self._room)
            for document, start in zip(documents, starts, strict=True)
        ]


class ConcatRows:
    """A row is the next ``max_tokens`` of all documents in a chain, as one sequence (M6)."""

    def __init__(self, view: _View, max_tokens: int) -> None:
        self._view, self._max_tokens = view, max_tokens
        # Where each document begins in the chain, and where the last one ends.
        self._begins = np.concatenate([[0], np.cumsum(view.lengths() + view.framing)])
        self.documents = len(view)
        self.tokens = int(self._begins[-1])

    def __len__(self) -> int:
        return -(-self.tokens // self._max_tokens)

    def __getitem__(self, row: int) -> list[Ids]:
        start = row * self._max_tokens
        stop = min(start + self._max_tokens, self.tokens)
        first = int(np.searchsorted(self._begins, start, side="right")) - 1
        last = int(np.searchsorted(self._begins, stop, side="left"))
        parts = [self._part(document, start, stop) for document in range(first, last)]
        return [np.concatenate(parts)]

    def _part(self, document: int, start: int, stop: int) -> Ids:
        """Return what a document, framed by special tokens, has between two chain positions."""
        view = self._view
        begin, end = self._begins[document : document + 2].tolist()
        start, stop = max(start - begin, 0), stop - begin
        # The part is cut out of a sequence whose tokens begin with number ``first``.
        first = min(max(start - len(view.prefix), 0), end - begin - view.framing)
        return view.framed(document, first, stop)[start - first : stop - first]


def _at_least(store: TokenStore, length: int) -> NDArray[Any]:
    """Return the numbers of the documents of ``length`` tokens or more."""
    kind = np.uint32 if len(store) < 2**32 else np.int64
    start, numbers = 0, [np.empty(0, dtype=kind)]
    for lengths in store.lengths():
        numbers.append((np.flatnonzero(lengths >= length) + start).astype(kind))
        start += len(lengths)
    return np.concatenate(numbers)


def _fill(sizes: NDArray[np.int32], capacity: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Share pieces among rows; return the pieces of all rows, and where each row begins.

    Works on how many pieces there are of each size, not on pieces: the time hardly grows with them.
    """
    kind = np.uint32 if len(sizes) < 2**32 else np.int64
    by_size = np.argsort(sizes, kind="stable").astype(kind)
    counts = np.bincount(sizes, minlength=capacity + 1)
    next_of = np.cumsum(counts) - counts
    pieces, lengths = [np.empty(0, dtype=kind)], [np.zeros(1, dtype=np.int64)]
    for rows, shape in _shapes(counts, capacity):
        width = sum(number for _, number in shape)
        block = np.empty((rows, width), dtype=kind)
        column = 0
        for size, number in shape:
            taken = by_size[next_of[size] : next_of[size] + rows * number]
            block[:, column : column + number] = taken.reshape(rows, number)
            next_of[size] += rows * number
            column += number
        pieces.append(block.ravel())
        lengths.append(np.full(rows, width, dtype=np.int64))
    return np.concatenate(pieces), np.cumsum(np.concatenate(lengths))


_Shape = tuple[tuple[int, int], ...]
"""The sizes in a row, and how many pieces it has of each."""


def _shapes(counts: NDArray[np.int64], capacity: int) -> list[tuple[int, _Shape]]:
    """Return how many rows there are of each shape, by best fit from the largest size down.

    Equal rows are filled together (after histogram packing; Krell et al., 2021).
    """
    by_room: defaultdict[int, list[tuple[int, _Shape]]] = defaultdict(list)
    by_room[capacity] = [(int(counts.sum()) + 1, ())]
    rooms = [capacity]
    for size in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[size])
        while left:
            # Empty rows are always there, and come last.
            room = rooms[bisect_left(rooms, size)]
            rows, shape = by_room[room].pop()
            if not by_room[room]:
                rooms.remove(room)
            each = min(room // size, left)
            filled = min(rows, left // each)
            left -= filled * each
            changed = [
                (rows - filled, room, shape),
                (filled, room - each * size, (*shape, (size, each))),
            ]
            for number, now, its_shape in changed:
                if number:
                    if not by_room[now]:
                        insort(rooms, now)
                    by_room[now].append((number, its_shape))
    del by_room[capacity]
    return [each for found in by_room.values() for each in found]
