"""Distributions of other people, installed as pip leaves them: modules, and a dist-info folder."""

import importlib
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from embedkit_cli.app import main
from support.interrupted import start

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def block(title: str, containing: str = "") -> str:
    """Return the code or table of ``docs/extending.md`` whose first line is ``# title``."""
    found = [
        code
        for code in re.findall(r"^```\w+\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
        if code.startswith(f"# {title}\n") and containing in code
    ]
    assert len(found) == 1, f"{len(found)} blocks of {PAGE} are {title} and contain {containing!r}"
    return found[0]


def install(site: Path, module: str, *, version: str = "1.0", code: str | None = None) -> Path:
    """Install the distribution of a module of ``docs/extending.md`` into a folder of Python's path.

    Its line of ``pyproject.toml`` is the page's too, and so is its code unless it is given. It has
    the module's name, and takes the place of an older version.
    """
    site.mkdir(parents=True, exist_ok=True)
    (site / f"{module}.py").write_text(block(f"{module}.py") if code is None else code)
    for older in site.glob(f"{module}-*.dist-info"):
        shutil.rmtree(older)
    info = site / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
    tables = tomllib.loads(block("pyproject.toml", f"{module}:"))["project"]["entry-points"]
    lines = [
        line
        for group, names in tables.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


def run_beside(site: Path, work: Callable[..., object], *args: object) -> tuple[int | None, str]:
    """Call ``work`` in a process of its own that finds what is installed in ``site``.

    Return its exit code and what it wrote to the screen.
    """
    site.mkdir(exist_ok=True)
    screen = site / "screen"
    process = start(_beside, site, screen, work, args)
    process.join(120)
    return process.exitcode, screen.read_text()


def command(*words: str) -> None:
    """Do what ``embedkit WORDS`` does."""
    sys.argv = ["embedkit", *words]
    main()


def _beside(
    site: Path, screen: Path, work: Callable[..., object], args: tuple[object, ...]
) -> None:
    with screen.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    work(*args)
