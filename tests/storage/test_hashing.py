"""Hashes, compared with the tool that everybody has."""

import json
import subprocess
from pathlib import Path

from embedkit.storage.hashing import sha256_of_file, sha256_of_json, sha256_of_text


def sha256sum(path: Path) -> str:
    return subprocess.run(
        ["sha256sum", str(path)], check=True, capture_output=True, text=True
    ).stdout.split()[0]


def test_hashes_are_those_of_sha256sum(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("grün", encoding="utf-8")
    assert sha256_of_file(path) == sha256_of_text("grün") == sha256sum(path)
    path.write_text(json.dumps({"a": [1, None], "b": "ü"}))
    assert sha256_of_json({"b": "ü", "a": (1, None)}) == sha256sum(path)


def test_what_json_cannot_express_needs_a_default(tmp_path: Path) -> None:
    assert sha256_of_json([tmp_path], default=str) == sha256_of_json([str(tmp_path)])
