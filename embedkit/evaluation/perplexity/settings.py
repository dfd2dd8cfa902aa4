"""The settings of ``embedkit eval-perplexity`` and ``embedkit.evaluate_perplexity``."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Required, TypedDict

from pydantic import BeforeValidator, Field, PositiveInt, field_validator

from embedkit.models.settings import Dtype, DtypeSettings


def _numbers(value: Any) -> Any:
    """Read ``512,1024`` as the command line has it; any other value stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(int(number) for number in value.split(","))
    except ValueError:
        raise ValueError(f"write numbers, e.g. 512,1024 (got {value})") from None


def _positions(value: Any) -> Any:
    number = int(value) if isinstance(value, str) and value.isdigit() else value
    if number != "all" and (not isinstance(number, int) or number < 2):
        raise ValueError(f"write all, or a number from 2 on (got {value})")
    return number


class PerplexitySettings(DtypeSettings):
    """Which tokens of which documents are masked."""

    lengths: Annotated[tuple[int, ...], BeforeValidator(_numbers)] = Field(
        strict=False, examples=["512,1024"]
    )
    """Documents are cut to each of these numbers of tokens, special tokens included."""
    documents: PositiveInt = 100
    """At most this many documents are measured at each length."""
    positions: Annotated[Literal["all"] | int, BeforeValidator(_positions)] = Field(
        default="all", examples=["64", "all"]
    )
    """This many tokens of each document are masked, one at a time; all masks every token."""
    seed: int = 0
    """Random seed for drawing the positions that are masked."""

    @field_validator("lengths")
    @classmethod
    def _long_enough(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if not lengths or min(lengths) < 3:
            shown = ",".join(map(str, lengths)) or "none"
            raise ValueError(f"give numbers of tokens from 3 on, e.g. 512,1024 (got {shown})")
        return tuple(dict.fromkeys(lengths))


class PerplexityOptions(TypedDict, total=False):
    """The types of ``PerplexitySettings`` as keyword arguments, for type checkers and editors."""

    lengths: Required[Sequence[int] | str]
    documents: int
    positions: int | Literal["all"]
    seed: int
    dtype: Dtype
