"""Ends commands that Ctrl-C or SIGTERM has interrupted with the command that continues them."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from embedkit import api
from embedkit_cli.options import is_main


@contextmanager
def print_how_to_resume() -> Iterator[None]:
    """End with success when a run was asked to stop, and print the command that continues it."""
    try:
        yield
    except api.Interrupted as stopped:
        if is_main():
            typer.echo(f"{stopped}; continue with: {_command_again('--resume')}")


@contextmanager
def print_scores_so_far() -> Iterator[None]:
    """When an evaluation is interrupted, print its table and the command that continues it.

    The exit code is the shell's for a signal: 130 for Ctrl-C, 143 for SIGTERM.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        summary = getattr(interrupt, "summary", None)  # It has none while the model is loaded.
        if is_main():
            done = "before the first task"
            if summary is not None:
                typer.echo(summary.text(), nl=False)
                done = f"after {summary.coverage}"
            typer.echo(f"stopped {done}; continue with: {_command_again()}")
        if "RANK" in os.environ:
            from embedkit import distributed

            distributed.fails_first()  # The other ranks then do not report that this one is gone.
        number = next(iter(interrupt.args), signal.SIGINT)
        raise typer.Exit(128 + number) from None


def _command_again(*more: str) -> str:
    """Return the command line of this process, without what begins a run anew."""
    words = [word for word in sys.argv[1:] if word not in {"--resume", "--overwrite"}]
    launcher = ["embedkit"]
    by_devices = any(word.partition("=")[0] == "--devices" for word in words)
    if "TORCHELASTIC_RUN_ID" in os.environ and not by_devices:
        ranks = os.environ["LOCAL_WORLD_SIZE"]
        launcher = ["torchrun", "--nproc-per-node", ranks, "-m", "embedkit_cli"]
    return shlex.join([*launcher, *words, *more])
