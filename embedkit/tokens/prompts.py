"""Instructions as prefixes, and the registry of instructions for mteb's tasks."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from embedkit.config import read_toml, shipped
from embedkit.errors import UserError

SIDES = ("query", "document")
SEARCH = {"query": "search_query: ", "document": "search_document: "}
"""What a model that tells uses of text apart reads in a search (Morris and Rush, 2024)."""


def as_prefix(instruction: str) -> str:
    """What stands before a text: the instruction without its full stop, a colon and a space."""
    if not instruction:
        return ""
    return f"{instruction.strip().removesuffix('.')}: "


def instruction_prompts(names: Iterable[str], registry: Path | None = None) -> dict[str, str]:
    """The prefixes of those of mteb's tasks that the registry has an instruction for.

    The keys are sentence-transformers' convention for prompts: the task's name where both sides
    share an instruction, else ``<task>-query`` and ``<task>-document``.

    Raises:
        UserError: the registry holds something else than instructions.
    """
    path = registry or shipped("data_manifests") / "instructions.toml"
    entries = read_toml(path)
    for key, entry in entries.items():
        _check(path, key, entry)
    prompts: dict[str, str] = {}
    for name in names:
        pattern = _best_pattern(name, entries)
        if pattern is None:
            continue
        entry = entries[pattern]
        sides = {"": entry} if isinstance(entry, str) else {f"-{s}": t for s, t in entry.items()}
        for side, instruction in sides.items():
            filled = instruction.replace("<dataset>", _dataset(name, pattern))
            prompts[name + side] = as_prefix(filled)
    return prompts


def benchmark_prompts() -> dict[str, str]:
    """The prefixes of all tasks of MTEB(eng, v1), as a model stores them for mteb to give."""
    tasks = read_toml(shipped("data_manifests") / "mteb_eng_v1.toml")["tasks"]
    return instruction_prompts(tasks)


def _check(path: Path, key: str, entry: object) -> None:
    if isinstance(entry, str):
        return
    if not isinstance(entry, Mapping) or sorted(entry) != sorted(SIDES):
        raise UserError(f"{path}: {key}: write one string, or a table of query and document")
    if not all(isinstance(instruction, str) for instruction in entry.values()):
        raise UserError(f"{path}: {key}: query and document must be strings")


def _best_pattern(name: str, patterns: Iterable[str]) -> str | None:
    """The name itself, else the longest pattern that matches it."""
    fitting = [key for key in patterns if key == name or fnmatchcase(name, key)]
    return max(fitting, key=lambda key: (key == name, len(key)), default=None)


def _dataset(name: str, pattern: str) -> str:
    """What the star of a pattern stands for: ``Arxiv`` in ``ArxivClusteringP2P``."""
    before, _, after = pattern.partition("*")
    return name.removeprefix(before).removesuffix(after)
