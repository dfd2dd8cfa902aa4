"""The folder of a mined source: claimed for one plan, and filled with pairs and a manifest."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from embedkit.config import differences
from embedkit.data.pairs.records import Records
from embedkit.errors import UserError
from embedkit.mining.audit import Audit
from embedkit.mining.candidates import select
from embedkit.mining.corpus import Corpus
from embedkit.mining.settings import MiningSettings
from embedkit.storage import cache
from embedkit.storage.atomic import write_json
from embedkit.storage.folders import check_replaceable, recover, writing_to

RECORD = "mining.json"
"""File of the result with the plan (source, model and settings), versions and the audit."""
_PLAN = "plan.json"
_LOCK = ".lock"
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


class OutputFolder:
    """The folder ``output``, and a hidden folder beside it for unfinished work."""

    def __init__(self, output: Path) -> None:
        # Resolved, since the manifest names the pairs by their full path.
        self.output = output.expanduser().resolve()
        self._work = self.output.with_name(f".{self.output.name}.mining")
        self._parts = self._work / "parts"

    def finished(self, plan: Mapping[str, Any], *, overwrite: bool) -> dict[str, Any] | None:
        """Return the record of a finished result of the same plan, or ``None``.

        Raises:
            UserError: the folder holds something else, the work of another plan was begun, or
                overwriting would lose a user's own files.
        """
        if self.output.exists() and not self.output.is_dir():
            raise UserError(f"{self.output}: is a file; choose another --output")
        record, begun = _read(self.output / RECORD), _read(self._work / _PLAN)
        if record is None and self.output.is_dir() and any(self.output.iterdir()):
            raise UserError(f"{self.output}: holds no mined pairs; choose another --output")
        if overwrite:
            check_replaceable(self.output, "mined pairs")
            return None
        for then in (record and record["plan"], begun):
            if then and (changes := _changes(then, plan)):
                raise UserError(
                    f"{self.output}: was begun otherwise ({'; '.join(changes)}): repeat it as it "
                    "was, choose another --output, or start anew with --overwrite"
                )
        if record:
            # The process that wrote the result may have been killed before it cleared up.
            recover(self.output)
            if self._work.is_dir():
                with suppress(Timeout), FileLock(self._work / _LOCK, timeout=0):
                    self._remove()
        return record

    @contextmanager
    def claimed(self, plan: Mapping[str, Any]) -> Iterator[Path]:
        """Lend a folder for unfinished work, with what earlier processes did by the same plan.

        It is deleted once the block succeeds, which has to write the result.

        Raises:
            UserError: another process works in it.
        """
        with writing_to(self.output):
            self._work.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self._work / _LOCK, timeout=0):
                begun = _read(self._work / _PLAN)
                if begun is None or _changes(begun, plan):
                    self._clear()
                self._parts.mkdir(exist_ok=True)
                write_json(self._work / _PLAN, plan)
                yield self._parts
                self._remove()
        except Timeout:
            raise UserError(f"{self.output}: another process is mining into it") from None

    def _remove(self) -> None:
        self._clear()
        shutil.rmtree(self._work)

    def _clear(self) -> None:
        # The plan goes first: whatever a killed process leaves then belongs to no plan.
        (self._work / _PLAN).unlink(missing_ok=True)
        if self._parts.is_dir():
            shutil.rmtree(self._parts)


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs, unless it is names alone: a model may have several."""
    lines = differences(then, now)
    return lines if any(".name: " not in line for line in lines) else []


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


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
            positives = products.sum(axis=1)
            found, scores = select(candidates[queries], positives, rows, settings, audit)
            used = np.unique(found[found >= 0])
            texts = dict(zip(used.tolist(), corpus.documents.texts(used), strict=True))
            mined = (column.tolist() for column in (found, scores, positives))
            lines = [
                # Arrow leaves out the label and score where the schema has none.
                {
                    "query": record.query,
                    "positive": record.positive,
                    "negatives": [texts[number] for number in negatives if number >= 0],
                    "label": record.label,
                    "score": record.score,
                    "positive_score": positive_score,
                    "negative_scores": [score for score in negative_scores if score > -np.inf],
                }
                for record, negatives, negative_scores, positive_score in zip(
                    records.take(rows), *mined, strict=True
                )
            ]
            writer.write_table(pa.Table.from_pylist(lines, schema=schema))
    return audit


def write_manifest(
    records: Records, pairs: Path, final: Path, settings: MiningSettings, remark: str
) -> None:
    """Write the manifest of ``pairs``, beside this file, which will be renamed to ``final``."""
    description = records.description.model_dump(mode="json", include=_KEPT, exclude_none=True)
    location, data = str(final), os.environ.get("EMBEDKIT_DATA")
    # Pairs below $EMBEDKIT_DATA are named relative to it, so that the folder may be moved.
    if data and final.is_relative_to(Path(data).resolve()):
        location = f"$EMBEDKIT_DATA/{final.relative_to(Path(data).resolve())}"
    file = {"path": location, "sha256": cache.file_sha256(pairs)}
    tables = {
        **description,
        "rows": len(records),
        "negatives_per_query": settings.negatives,
        "ignore": ["positive_score", "negative_scores"],
        "source": {"kind": "files", "files": [file]},
    }
    if records.has_scores:
        tables["columns"] = {"score": "score"}
    pairs.with_suffix(".toml").write_text(f"# {remark}\n{tomli_w.dumps(tables)}", encoding="utf-8")
