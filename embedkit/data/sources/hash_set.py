"""``HashSet``: which of many 64-bit hashes came before, in 12 to 24 bytes for each."""

from array import array


class HashSet:
    """Set of 64-bit hashes in a table with open addressing, a quarter of a Python set's size.

    A slot holds a hash, or 0 where it is empty. A hash is looked for from the slot that its last
    bits name, up to the first empty one.
    """

    def __init__(self) -> None:
        self._slots = array("Q", [0]) * 1024
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, hash_: int) -> bool:
        """Add a hash, and return whether it is new."""
        # 0 marks empty slots; it counts as the hash 1.
        hash_ = hash_ or 1
        slots, last = self._slots, len(self._slots) - 1
        slot = hash_ & last
        while held := slots[slot]:
            if held == hash_:
                return False
            slot = slot + 1 & last
        slots[slot] = hash_
        self._size += 1
        if 3 * self._size > 2 * len(slots):
            self._grow()
        return True

    def _grow(self) -> None:
        held, self._slots = self._slots, array("Q", [0]) * (2 * len(self._slots))
        self._size = 0
        for hash_ in held:
            if hash_:
                self.add(hash_)
