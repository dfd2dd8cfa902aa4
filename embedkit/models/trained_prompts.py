"""``TrainedPrompts``: the prompts that training put before queries and documents."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from embedkit import distributed
from embedkit.errors import UserError
from embedkit.models.model_files import read_json
from embedkit.storage.atomic import write_json
from embedkit.tokens.prompts import SIDES

FILE = "trained_prompts.json"
"""File of a model's folder, which sentence-transformers neither reads nor writes again."""
_SHOWN = 80
"""Number of characters of a prompt that are shown."""

Reading = tuple[str, str]
"""A side, which is ``text`` for a text without one, and the prompt before its texts."""


class TrainedPrompts:
    """Prompts that the training of a model put before the texts of each side.

    A model without such a record was trained elsewhere, and nothing is said of its prompts.
    """

    def __init__(self, by_side: Mapping[str, Iterable[str]]) -> None:
        self.by_side = {side: tuple(dict.fromkeys(by_side.get(side, ()))) for side in SIDES}
        self._told: set[Reading] = set()

    def joined(self, other: Self | None) -> Self:
        """Return the prompts of this training and of an ``other`` one before it, if there was."""
        if other is None:
            return self
        return type(self)({side: (*other.by_side[side], *self.by_side[side]) for side in SIDES})

    def has(self, side: str, prompt: str) -> bool:
        """Return whether training read a side behind ``prompt``, or any side if it is ``text``."""
        return any(prompt in self.by_side[each] for each in SIDES if side in (each, "text"))

    def new(self, readings: Iterable[Reading]) -> list[Reading]:
        """Return the readings that training never had; each is returned by one call alone."""
        # What was told of a side need not be told of texts whose side is not known.
        told = self._told | {("text", prompt) for _, prompt in self._told}
        unknown = [reading for reading in dict.fromkeys(readings) if not self.has(*reading)]
        fresh = [reading for reading in unknown if reading not in told]
        self._told.update(fresh)
        return fresh

    def warn(self, model: str, readings: Iterable[Reading]) -> None:
        """Warn in one line, on the main process and once each, of what training never had."""
        if (fresh := self.new(readings)) and distributed.is_main():
            warnings.warn(
                f"{model}: {described(fresh)}, which its training by embedkit never had; "
                f"it had {self}",
                stacklevel=4,
            )

    def __str__(self) -> str:
        """Say what training had: a prompt of each side, and how many others."""
        sides = []
        for side, (first, *others) in self.by_side.items():
            more = f" (and {len(others)} other{'s' * (len(others) > 1)})" if others else ""
            sides.append(described([(side, first)]) + more)
        return ", ".join(sides)

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, self.by_side)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the record in a model's folder, or ``None`` if it has none.

        Raises:
            UserError: the file is no such record.
        """
        path = folder / FILE
        if not path.is_file():
            return None
        sides = read_json(path)
        lists = [sides.get(side) for side in SIDES]
        if not all(isinstance(each, list) and each and all(map(_is_text, each)) for each in lists):
            raise UserError(
                f"{path}: is no table of query and document, each a list of prompts; copy it anew "
                "from where the model comes from, or delete it"
            )
        return cls(sides)


def described(readings: Iterable[Reading]) -> str:
    """Say which texts are read behind which prompts, such as ``queries without a prompt``."""
    named = {"query": "queries", "document": "documents", "text": "texts"}
    return " and ".join(
        f"{named[side]} behind {shown(prompt)}" if prompt else f"{named[side]} without a prompt"
        for side, prompt in readings
    )


def shown(prompt: str) -> str:
    return repr(prompt if len(prompt) <= _SHOWN else f"{prompt[:_SHOWN]}...")


def _is_text(prompt: object) -> bool:
    return isinstance(prompt, str)
