"""What the rows of a manifest are called in the cache: a hash of all that they are made from."""

from functools import lru_cache
from pathlib import Path

from embedkit.data import concepts
from embedkit.data.manifests import columns, readers, roles
from embedkit.data.manifests.manifest import Manifest
from embedkit.data.pairs import from_rows, layout, same_label, table
from embedkit.data.sources import distinct, files, hub, joins, open_source
from embedkit.data.sources.open_source import OpenedSource
from embedkit.data.sources.readers import docstring, icd, obo, shards
from embedkit.storage.hashing import sha256_of_json

# Rows depend on the code of these, so their place in the cache does too.
_MAKERS = (
    columns,
    concepts,
    distinct,
    files,
    hub,
    joins,
    layout,
    from_rows,
    roles,
    same_label,
    open_source,
    readers,
    table,
    obo,
    icd,
    docstring,
    shards,
)


def rows_key(manifest: Manifest, opened: OpenedSource) -> str:
    """The name of the folder that the rows of ``manifest`` are kept in."""
    making = manifest.model_dump(
        include={"columns", "ignore", "filter", "drop_empty", "deduplicate", "same_label"}
    )
    if manifest.columns.score is None:
        # Sources without scores are called as they were before there were any.
        del making["columns"]["score"]
    share = manifest.held_out.share if manifest.held_out else None
    reader = manifest.source.model_dump(mode="json").get("reader")
    parts = {"making": making, "share": share, "reader": reader, "source": opened.identity}
    # By its name, since it imports this module.
    records = str(Path(__file__).with_name("records.py"))
    code = code_of(records, *(module.__file__ for module in _MAKERS))
    return sha256_of_json({**parts, "code": code})[:32]


@lru_cache
def code_of(*files: str | None) -> str:
    """A hash of the code of modules, given as ``__file__``."""
    return sha256_of_json([Path(file or "").read_text(encoding="utf-8") for file in files])
