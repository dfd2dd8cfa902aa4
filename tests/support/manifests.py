"""The manifests that come with embedkit, by what they describe."""

from typing import Any

from embedkit.config import names_in, read_toml, shipped
from embedkit.data.manifests.manifest import FOLDER, is_text


def shipped_tables() -> list[tuple[str, dict[str, Any]]]:
    """Return name and tables of every manifest that comes with embedkit, by name."""
    return [(name, read_toml(shipped(FOLDER) / f"{name}.toml")) for name in names_in(FOLDER)]


def shipped_manifests() -> list[str]:
    """Return the names of all manifests of pairs that come with embedkit."""
    return [name for name, tables in shipped_tables() if not is_text(tables)]


def shipped_text_manifests() -> list[str]:
    """Return the names of all manifests of text that come with embedkit."""
    return [name for name, tables in shipped_tables() if is_text(tables)]
