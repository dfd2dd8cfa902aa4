"""What mining leaves: pairs with their negatives, a manifest, and where they are from."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from numpy.typing import NDArray

from embedkit.data.pairs.records import Records
from embedkit.mining.audit import Audit
from embedkit.mining.corpus import Corpus, Ids, Side
from embedkit.mining.search import Scores
from embedkit.mining.selection import Selected, select
from embedkit.mining.settings import MiningSettings
from embedkit.storage import cache

_ROWS = 8192
"""Written at a time."""
_KEPT = {
    "task",
    "license",
    "prompts",
    "in_batch_negatives",
    "batch_size",
    "max_query_tokens",
    "max_document_tokens",
}
"""What the new manifest has from the description of the source."""


def write_pairs(
    path: Path,
    records: Records,
    corpus: Corpus,
    vectors: Mapping[str, NDArray[Any]],
    candidates: NDArray[Any],
    settings: MiningSettings,
) -> Audit:
    """Write every row of the source with its negatives as parquet, in the order of the source.

    Args:
        path: the file.
        records: the source.
        corpus: its distinct texts.
        vectors: of ``queries`` and ``documents``.
        candidates: of each query, ``(Q, depth)``.
        settings: how negatives are chosen among them.
    """
    audit = Audit(asked=settings.negatives)
    schema = _schema(records)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in _blocks(len(records)):
            queries, positives = corpus.query_of[rows], corpus.document_of[rows]
            scores = _products(vectors["queries"][queries], vectors["documents"][positives])
            selected = select(candidates[queries], scores, rows, settings)
            audit.add(selected)
            lines = _lines(records, corpus.documents, rows, selected)
            writer.write_table(pa.Table.from_pylist(list(lines), schema=schema))
    return audit


def write_manifest(
    path: Path, records: Records, pairs: Path, at: Path, settings: MiningSettings, remark: str
) -> None:
    """Describe the pairs, which are to lie ``at``; training draws all negatives of a row."""
    kept = records.description.model_dump(mode="json", include=_KEPT, exclude_none=True)
    tables = {
        **kept,
        "rows": len(records),
        "negatives_per_query": settings.negatives,
        "ignore": ["positive_score", "negative_scores"],
        "source": {
            "kind": "files",
            "files": [{"path": _portable(at), "sha256": cache.file_sha256(pairs)}],
        },
    }
    if records.has_scores:
        tables["columns"] = {"score": "score"}
    # Tables last, as TOML wants it.
    ordered = dict(sorted(tables.items(), key=lambda item: isinstance(item[1], dict)))
    path.write_text(f"# {remark}\n{tomli_w.dumps(ordered)}", encoding="utf-8")


def _schema(records: Records) -> pa.Schema:
    """The scores of mining are for whoever looks at the pairs; training does not read them."""
    label = [("label", pa.string())] if records.has_labels else []
    score = [("score", pa.float64())] if records.has_scores else []
    return pa.schema(
        [
            ("query", pa.string()),
            ("positive", pa.string()),
            ("negatives", pa.list_(pa.string())),
            *label,
            *score,
            ("positive_score", pa.float32()),
            ("negative_scores", pa.list_(pa.float32())),
        ]
    )


def _lines(
    records: Records, documents: Side, rows: Ids, selected: Selected
) -> Iterator[dict[str, Any]]:
    used = np.unique(selected.documents[selected.documents >= 0])
    texts = dict(zip(used.tolist(), documents.texts(used), strict=True))
    found = zip(
        records.take(rows),
        selected.documents.tolist(),
        selected.scores.tolist(),
        selected.positive_scores.tolist(),
        strict=True,
    )
    for record, negatives, scores, positive_score in found:
        count = sum(number >= 0 for number in negatives)
        # Of label and score, what the schema has not is left out.
        yield {
            "query": record.query,
            "positive": record.positive,
            "negatives": [texts[number] for number in negatives[:count]],
            "label": record.label,
            "score": record.score,
            "positive_score": positive_score,
            "negative_scores": scores[:count],
        }


def _products(queries: NDArray[Any], documents: NDArray[Any]) -> Scores:
    wide = queries.astype(np.float32) * documents.astype(np.float32)
    return np.asarray(wide.sum(axis=1))


def _blocks(count: int) -> Iterator[Ids]:
    for start in range(0, count, _ROWS):
        yield np.arange(start, min(start + _ROWS, count))


def _portable(path: Path) -> str:
    """Written with ``$EMBEDKIT_DATA`` where it lies below, so that both may move together."""
    data = os.environ.get("EMBEDKIT_DATA")
    if data and path.is_relative_to(Path(data).resolve()):
        return f"$EMBEDKIT_DATA/{path.relative_to(Path(data).resolve())}"
    return str(path)
