"""Reads the command line: orders commands, shows help, and reports mistakes in one line."""

import errno
import sys
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from embedkit.errors import ArgumentError, UserError
from embedkit_cli.options import flag

_FILE_SYSTEM_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOSPC, errno.EDQUOT),
    *(errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG),
)
"""Errors that are no bugs: missing permissions, a full disk, and paths where something else is."""


_OTHER_NAMES = {
    "train": "finetune",
    "fine-tune": "finetune",
    "pre-train": "pretrain",
    "eval": "eval-mteb",
    "evaluate": "eval-mteb",
    "perplexity": "eval-perplexity",
    "list": "recipes",
}
"""Words under which a command is looked for, and what it is called here."""


class Commands(TyperGroup):
    """Group of commands, which prints its help if no words are given."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names in the order of the work; typer puts groups such as data last."""
        return sorted(self.commands, key=lambda name: name != "data")

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """Return the command that the first word names, or refuse it and say which one is meant."""
        if (meant := _OTHER_NAMES.get(args[0])) in self.commands and args[0] not in self.commands:
            raise UserError(f"no such command {args[0]!r}; did you mean {meant!r}?")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Read the words; none at all are read as ``--help``."""
        return super().parse_args(ctx, args or ["--help"])

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command, and exit with its code.

        Raises:
            UserError: the words are wrong, arguments being named by their options; or a file cannot
                be written or read where it is.
        """
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
        except ArgumentError as error:
            raise UserError(error.written(flag)) from None
        except typer.TyperException as error:
            raise UserError(_mistake(error)) from None
        except OSError as error:
            if error.errno not in _FILE_SYSTEM_ERRORS:
                raise
            file = "" if error.filename is None else f"{error.filename}: "
            raise UserError(f"{file}{error.strerror}") from error
        if standalone_mode:
            sys.exit(code or 0)
        return code


def _mistake(error: typer.TyperException) -> str:
    """Say in one line what is wrong with the words."""
    context = getattr(error, "ctx", None)
    command = "embedkit"
    if context:
        command += context.command_path.removeprefix(context.find_root().command_path)
    if hasattr(error, "possibilities"):
        near = " or ".join(error.possibilities or ())
        offer = f"did you mean {near}?" if near else f"{command} --help lists all"
        return f"{getattr(error, 'option_name', '')}: no such option; {offer}"
    if isinstance(error, typer.BadParameter) and error.param is not None:
        name = error.param.get_error_hint().strip("'[].")
        if not error.message:
            return f"{name} is missing; {command} --help describes it"
        reason = error.message.removesuffix(".").removeprefix("Value error, ")
        if isinstance(error.__cause__, ValidationError):
            word = str(error.__cause__.errors()[0]["input"])
            reason += "" if repr(word) in reason else f" (got {word})"
        return f"{name}: {reason}"
    message = error.format_message().removesuffix(".").replace(". Did you", "; did you")
    return message[:1].lower() + message[1:]
