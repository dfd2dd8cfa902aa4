"""The option ``--dtype``, which several commands have."""

from typing import Annotated

import typer

from embedkit.errors import UserError

Precision = Annotated[
    str, typer.Option("--dtype", help="auto, bf16, fp16 or fp32; auto: bf16 where it is native.")
]


def check_dtype(dtype: str) -> None:
    """Raises ``UserError`` unless it is one of the four."""
    if dtype not in ("auto", "bf16", "fp16", "fp32"):
        raise UserError(f"--dtype {dtype}: must be auto, bf16, fp16 or fp32")
