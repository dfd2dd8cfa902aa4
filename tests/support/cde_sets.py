"""Small stand-ins for the sets of contextual training: the published columns, other rows."""

from pathlib import Path

from support.hub_sets import SUBJECTS, Files, Row, write_files
from support.shards import write_shards

from embedkit.data.manifests.manifest import load_manifest
from embedkit.data.manifests.sources import HubSource
from embedkit.data.sources.readers.shards import Shards
from embedkit.recipe import load_recipe

NOMIC_ID = "nomic-ai/nomic-embed-unsupervised-data"
BGE_ID = "cfli/bge-full-data"
NOMIC = [mix.manifest for mix in load_recipe("cde-stage1").data.mix]
BGE = [mix.manifest for mix in load_recipe("cde-stage2").data.mix]


def source_of(name: str) -> HubSource:
    source = load_manifest(name).source
    assert isinstance(source, HubSource)
    return source


def shards_of(name: str) -> Shards:
    shards = source_of(name).shards
    assert shards
    return shards


def nomic_rows(split: str) -> list[Row]:
    return [
        {"query": f"{split} of {each}", "document": f"{each}.", "dataset": split, "shard": 0}
        for each in SUBJECTS
    ]


def bge_rows(split: str) -> list[Row]:
    return [
        {
            "query": f"{split} of {each}",
            "pos": [f"{each}.", f"More of {each}."],
            "neg": [f"Not {each}.", f"Nor {each}."],
            "category": "retrieval",
            "type": "normal",
            "prompt": "Find the rest.",
            "pos_scores": [0.9, 0.8],
            "neg_scores": [0.2, 0.1],
        }
        for each in SUBJECTS
    ]


def write_hub(root: Path, id_: str, renamed: str | None = None) -> None:
    """Lay out one of the two data sets under ``root`` as on the hub: a split for each set."""
    names, rows = (NOMIC, nomic_rows) if id_ == NOMIC_ID else (BGE, bge_rows)
    splits = [source_of(name).split for name in names]
    files: Files = {f"data/{each}-00000-of-00001.parquet": rows(each) for each in splits}
    write_files(
        root / id_, files, {"default": {each: f"data/{each}-*" for each in splits}}, renamed
    )


def write_bucket(root: Path, name: str, renamed: str | None = None) -> Path:
    """Lay out the shards of a manifest under ``root`` as in the bucket, two of them with rows."""
    shards = shards_of(name)
    there = {ours: column for column, ours in shards.rename.items()}
    columns = [there.get(each, each) for each in ("query", "document")]
    called = [f"{each} renamed" if each == renamed else each for each in columns]
    rows = [
        dict(zip(called, (row["query"], row["document"]), strict=True))
        for row in nomic_rows(source_of(name).split)
    ]
    files = {"shard-00000.jsonl.gz": rows[:7], "shard-00001.jsonl.gz": rows[7:]}
    if "{" not in shards.files:
        files = {"shard-00000.jsonl.gz": rows}
    return write_shards(root, shards.folder, files, *called)
