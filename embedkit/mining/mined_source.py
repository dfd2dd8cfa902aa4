"""Write a mined source: a parquet file of pairs with their negatives, and its manifest."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from numpy.typing import NDArray

from embedkit.data.pairs.records import Records
from embedkit.mining.audit import Audit
from embedkit.mining.corpus import Corpus
from embedkit.mining.selection import select
from embedkit.mining.settings import MiningSettings
from embedkit.storage import cache

_ROWS = 8192
"""Number of rows that are written at a time."""
_KEPT = {
    "task",
    "license",
    "prompts",
    "in_batch_negatives",
    "batch_size",
    "max_query_tokens",
    "max_document_tokens",
}
"""Keys that the new manifest takes from the description of the source."""


def write_pairs(
    path: Path,
    records: Records,
    corpus: Corpus,
    query_vectors: NDArray[Any],
    document_vectors: NDArray[Any],
    candidates: NDArray[Any],
    settings: MiningSettings,
) -> Audit:
    """Write every row of the source with its negatives as parquet, in the order of the source.

    The scores are for readers of the file; training ignores them.

    Shapes: query_vectors ``(Q, D)``, document_vectors ``(N, D)``; candidates of each query
    ``(Q, depth)``, best first.
    """
    audit = Audit(asked=settings.negatives)
    schema = pa.schema(
        [
            ("query", pa.string()),
            ("positive", pa.string()),
            ("negatives", pa.list_(pa.string())),
            *([("label", pa.string())] if records.has_labels else []),
            *([("score", pa.float64())] if records.has_scores else []),
            ("positive_score", pa.float32()),
            ("negative_scores", pa.list_(pa.float32())),
        ]
    )
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, len(records), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(records)))
            queries = corpus.query_of[rows]
            products = query_vectors[queries].astype(np.float32)
            products *= document_vectors[corpus.document_of[rows]].astype(np.float32)
            selected = select(candidates[queries], products.sum(axis=1), rows, settings)
            audit.add(selected)
            used = np.unique(selected.documents[selected.documents >= 0])
            texts = dict(zip(used.tolist(), corpus.documents.texts(used), strict=True))
            columns = (selected.documents, selected.scores, selected.positive_scores)
            lines = [
                # Arrow leaves out the label and score where the schema has none.
                {
                    "query": record.query,
                    "positive": record.positive,
                    "negatives": [texts[number] for number in numbers if number >= 0],
                    "label": record.label,
                    "score": record.score,
                    "positive_score": positive_score,
                    "negative_scores": scores[: sum(number >= 0 for number in numbers)],
                }
                for record, numbers, scores, positive_score in zip(
                    records.take(rows), *(column.tolist() for column in columns), strict=True
                )
            ]
            writer.write_table(pa.Table.from_pylist(lines, schema=schema))
    return audit


def write_manifest(
    path: Path, records: Records, pairs: Path, final: Path, settings: MiningSettings, remark: str
) -> None:
    """Write the manifest of ``pairs``, a file that will be renamed to ``final``."""
    description = records.description.model_dump(mode="json", include=_KEPT, exclude_none=True)
    location, data = str(final), os.environ.get("EMBEDKIT_DATA")
    # Pairs below $EMBEDKIT_DATA are named relative to it, so that the folder may be moved.
    if data and final.is_relative_to(Path(data).resolve()):
        location = f"$EMBEDKIT_DATA/{final.relative_to(Path(data).resolve())}"
    tables = {
        **description,
        "rows": len(records),
        "negatives_per_query": settings.negatives,
        "ignore": ["positive_score", "negative_scores"],
        "source": {
            "kind": "files",
            "files": [{"path": location, "sha256": cache.file_sha256(pairs)}],
        },
    }
    if records.has_scores:
        tables["columns"] = {"score": "score"}
    # TOML requires that tables come last.
    ordered = dict(sorted(tables.items(), key=lambda item: isinstance(item[1], dict)))
    path.write_text(f"# {remark}\n{tomli_w.dumps(ordered)}", encoding="utf-8")
