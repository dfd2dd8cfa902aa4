"""Versions of installed distributions, as records of results name them."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

STACK = ("embedkit-neobert", "torch", "transformers", "sentence-transformers", "mteb")
"""embedkit, and the libraries on which the numbers of a run depend."""


def versions_of(distributions: Iterable[str]) -> dict[str, str]:
    """Return the version of each distribution, or "not installed".

    embedkit itself need not be installed where a checkout is on the path.
    """
    return {name: _version(name) for name in distributions}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
