"""The type of ``instructions``, a setting of recipes and of evaluations."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator


def _known(instructions: str) -> str:
    if instructions in ("none", "paper") or Path(instructions).suffix in (".toml", ".json"):
        return instructions
    raise ValueError(
        f"write none, paper, or the path of a TOML or JSON file (got {instructions!r})"
    )


Instructions = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),
    AfterValidator(_known),
]
"""``none``, ``paper``, or the path of a TOML or JSON file of prefixes by mteb's keys."""
