"""``Reader``, the base of all readers of files, embedkit's and those of other distributions."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from embedkit.config import Section


class Reader(Section):
    """A format of files: the table ``reader`` of a source, and the method that reads rows."""

    kind: str

    @abstractmethod
    def read(self, path: Path) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of a file, in its order.

        Raises:
            DataError: the file is not of this format.
        """
