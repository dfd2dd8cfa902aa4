"""Prompts: instructions as prefixes, and the NeoBERT paper's instructions for MTEB(eng, v1)."""

from embedkit.config import read_toml, shipped

SIDES = ("query", "document")
SEARCH = {"query": "search_query: ", "document": "search_document: "}
"""Prefixes of queries and documents in retrieval, for models trained with task prefixes (Morris and
Rush, 2024)."""


def as_prefix(instruction: str) -> str:
    """Return the prefix of a text: the instruction without its full stop, a colon and a space."""
    if not instruction:
        return ""
    return f"{instruction.strip().removesuffix('.')}: "


def benchmark_prompts() -> dict[str, str]:
    """Return the prefix of each task of MTEB(eng, v1) by mteb's task name, as a model stores them.

    The twelve subforums of CQADupstackRetrieval have a prefix each; the aggregate task, which
    encodes no text itself, has none.
    """
    instructions = read_toml(shipped("data_manifests") / "instructions.toml")
    return {task: as_prefix(text) for text, tasks in instructions.items() for task in tasks}
