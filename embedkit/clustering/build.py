"""From sources to a table of contextual batches: embed, reduce, cut (paper, section 5.2.2)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from embedkit import distributed, rng
from embedkit.clustering import cells, reduction
from embedkit.clustering.backends import Backend, open_backend
from embedkit.clustering.comparison import compare
from embedkit.clustering.embedding import embed
from embedkit.clustering.report import markdown, plot
from embedkit.clustering.settings import ClusteringSettings
from embedkit.clustering.table_writer import write_header, write_order
from embedkit.config import differences
from embedkit.data.batch_table import BatchTable, SourceFacts, source_folder
from embedkit.data.pairs.records import Records
from embedkit.data.vector_store import VectorStore
from embedkit.errors import UserError
from embedkit.models.embedder import Embedder
from embedkit.storage.atomic import aside_of, write_json, write_text

_BEGUN = "begun.json"


def make(
    records: Sequence[Records],
    batch_sizes: Sequence[int],
    surrogate: Embedder,
    output: Path,
    settings: ClusteringSettings,
    console: Console,
) -> BatchTable:
    """Write the batches of every source under ``output``; what is there already stays.

    Called on every rank: all embed every source together, then each cuts some of the sources.

    Raises:
        UserError: ``output`` is something else, or was begun with other data or settings.
    """
    backend = open_backend(settings.backend, distributed.local_device())
    facts = [
        SourceFacts(each.name, each.table.facts.content, len(each), size)
        for each, size in zip(records, batch_sizes, strict=True)
    ]
    with _reading(surrogate, settings.max_tokens):
        model = {"name": surrogate.name, "identity": surrogate.identity}
        distributed.on_main(partial(_begin, output, facts, settings, model))
        for number, each in enumerate(records):
            embed(each, surrogate, source_folder(output, number) / "vectors", console)
    for number in range(distributed.rank(), len(facts), distributed.world_size()):
        console.print(f"cut {facts[number].name}", highlight=False, markup=False)
        _cut(source_folder(output, number), facts[number], backend, settings)
    distributed.barrier()
    distributed.on_main(partial(write_header, output, facts, settings.recorded(), model))
    return BatchTable.open(output)


def report(table: BatchTable, output: Path, settings: ClusteringSettings, console: Console) -> None:
    """Write ``report.md`` and a picture of it, unless those of this table are there."""
    page = output / "report.md"
    if page.is_file() and table.hash in page.read_text(encoding="utf-8"):
        return
    device = distributed.local_device()
    comparisons = []
    for name, batches in table.sources.items():
        console.print(f"measure {name}", highlight=False, markup=False)
        comparisons.append(compare(batches, device, seed=settings.seed))
    if remark := plot(comparisons, output / "report"):
        console.print(remark, highlight=False, markup=False, soft_wrap=True)
    # Last, since it is what a second run goes by.
    write_text(page, markdown(table, comparisons))


@contextmanager
def _reading(surrogate: Embedder, max_tokens: int) -> Iterator[None]:
    """Have a model, which may be a caller's own, cut texts there for a while."""
    own = surrogate.max_tokens
    surrogate.max_tokens = min(own, max_tokens)
    try:
        yield
    finally:
        surrogate.max_tokens = own


def _begin(
    output: Path,
    facts: Sequence[SourceFacts],
    settings: ClusteringSettings,
    model: Mapping[str, str],
) -> None:
    """Claim the folder, or see that it was claimed for the same batches."""
    now: dict[str, Any] = {
        "settings": settings.recorded(),
        "surrogate": {**model, "identity": model["identity"][:12]},
        "sources": {each.name: {**asdict(each), "content": each.content[:12]} for each in facts},
        "order": [each.name for each in facts],
    }
    begun = output / _BEGUN
    if begun.is_file():
        if changes := differences(json.loads(begun.read_text(encoding="utf-8")), now):
            raise UserError(
                f"{output}: was begun with something else: {'; '.join(changes)}; undo the change, "
                "or choose another --output"
            )
        return
    # A process that was killed as it began has left this much.
    mine = {aside_of(begun).name}
    if output.exists() and (not output.is_dir() or {each.name for each in output.iterdir()} - mine):
        raise UserError(f"{output}: is not empty and holds no batches; choose another --output")
    output.mkdir(parents=True, exist_ok=True)
    write_json(begun, now)


def _cut(folder: Path, facts: SourceFacts, backend: Backend, settings: ClusteringSettings) -> None:
    if (folder / "rows.i64").is_file():
        return
    if facts.rows <= facts.batch_size:
        write_order(folder, np.arange(facts.rows))
        return
    store = VectorStore(folder / "vectors")
    seed = rng.fold_in(settings.seed, "clusters", facts.content)
    axes = reduction.principal_axes(store, settings.dims, seed=seed)
    points = cells.space((len(store), axes.shape[1]), folder)
    reduction.write_points(store, axes, points)
    write_order(folder, cells.cut(points, facts.batch_size, backend, seed=seed, scratch=folder))
