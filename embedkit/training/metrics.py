"""Metrics of a run's steps: ``metrics.jsonl``, trackers, and a progress bar or lines of a log."""

import importlib.util
import json
import math
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, Self, cast

from rich import progress
from rich.console import Console
from rich.table import Column
from torch import Tensor

from embedkit.errors import UserError
from embedkit.storage.atomic import write_text

_BY_SOURCE = ("loss", "accuracy", "negatives", "no_negatives", "hard_share")
"""Metrics that trackers receive under the name of the step's source too."""


class Tracker(Protocol):
    """Interface of an experiment tracker, which receives the metrics of every step."""

    def log(self, values: dict[str, float], /, *, step: int) -> None: ...

    def finish(self) -> None: ...


class Metrics:
    """Context manager that collects the metrics of each step and writes them in blocks.

    Values may be tensors on a device: they are copied to the CPU when a block is written. If
    ``peak_flops``, the peak of the hardware in floating point operations per second, is given,
    ``flops`` of a step are replaced by ``mfu``, the share of the peak that the step used.
    """

    def __init__(
        self, path: Path, trackers: Sequence[Tracker], peak_flops: float | None = None
    ) -> None:
        self._path, self._trackers, self._peak_flops = path, trackers, peak_flops
        self._waiting: list[dict[str, Any]] = []

    def add(self, step: int, source: str, values: Mapping[str, float | Tensor]) -> None:
        """Store the metrics of one step until the next ``write``; ``step`` counts from 1."""
        self._waiting.append({"step": step, "source": source, **values})

    def write(self) -> list[dict[str, Any]]:
        """Write the metrics added since the last ``write``, and return them as plain numbers."""
        lines, self._waiting = self._waiting, []
        for line in lines:
            line |= {key: value.item() for key, value in line.items() if isinstance(value, Tensor)}
            if self._peak_flops is not None:
                line["mfu"] = line.pop("flops") / line["seconds"] / self._peak_flops
        append_lines(self._path, lines)
        for line in lines:
            values = {k: v for k, v in line.items() if k not in {"step", "source"}}
            named = {f"{line['source']}/{k}": line[k] for k in _BY_SOURCE if k in line}
            for tracker in self._trackers:
                tracker.log(values | named, step=line["step"])
        return lines

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Write the metrics not yet written, and close the trackers."""
        if self._waiting:
            self.write()
        for tracker in self._trackers:
            tracker.finish()


class Progress(progress.Progress):
    """Progress of a task: a bar on a terminal, a line for each remark elsewhere.

    Lines are flushed at once, so that a log can be followed while it grows.
    """

    def __init__(self, console: Console, work: str, total: int, done: int = 0) -> None:
        # In a narrow terminal the bar shrinks, and the numbers are not wrapped.
        whole = Column(no_wrap=True)
        super().__init__(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(table_column=whole),
            progress.TextColumn("{task.fields[remark]}", markup=False),
            progress.TimeRemainingColumn(table_column=whole),
            progress.TextColumn("left"),
            console=console,
            disable=console.quiet or not console.is_terminal,
        )
        self.add_task(work, total=total, completed=done, remark="")
        self._start = done

    def remark(self, done: int, text: str) -> None:
        """Show ``text`` after ``done`` items, of which at least one was done since the start."""
        (task,) = self.tasks
        self.update(task.id, remark=text)
        if not self.console.is_terminal:
            assert task.total is not None
            pace = (task.elapsed or 0) / (done - self._start)
            left = timedelta(seconds=round(pace * (task.total - done)))
            line = f"{task.description} {done}/{task.total}  {text}  {left} left"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def append_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Append to a JSON lines file, and wait until the lines are on disk."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def truncate_lines(path: Path, steps: int) -> None:
    """Remove the lines of a JSON lines file, if there is one, whose ``step`` is above ``steps``."""
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    # A killed run may leave half a line at the end.
    whole = [line for line in lines if line.endswith("\n")]
    write_text(path, "".join(line for line in whole if json.loads(line)["step"] <= steps))


def summary_line(block: Sequence[Mapping[str, Any]]) -> str:
    """Summarize a block of metrics in one line; refuse losses and gradients that are not finite."""
    for line in block:
        if not math.isfinite(line["loss"] + line["grad_norm"]):
            raise UserError(
                f"step {line['step']} ({line['source']}): loss {line['loss']}, gradient norm "
                f"{line['grad_norm']}; start anew with a lower optim.lr or more optim.warmup_steps"
            )
    rate = sum(line["tokens"] for line in block) / sum(line["seconds"] for line in block)
    last, sources = block[-1], {line["source"] for line in block}
    source = f"  {last['source']}" if len(sources) == 1 else ""
    return f"loss {last['loss']:.3f}  lr {last['lr']:.1e}{source}  {rate:,.0f} tokens/s"


def check_trackers(names: Sequence[str]) -> None:
    """Verify that the packages of a recipe's trackers are installed, or raise a UserError."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"logging.trackers: {name} is not installed: pip install {name}, "
                'or "embedkit-neobert[tracking]" for all of them'
            )


def open_trackers(names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> list[Tracker]:
    """Start the trackers of a recipe, which write into ``folder`` and store ``config``."""
    trackers: list[Tracker] = []
    for name in names:
        if name == "tensorboard":
            trackers.append(_TensorBoard(folder))
            continue
        # wandb and trackio are modules with the same functions, those of a Tracker among them.
        module = importlib.import_module(name)
        extra = {"dir": str(folder)} if name == "wandb" else {}
        module.init(project="embedkit", name=folder.name, config=dict(config), **extra)
        trackers.append(cast(Tracker, module))
    return trackers


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()
