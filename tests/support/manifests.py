"""The names of the manifests that come with embedkit, by what they describe."""

from embedkit.data.manifests.manifest import is_text, shipped_tables


def shipped_manifests() -> list[str]:
    """Return the names of all manifests of pairs that come with embedkit."""
    return [name for name, tables in shipped_tables() if not is_text(tables)]


def shipped_text_manifests() -> list[str]:
    """Return the names of all manifests of text that come with embedkit."""
    return [name for name, tables in shipped_tables() if is_text(tables)]
