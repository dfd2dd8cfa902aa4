"""The errors a user can cause: each message names the value and the remedy."""

from collections.abc import Callable, Sequence


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first ``most`` names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: ``1 task``, ``2 tasks``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that come up more than once, each once and in alphabetical order."""
    return sorted({name for name in names if names.count(name) > 1})


class UserError(ValueError):
    """A mistake that the user can mend. The command line prints it on one line and exits with 2."""


class DataError(UserError):
    """A manifest, file or row that cannot be used as it is."""


class ArgumentError(UserError):
    """Arguments with wrong values. The command line writes their names as options.

    Args:
        mistakes: the name of an argument and what is wrong with it; the name is empty where no
            single argument is wrong.
    """

    def __init__(self, *mistakes: tuple[str, str]) -> None:
        super().__init__(*mistakes)
        self._mistakes = mistakes

    def __str__(self) -> str:
        return self.written(lambda name: name)

    def written(self, write: Callable[[str], str]) -> str:
        """Return the message, in which ``write`` makes the name of an argument what users type."""
        lines = (f"{write(name)}: {what}" if name else what for name, what in self._mistakes)
        return "; ".join(lines)
