"""Where a result goes: claimed by one plan, worked on aside, and there whole or not at all."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from embedkit.config import differences
from embedkit.errors import UserError
from embedkit.storage.atomic import write_json
from embedkit.storage.folders import check_replaceable, mark, recover, replace

RECORD = "mining.json"
"""In the result: what was mined from what, with which settings, and the audit."""
_PLAN = "plan.json"
_LOCK = ".lock"


class OutputFolder:
    """The folder ``output``, and beside it a hidden one for the work that is not finished."""

    def __init__(self, output: Path) -> None:
        # Resolved, since the manifest names the pairs by where they lie.
        self.output = output.expanduser().resolve()
        self.work = self.output.with_name(f".{self.output.name}.mining")

    def finished(self, plan: Mapping[str, Any], *, overwrite: bool) -> dict[str, Any] | None:
        """The record of an earlier result of the same plan; changes nothing.

        Raises:
            UserError: something else lies there, the work of another plan was begun, or overwriting
                would lose a user's own files.
        """
        if self.output.exists() and not self.output.is_dir():
            raise UserError(f"{self.output}: is a file; choose another --output")
        taken = self.output.is_dir() and any(self.output.iterdir())
        record = _read(self.output / RECORD)
        if taken and record is None:
            raise UserError(f"{self.output}: holds no mined pairs; choose another --output")
        begun = _read(self.work / _PLAN)
        if overwrite:
            check_replaceable(self.output, "mined pairs")
            return None
        for then in (record and record["plan"], begun):
            if then and (changed := _changed(then, plan)):
                raise UserError(
                    f"{self.output}: was begun otherwise ({'; '.join(changed)}): repeat it as it "
                    "was, choose another --output, or start anew with --overwrite"
                )
        return record

    @contextmanager
    def claimed(self, plan: Mapping[str, Any]) -> Iterator[Path]:
        """Lend the work folder, which holds what earlier processes did under the same plan.

        Raises:
            UserError: another process has it.
        """
        try:
            self.work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{self.output}: cannot be made ({error.strerror}); choose another --output"
            ) from None
        try:
            with FileLock(self.work / _LOCK, timeout=0):
                begun = _read(self.work / _PLAN)
                if begun is None or _changed(begun, plan):
                    self._clear()
                write_json(self.work / _PLAN, plan)
                yield self.work
        except Timeout:
            raise UserError(f"{self.output}: another process is mining into it") from None

    def publish(self, result: Path) -> None:
        """Give a finished result its name, in place of an older one, and clear the work away."""
        mark(result, "mined pairs")
        replace(self.output, result, "mined pairs")
        self._remove()

    def tidy(self) -> None:
        """Clear away what a process left that was killed after it had named its result."""
        recover(self.output)
        if self.work.is_dir():
            with suppress(Timeout), FileLock(self.work / _LOCK, timeout=0):
                self._remove()

    def _remove(self) -> None:
        self._clear()
        shutil.rmtree(self.work)

    def _clear(self) -> None:
        # First, so that what a kill leaves of the rest is taken for no work of this plan.
        (self.work / _PLAN).unlink(missing_ok=True)
        for path in self.work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _LOCK:
                path.unlink()


def _changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, unless it is names alone: the same model may go by several."""
    lines = differences(then, now)
    decisive = [line for line in lines if ".name: " not in line]
    return lines if decisive else []


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
