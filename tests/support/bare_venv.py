"""An environment with embedkit's dependencies but without embedkit, as a user of its models has."""

import os
import subprocess
import sys
from pathlib import Path

_ABSENT = ("embedkit", "_editable_impl_embedkit", "__editable__", "peft")
"""Nor peft, which trains adapters: an exported model has none."""


def make_bare_venv(folder: Path) -> Path:
    """Make a virtual environment; return its Python.

    It sees the packages of the running environment through links, without copying any.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    links = folder / "links"
    links.mkdir()
    for place in sys.path:
        if Path(place).name not in {"site-packages", "dist-packages"}:
            continue
        for package in Path(place).iterdir():
            link = links / package.name
            # What stands earlier on the path wins, as it does for Python.
            if not package.name.startswith(_ABSENT) and not link.exists():
                link.symlink_to(package)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "links.pth").write_text(f"{links}\n")
    return folder / "bin" / "python"


def run_bare(command: list[str | Path], cwd: Path) -> str:
    """What ``command`` prints when no setting of this process reaches it; fails if it fails."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environment = kept | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
