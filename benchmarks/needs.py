"""Checks the extras that a benchmark needs before its imports, which take seconds."""

import sys
from importlib.util import find_spec
from pathlib import Path


def require(extra: str, module: str) -> None:
    """End with a remedy and exit code 2 if a module is not installed that an extra brings."""
    if find_spec(module) is None:
        script = Path(sys.argv[0]).name
        sys.stderr.write(
            f"error: {script} needs {module}, which is not installed: "
            f"pip install -c constraints.txt -e '.[{extra}]'\n"
        )
        sys.exit(2)
