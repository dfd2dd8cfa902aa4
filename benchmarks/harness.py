"""Runs benchmarks in fresh processes and in turns, measures peak memory, writes result files."""

import argparse
import importlib
import inspect
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, Self, TypeVar

import torch

T = TypeVar("T")

RESULTS = Path(__file__).parent / "results"
MIB = 2**20
FREED_BLOCKS_RETURNED = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
"""The environment of a process whose peak is to be what it uses. glibc keeps freed blocks in a heap
that becomes fragmented; with this, blocks of 128 KiB and more go back to the system when freed."""


def make_parser(doc: str, results: str | None = None) -> argparse.ArgumentParser:
    """Return a parser described by the first line of ``doc``.

    ``results`` is the file under ``results/`` that the benchmark adds to unless told otherwise.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    if results:
        parser.add_argument(
            "--results",
            type=Path,
            default=RESULTS / results,
            help=f"The file that the result is added to. Default: benchmarks/results/{results}.",
        )
    return parser


def in_a_process(call: "partial[T]", **environment: str) -> T:
    """Return what ``call`` returns in a Python process that has done nothing before.

    Its function is one of a module's top level; arguments and result go through JSON.
    """
    words = [inspect.getfile(call.func), call.func.__name__, json.dumps([call.args, call.keywords])]
    done = subprocess.run(
        [sys.executable, __file__, *words],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    result: T = json.loads(done.stdout.splitlines()[-1])
    return result


def in_turns(
    contenders: Mapping[str, Callable[[], T]], rounds: int, *, warm_up: int = 0
) -> dict[str, list[T]]:
    """Return the result of each contender in each round.

    In every round each contender has its turn, so that whatever else the machine does meets all
    of them. The rounds of the warm-up come first and do not count.
    """
    results: dict[str, list[T]] = {name: [] for name in contenders}
    for number in range(-warm_up, rounds):
        for name, run in contenders.items():
            result = run()
            if number >= 0:
                results[name].append(result)
    return results


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum over several rounds."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        numbers = list(values)
        return cls(median(numbers), min(numbers), max(numbers))


def peak_bytes(device: torch.device) -> int:
    """Return the most bytes that this process has had on ``device`` at once."""
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else _status("VmHWM")


def peak_beyond(call: Callable[[], T]) -> tuple[T, int]:
    """Return what ``call`` returns, and how many resident bytes it takes at most (Linux)."""
    before = _status("VmRSS")
    # From here on the kernel counts the peak anew.
    Path("/proc/self/clear_refs").write_text("5")
    result = call()
    return result, _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(field)]
    return int(line.split()[1]) * 1024


def today() -> str:
    """Return the date as the result files have it."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def machine(device: torch.device) -> str:
    """Return the name of the processor that ``device`` is, and of a CPU its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} {'thread' if threads == 1 else 'threads'}"


def stamp(device: torch.device, *modules: ModuleType) -> str:
    """Return date, machine and versions: of torch, and of ``modules``."""
    versions = [f"{module.__name__} {module.__version__}" for module in (torch, *modules)]
    return ", ".join([today(), machine(device), *versions])


def command_line() -> str:
    """Return the command that runs this benchmark, as it is typed in the root of a checkout."""
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]], *, text: int = 1) -> str:
    """Return a table whose first ``text`` columns are text, and all others numbers."""
    frame = [columns, ["---"] * text + ["---:"] * (len(columns) - text)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*frame, *rows])


def append_section(path: Path, title: str, *paragraphs: str) -> None:
    """Add a section under the command of this run to the page called ``title``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text(encoding="utf-8") if path.exists() else f"# {title}\n"
    section = "\n\n".join([f"## `{command_line()}`", *paragraphs])
    path.write_text(f"{before}\n{section}\n", encoding="utf-8")


def append_row(path: Path, columns: Sequence[str], row: Sequence[str]) -> None:
    """Add a row to the file of one table, and print it."""
    head = f"| {' | '.join(columns)} |\n"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + f"|{'---|' * len(columns)}\n", encoding="utf-8")
    if not path.read_text(encoding="utf-8").startswith(head):
        sys.exit(f"{path}: is a table of other columns; choose another --results")
    line = f"| {' | '.join(row)} |\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
    print(line, end="", flush=True)


def write_record(results: Path, content: Any, *labels: str) -> None:
    """Write ``content`` as JSON beside ``results``, in a file named by date and ``labels``."""
    name = "_".join([results.stem, today(), *labels])
    results.parent.mkdir(parents=True, exist_ok=True)
    results.with_name(f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def _answer(file: str, function: str, given: str) -> None:
    """Do the part of ``in_a_process`` that is done in the other process."""
    sys.path.insert(0, str(Path(file).parent))
    args, keywords = json.loads(given)
    result = getattr(importlib.import_module(Path(file).stem), function)(*args, **keywords)
    print(json.dumps(result))


if __name__ == "__main__":
    _answer(*sys.argv[1:])
