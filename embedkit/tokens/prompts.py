"""Instructions as prefixes, and the NeoBERT paper's instruction for each task of MTEB(eng, v1)."""

from embedkit.config import read_toml, shipped

SIDES = ("query", "document")
SEARCH = {"query": "search_query: ", "document": "search_document: "}
"""What a model that tells uses of text apart reads in a search (Morris and Rush, 2024)."""


def as_prefix(instruction: str) -> str:
    """What stands before a text: the instruction without its full stop, a colon and a space."""
    if not instruction:
        return ""
    return f"{instruction.strip().removesuffix('.')}: "


def benchmark_prompts() -> dict[str, str]:
    """Return the prefix of each task of MTEB(eng, v1) by mteb's name, as a model stores them.

    The twelve parts of CQADupstackRetrieval have one each, and the whole, which is not read, none.
    """
    instructions = read_toml(shipped("data_manifests") / "instructions.toml")
    return {task: as_prefix(text) for text, tasks in instructions.items() for task in tasks}
