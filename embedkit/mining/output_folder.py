"""The folder of mined pairs: claimed for one plan, filled aside, and there whole or not at all."""

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
"""File of the result with the plan (source, model and settings), versions and the audit."""
_PLAN = "plan.json"
_LOCK = ".lock"


class OutputFolder:
    """The folder ``output``, and a hidden folder beside it for unfinished work."""

    def __init__(self, output: Path) -> None:
        # Resolved, since the manifest names the pairs by their full path.
        self.output = output.expanduser().resolve()
        self.work = self.output.with_name(f".{self.output.name}.mining")

    def finished(self, plan: Mapping[str, Any], *, overwrite: bool) -> dict[str, Any] | None:
        """Return the record of a finished result of the same plan, or ``None``.

        Raises:
            UserError: the folder holds something else, the work of another plan was begun, or
                overwriting would lose a user's own files.
        """
        if self.output.exists() and not self.output.is_dir():
            raise UserError(f"{self.output}: is a file; choose another --output")
        record, begun = _read(self.output / RECORD), _read(self.work / _PLAN)
        if record is None and self.output.is_dir() and any(self.output.iterdir()):
            raise UserError(f"{self.output}: holds no mined pairs; choose another --output")
        if overwrite:
            check_replaceable(self.output, "mined pairs")
            return None
        for then in (record and record["plan"], begun):
            if then and (changes := _changes(then, plan)):
                raise UserError(
                    f"{self.output}: was begun otherwise ({'; '.join(changes)}): repeat it as it "
                    "was, choose another --output, or start anew with --overwrite"
                )
        if record:
            self._clear_up()
        return record

    @contextmanager
    def claimed(self, plan: Mapping[str, Any]) -> Iterator[Path]:
        """Lend the work folder, with what earlier processes did under the same plan.

        Raises:
            UserError: another process works in it.
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
                if begun is None or _changes(begun, plan):
                    self._clear()
                write_json(self.work / _PLAN, plan)
                yield self.work
        except Timeout:
            raise UserError(f"{self.output}: another process is mining into it") from None

    def publish(self, result: Path) -> None:
        """Give a finished result its name, in place of an older one, and delete the work folder."""
        mark(result, "mined pairs")
        replace(self.output, result, "mined pairs")
        self._clear()
        shutil.rmtree(self.work)

    def _clear_up(self) -> None:
        """Delete what was left by a process that was killed after it had published its result."""
        recover(self.output)
        if self.work.is_dir():
            with suppress(Timeout), FileLock(self.work / _LOCK, timeout=0):
                self._clear()
                shutil.rmtree(self.work)

    def _clear(self) -> None:
        # The plan goes first: whatever a killed process leaves then belongs to no plan.
        (self.work / _PLAN).unlink(missing_ok=True)
        for path in self.work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _LOCK:
                path.unlink()


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs, unless it is names alone: a model may have several."""
    lines = differences(then, now)
    return lines if any(".name: " not in line for line in lines) else []


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
