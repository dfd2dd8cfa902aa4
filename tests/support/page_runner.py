"""Runs what the pages of the documentation show, as a reader would who follows a page."""

import doctest
import re
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from embedkit_cli.app import main
from support.pages import Fence, embedkit_words, transcript


class PageRunner:
    """Runs the blocks of one page, in order, in the current folder; later ones see earlier ones."""

    def __init__(self) -> None:
        self._names: dict[str, object] = {}

    def run(self, fence: Fence) -> None:
        """Write, execute or compare a block, whichever it asks for."""
        if fence.file is not None:
            path = Path(fence.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(fence.text, encoding="utf-8")
        elif fence.language == "python":
            exec(compile(fence.text, fence.name, "exec"), self._names)
        else:
            for command, shown in transcript(fence.text):
                printed = output_of(command, succeeds="error: " not in shown)
                assert same(shown, printed), f"{fence.name}: {command} prints\n{printed}"


def output_of(command: str, *, succeeds: bool = True) -> str:
    """Return what a command prints; where it is to fail, what it complains of."""
    words = embedkit_words(command)
    if words is None or not command.startswith("embedkit"):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        code, out, err = _embedkit(words)
    assert (code == 0) == succeeds, f"{command} ends with {code}\n{out}\n{err}"
    return out if succeeds else err


def _embedkit(words: list[str]) -> tuple[int, str, str]:
    """Run the command in this process, which has imported torch already."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "argv", ["embedkit", *words])
        patch.setattr(warnings, "formatwarning", warnings.formatwarning)
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


def same(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed, but for figures, hashes and white space.

    Figures depend on the processor, and with them the widths of tables. ``[...]`` in a page stands
    for anything.
    """
    want = _without_figures(shown).replace("[...]", "...")
    return doctest.OutputChecker().check_output(want, _without_figures(printed), doctest.ELLIPSIS)


def _without_figures(text: str) -> str:
    text = re.sub(r"([━─═-])\1+", r"\1", text)
    text = re.sub(r"\b[0-9a-f]{12,}\b", "0", text)
    text = re.sub(r"[+-]?\d+(?:[.,:]\d+)*(?:e[+-]\d+)?", "0", text)
    return " ".join(text.split()) + "\n"
