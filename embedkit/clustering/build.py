"""Make a table of contextual batches: embed, reduce and divide sources (paper, section 5.2.2)."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit import distributed, rng
from embedkit.clustering import cells, reduction
from embedkit.clustering.backends import Backend, open_backend
from embedkit.clustering.quality import compare
from embedkit.clustering.report import markdown, plot
from embedkit.clustering.settings import ClusteringSettings
from embedkit.config import differences
from embedkit.data.batch_table import HEADER, BatchTable, SourceFacts, read_order, source_folder
from embedkit.data.pairs.records import Records
from embedkit.data.vector_store import VectorStore, store_vectors
from embedkit.distributed.progress import say
from embedkit.errors import UserError
from embedkit.models.embedder import Embedder
from embedkit.storage.atomic import aside_of, write_json, write_text, written_aside
from embedkit.storage.folders import writing_to
from embedkit.storage.hashing import sha256_of_json

_BEGUN = "begun.json"


def make(
    records: Sequence[Records],
    batch_sizes: Sequence[int],
    surrogate: Embedder,
    output: Path,
    settings: ClusteringSettings,
) -> BatchTable:
    """Write the batches of every source under ``output``; what is there already stays.

    Every rank calls this: all embed every source together, then each divides some of the sources.

    Raises:
        UserError: ``output`` is something else, or was begun with other data or settings.
    """
    backend = open_backend(settings.backend, distributed.local_device())
    facts = [
        SourceFacts(source.name, source.table.facts.content, len(source), size)
        for source, size in zip(records, batch_sizes, strict=True)
    ]
    # A shallow copy with another limit, which is part of its identity; a caller's model keeps its.
    surrogate = copy(surrogate)
    surrogate.max_tokens = min(surrogate.max_tokens, settings.max_tokens)
    header = {
        "settings": settings.recorded(),
        "surrogate": {"name": surrogate.name, "identity": surrogate.identity},
        "sources": [asdict(source) for source in facts],
    }
    distributed.on_main(partial(_begin, output, header))
    encode = partial(surrogate.encode, prompt="", normalize_embeddings=True)
    for number, source in enumerate(records):
        folder = source_folder(output, number) / "vectors"
        store_vectors(source, encode, folder, width=surrogate.width)
    for number in range(distributed.rank(), len(facts), distributed.world_size()):
        say(f"cut {facts[number].name}")
        _divide(source_folder(output, number), facts[number], backend, settings)
    distributed.barrier()
    distributed.on_main(partial(_write_header, output, header))
    return BatchTable.open(output)


def report(table: BatchTable, output: Path, settings: ClusteringSettings) -> None:
    """Write ``report.md`` and a picture of it, unless those of this table are there."""
    page = output / "report.md"
    if page.is_file() and table.hash in page.read_text(encoding="utf-8"):
        return
    device = distributed.local_device()
    comparisons = []
    for name, batches in table.sources.items():
        say(f"measure {name}")
        comparisons.append(compare(batches, device, seed=settings.seed))
    if remark := plot(comparisons, output / "report"):
        say(remark)
    # The page comes last, since a second run takes it as a sign that all is there.
    write_text(page, markdown(table, comparisons))


def _begin(output: Path, header: Mapping[str, Any]) -> None:
    """Claim the folder, or verify that it was claimed for the same batches."""
    surrogate, facts = header["surrogate"], header["sources"]
    now: dict[str, Any] = {
        "settings": header["settings"],
        "surrogate": {**surrogate, "identity": surrogate["identity"][:12]},
        "sources": {fact["name"]: {**fact, "content": fact["content"][:12]} for fact in facts},
        "order": [fact["name"] for fact in facts],
    }
    begun = output / _BEGUN
    if begun.is_file():
        if changes := differences(json.loads(begun.read_text(encoding="utf-8")), now):
            raise UserError(
                f"{output}: was begun with something else: {'; '.join(changes)}; undo the change, "
                "or choose another --output"
            )
        return
    # A process that was killed as it began may have left this file.
    left = {aside_of(begun).name}
    if output.exists() and (not output.is_dir() or {path.name for path in output.iterdir()} - left):
        raise UserError(f"{output}: is not empty and holds no batches; choose another --output")
    with writing_to(output):
        output.mkdir(parents=True, exist_ok=True)
    write_json(begun, now)


def _divide(
    folder: Path, facts: SourceFacts, backend: Backend, settings: ClusteringSettings
) -> None:
    """Write the batches of a source, unless they are there."""
    if (folder / "rows.i64").is_file():
        return
    if facts.rows <= facts.batch_size:
        write_order(folder, np.arange(facts.rows))
        return
    store = VectorStore(folder / "vectors")
    seed = rng.fold_in(settings.seed, "clusters", facts.content)
    axes = reduction.principal_axes(store, settings.dims, seed=seed)
    points = cells.allocate((len(store), axes.shape[1]), folder)
    reduction.write_points(store, axes, points)
    write_order(folder, cells.divide(points, facts.batch_size, backend, seed=seed, scratch=folder))


def write_order(folder: Path, order: NDArray[np.int64]) -> None:
    """Write all rows of a source, batch after batch."""
    assert (np.bincount(order, minlength=len(order)) == 1).all(), "a row is not there once"
    with written_aside(folder / "rows.i64") as aside:
        order.astype("<i8").tofile(aside)


def _write_header(output: Path, header: Mapping[str, Any]) -> None:
    """Write the header, which makes the table whole; the batches of all sources must be there."""
    digest = hashlib.sha256()
    for number, source in enumerate(header["sources"]):
        digest.update(read_order(source_folder(output, number), source["rows"]).data)
    header = {**header, "batches": digest.hexdigest()}
    write_json(output / HEADER, {**header, "hash": sha256_of_json(header)})
