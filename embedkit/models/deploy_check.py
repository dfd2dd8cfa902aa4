"""Opens an exported model in the tools that are installed, and compares their vectors."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Column, Table

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.deploy_tools import TOOLS, Tool
from embedkit.models.embedder import Embedder
from embedkit.models.onnx import GRAPH
from embedkit.tokens.prompts import SIDES

TOLERANCE = 1e-4
"""Largest difference of a feature, relative to the norm of vectors that are longer than 1."""
_SECONDS = 600
"""Time after which a tool that has not answered counts as failed."""
_ABSENT = 3
"""Exit code of a tool's process if the tool is not installed."""
# A line break is not among them, since LangChain replaces it by a space.
_TEXTS = {
    "queries": ["What is a fever?", "köln, 東京 and more", "a"],
    "documents": ["A fever is a rise of the body's temperature.", "", "word " * 600, "def f(): 1"],
}
_BEFORE = """\
import importlib.metadata, json, sys

given = json.load(open(sys.argv[1], encoding="utf-8"))
try:
    print(importlib.metadata.version(given.pop("distribution")))
except importlib.metadata.PackageNotFoundError:
    sys.exit({absent})
globals().update(given)
"""
_AFTER = """
import numpy

numpy.save(sys.argv[2], numpy.asarray([*query_vectors, *document_vectors], dtype="float32"))
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """Outcome of opening a folder in one tool."""

    tool: str
    version: str = ""
    difference: float | None = None
    """Largest difference of a feature to embedkit's vectors; ``None`` if there are none."""
    obstacle: str = ""
    """Why there are no vectors."""
    failed: bool = False
    """Whether the tool is there and does not give the vectors of embedkit."""


@dataclass(frozen=True, slots=True)
class DeployCheck:
    """Outcomes of opening a folder in all tools."""

    folder: str
    rows: tuple[Opened, ...]

    @property
    def is_sound(self) -> bool:
        """Whether every tool that could open the folder gives embedkit's vectors."""
        return not any(row.failed for row in self.rows)

    def table(self) -> Table:
        """Return a table of tools, versions and differences."""
        columns = ("tool", "version", Column("largest difference", overflow="fold"))
        table = Table(*columns, title=f"{self.folder}: vectors against embedkit's")
        for row in self.rows:
            shown = row.obstacle if row.difference is None else f"{row.difference:.1e}"
            table.add_row(row.tool, row.version, shown + " (too large)" * _too_large(row))
        return table


def deploy_check(
    model: str | Path, *, reference: str | Path | None = None, python: str | Path | None = None
) -> DeployCheck:
    """Open an exported folder in each tool, in a process of its own, and compare the vectors.

    Args:
        model: folder that ``export`` or a run wrote.
        reference: model whose vectors are expected; by default ``model``. An ONNX export has no
            weights for embedkit to read, so that it needs one.
        python: interpreter in whose environment the tools are installed, by default this one's.

    Raises:
        UserError: ``model`` is no folder, ``reference`` cannot be loaded, or ``python`` is no
            program.
    """
    folder = Path(hub.resolve(str(model)))
    if not folder.is_dir():
        raise UserError(f"{model}: is no folder here; deploy-check opens an exported folder")
    holds = {"graph"} if (folder / GRAPH).is_file() else set()
    if list(folder.glob("*.safetensors")):
        holds.add("weights")
    if reference is None and "weights" not in holds and holds:
        raise UserError(
            f"{model}: holds an ONNX graph and no weights; name the model that it was exported "
            "from with --reference"
        )
    interpreter = shutil.which(python or sys.executable)
    if interpreter is None:
        raise UserError(f"{python}: is no program that can be run; check --python")
    expected = hub.load(str(reference or model))
    expected.trained_prompts = None
    vectors = np.concatenate(
        [
            expected.encode(_TEXTS["queries"], role="query"),
            expected.encode(_TEXTS["documents"], role="document"),
        ]
    )
    given = {"FOLDER": str(folder.resolve()), "MAX_TOKENS": expected.max_tokens}
    given |= {f"{side.upper()}_PROMPT": _prompt(expected, side) for side in SIDES}
    given |= {name.upper(): texts for name, texts in _TEXTS.items()}
    rows = (
        _opened(tool, given, vectors, str(Path(interpreter).absolute()))
        if tool.opens in holds
        else Opened(tool.name, obstacle=f"the folder holds no {tool.opens}")
        for tool in TOOLS
    )
    return DeployCheck(str(model), tuple(rows))


def _prompt(model: Embedder, side: str) -> str:
    default = model.prompts.get(model.default_prompt_name or "", "")
    return model.prompts.get(side, default)


def _opened(tool: Tool, given: dict[str, Any], expected: NDArray[Any], python: str) -> Opened:
    script = _BEFORE.format(absent=_ABSENT) + tool.lines + _AFTER
    # The folder is here, so that the hub need not be asked; all compute on the CPU, as embedkit.
    settings = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "0"}
    with tempfile.TemporaryDirectory() as place:
        told, made = Path(place, "given.json"), Path(place, "vectors.npy")
        told.write_text(json.dumps(given | {"distribution": tool.distribution}), encoding="utf-8")
        try:
            done = subprocess.run(
                [python, "-c", script, told, made],
                capture_output=True,
                text=True,
                cwd=place,
                timeout=_SECONDS,
                env=os.environ | settings,
            )
        except subprocess.TimeoutExpired:
            late = f"failed: no answer in {_SECONDS} seconds"
            return Opened(tool.name, obstacle=late, failed=True)
        if done.returncode == _ABSENT:
            return Opened(tool.name, obstacle="not installed")
        version = (done.stdout.splitlines() or [""])[0]
        if done.returncode or not made.is_file():
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return Opened(tool.name, version, obstacle=f"failed: {reason:.200}", failed=True)
        vectors = np.load(made)
    if vectors.shape != expected.shape:
        shapes = f"failed: vectors of shape {vectors.shape} and not {expected.shape}"
        return Opened(tool.name, version, obstacle=shapes, failed=True)
    norm = max(1.0, float(np.linalg.norm(expected, axis=-1).max()))
    difference = float(np.abs(vectors - expected).max()) / norm
    return Opened(tool.name, version, difference, failed=not difference <= TOLERANCE)


def _too_large(row: Opened) -> bool:
    return row.difference is not None and row.failed
