"""The layers of the package, and the part of ``docs/architecture.md`` that is drawn from the code.

``python tests/support/architecture.py`` writes that part anew.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "embedkit"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn from the code: begin -->\n", "<!-- drawn from the code: end -->\n"

LAYERS = [
    ["errors", "rng", "config"],
    ["storage", "distributed"],
    ["tokens"],
    ["recipe"],
    ["data", "models", "training"],
    ["objectives", "clustering", "mining", "evaluation"],
    ["finetuning", "pretraining"],
    ["api"],
]
"""A module imports from the lines above its own, and from its own folder."""
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
ENTRIES = {PACKAGE / "__init__.py", PACKAGE / "__main__.py"}
"""The package's offer, and what ``python -m embedkit`` runs: both may import anything."""
GRADIENT_PATH = [
    "cli/embedkit_cli/app.py",
    "embedkit/api.py",
    "embedkit/training/trainer.py",
    "embedkit/objectives/contrastive.py",
]
"""The files from the command to the gradient, in the order of the calls and of the page."""
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path not in ENTRIES)


def modules_imported(path: Path) -> Iterator[str]:
    """Yield the full name of everything that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # Code that runs without the package names only its neighbour.
            assert node.level == 0 or path.name == "modeling_contextual.py", path
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(path: Path) -> str:
    """Return the folder or root module of the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def parts_imported(path: Path) -> set[str]:
    """Return the other parts of the package that a file imports from."""
    names = (name.split(".") for name in modules_imported(path))
    return {name[1] for name in names if name[0] == "embedkit"} - {part_of(path)}


def drawn() -> str:
    """Return the table of layers, with what each part owns, imports, and how long it is."""
    lines = ["| layer | part | owns | imports | lines |", "|---|---|---|---|---:|"]
    for level, parts in enumerate(LAYERS):
        for part in parts:
            files = [path for path in FILES if part_of(path) == part]
            imported = sorted(
                set().union(*map(parts_imported, files)), key=lambda name: (LEVEL[name], name)
            )
            count = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
            # Rounded, so that the page changes with the structure and not with every line.
            size = f"{max(1, round(count / 100)) * 100:,}"
            name = f"`{part}/`" if (PACKAGE / part).is_dir() else f"`{part}.py`"
            lines.append(
                f"| {level} | {name} | {_owns(part)} | {', '.join(imported) or '-'} | {size} |"
            )
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page as it ought to be: its prose as it is, and the drawn part anew."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + "\n" + drawn() + "\n" + END + rest.split(END)[1]


def _owns(part: str) -> str:
    folder = PACKAGE / part
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, f"{path} has no docstring that says what it owns"
    return " ".join(text.split()).split(" Imports ")[0].rstrip(".")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
