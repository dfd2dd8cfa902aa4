"""``Instructions``: prompts that a user asks for, either the paper's or those of a file."""

import difflib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Self

from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.retrieval import AbsTaskRetrieval

from embedkit.config import expand, read_toml
from embedkit.errors import UserError, some
from embedkit.tokens.prompts import SIDES, benchmark_prompts


@dataclass(frozen=True, slots=True)
class Instructions:
    """Prefixes by mteb's keys, which are exact: ``<task>``, ``<task>-query``, ``<task>-document``.

    The paper's are for tasks of mteb alone. A file may name task folders too.
    """

    prefixes: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None
    """Path of the file that has the prefixes; ``None`` for the paper's."""

    @classmethod
    def asked_for(cls, asked: str | None) -> Self:
        """Return what ``none``, ``paper`` or the path of a TOML or JSON file stands for.

        Raises:
            UserError: there is no such file, or it holds something else than prefixes by key.
        """
        if asked in (None, "none"):
            return cls()
        return cls(benchmark_prompts()) if asked == "paper" else cls(_read(asked), asked)

    def of(self, task: AbsTask) -> dict[str, str]:
        """Return the prefixes of the sides that are named, of a task that is no aggregate."""
        told: dict[str, str] = {}
        for side, keys in _keys_of(task.metadata.name, sides_of(task)).items():
            if known := [key for key in keys if key in self.prefixes]:
                told[side] = self.prefixes[known[0]]
        return told

    def check(self, sides: Mapping[str, Sequence[str]]) -> None:
        """Warn of keys of a file that none of the tasks has.

        Args:
            sides: the sides of each task to score by its name, the parts of aggregates in their
                place.

        Raises:
            UserError: no task has any of the keys.
        """
        if self.file is None:
            return
        by_side = [_keys_of(name, own).values() for name, own in sides.items()]
        keys = {key for named in chain(*by_side) for key in named}
        unused = [key for key in self.prefixes if key not in keys]
        if not unused:
            return
        if len(unused) == len(self.prefixes):
            near = difflib.get_close_matches(unused[0], keys, n=1) or [*sides]
            raise UserError(
                f"{self.file}: names none of the tasks that are scored (first key: {unused[0]}); a "
                f"key is a task's exact name, such as {near[0]}"
            )
        warnings.warn(
            f"{self.file}: no task that is scored is called {some(unused, 5)}", stacklevel=2
        )


NO_INSTRUCTIONS = Instructions()


def sides_of(task: AbsTask) -> tuple[str, ...]:
    """Return the sides whose prompts may differ: query and document, or else text alone."""
    sided = isinstance(task, AbsTaskRetrieval) or getattr(task, "input1_prompt_type", None)
    return SIDES if sided else ("text",)


def _keys_of(name: str, sides: Sequence[str]) -> dict[str, list[str]]:
    """Return the keys of a task's sides, those that count first in front."""
    return {side: [name] if side == "text" else [f"{name}-{side}", name] for side in sides}


def _read(file: str) -> dict[str, str]:
    path = Path(expand(file))
    try:
        is_json = path.suffix == ".json"
        content = json.loads(path.read_text(encoding="utf-8")) if is_json else read_toml(path)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: not valid JSON: {error}") from None
    if not isinstance(content, dict) or not content:
        raise UserError(f"{file}: holds no instructions; write the name of a task and its prefix")
    for key, prefix in content.items():
        if not isinstance(prefix, str):
            raise UserError(
                f"{file}: {key}: write the prefix as a text (got {prefix!r}); the two sides of a "
                f"search are {key}-query and {key}-document"
            )
    return content
