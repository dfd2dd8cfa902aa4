"""``mine``: hard negatives for a source of pairs, written as a new source with an audit."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

from embedkit.config import from_arguments
from embedkit.data.exact_search import ExactSearch
from embedkit.data.faiss_library import load_faiss
from embedkit.data.pairs.records import Records, open_records
from embedkit.errors import DataError
from embedkit.mining.audit import Audit, inspect
from embedkit.mining.candidates import find_candidates, recall
from embedkit.mining.corpus import Exclusions, open_corpus
from embedkit.mining.mined_source import RECORD, OutputFolder, write_manifest, write_pairs
from embedkit.mining.search import IvfSearch, faiss_best, torch_best
from embedkit.mining.settings import MiningOptions, MiningSettings
from embedkit.mining.stored_vectors import stored_vectors
from embedkit.models.embedder import Embedder
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.load import one_stage
from embedkit.storage.atomic import write_json
from embedkit.storage.folders import whole_folder
from embedkit.storage.versions import versions_of

_PACKAGES = ("embedkit-neobert", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Mined:
    """Result of mining."""

    manifest: Path
    """Path of the manifest of the pairs with their negatives."""
    audit: Audit


def mine(
    source: str | Path | Records,
    model: str | Path | EmbeddingModel,
    output: str | Path,
    *,
    overwrite: bool = False,
    **options: Unpack[MiningOptions],
) -> Mined:
    """Find hard negatives for every pair of a source, and write them as a source of its own.

    A killed process leaves its work to the next one with the same arguments, which ends with the
    same bytes. A finished result is only read.

    Args:
        source: a manifest's name under ``data_manifests/`` or its path, or records. Of one that
            holds concepts out, only the training rows are read.
        model: a hub id, a folder, ``package:<distribution>/<path>``, an alias, or a loaded model.
        output: the folder to write; the manifest in it is called as the folder is.
        overwrite: start anew, and replace what was mined into ``output``.
        options: the fields of ``embedkit.MiningSettings``, with the defaults they have there.

    Returns:
        The manifest's path, which a recipe's mixture takes, and the audit.

    Raises:
        UserError: source, model or a setting are not as they should be, ``output`` is taken or was
            begun with others, or faiss is asked for and not installed.
    """
    settings = from_arguments(MiningSettings, options)
    if settings.search != "torch":
        load_faiss("search")
    records = source if isinstance(source, Records) else open_records(source)
    if not len(records):
        raise DataError(f"{records.name}: has no rows to mine negatives for")
    embedder = one_stage(model, dtype=settings.dtype, purpose="mine")
    plan = {
        "source": {"name": records.name, "fingerprint": records.fingerprint},
        "model": {"name": embedder.name, "identity": embedder.identity},
        "settings": settings.recorded(),
    }
    folder = OutputFolder(Path(output))
    manifest = folder.output / f"{folder.output.name}.toml"
    if record := folder.finished(plan, overwrite=overwrite):
        return Mined(manifest, Audit(**record["audit"]))
    with folder.claimed(plan) as work:
        audit = _mine(records, embedder, plan, settings, work, folder.output)
    return Mined(manifest, audit)


def _mine(
    records: Records,
    embedder: Embedder,
    plan: Mapping[str, Any],
    settings: MiningSettings,
    work: Path,
    output: Path,
) -> Audit:
    """Write the folder ``output``; ``work`` may hold what an earlier process has done for it."""
    device, corpus = embedder.device, open_corpus(records)
    if embedder.trained_prompts is not None:
        embedder.trained_prompts.warn(embedder.name, records.prompts)
    queries, documents = (
        stored_vectors(
            side,
            embedder,
            identity=plan["model"]["identity"],
            prompt=getattr(records.prompts, role),
            max_tokens=getattr(records.description, f"max_{role}_tokens"),
            store=settings.store,
        )
        for role, side in (("query", corpus.queries), ("document", corpus.documents))
    )
    flat = faiss_best(device) if settings.search == "faiss-flat" else torch_best
    exact = ExactSearch(documents, device, flat)
    search: ExactSearch | IvfSearch = exact
    if settings.search == "faiss-ivf":
        search = IvfSearch(documents, work / "index", settings, device)
    exclusions = Exclusions(corpus)
    candidates = find_candidates(
        work / "candidates", search, queries, exclusions, depth=settings.depth
    )
    with whole_folder(output, "mined pairs") as folder:
        pairs = folder / f"{output.name}.parquet"
        audit = write_pairs(pairs, records, corpus, queries, documents, candidates, settings)
        audit.equal_to_a_positive, audit.most_used = inspect(pairs)
        if search is not exact:
            audit.recall = recall(candidates, exact, queries, exclusions)
        remark = f"Negatives of {records.name} by {plan['model']['name']}: see {RECORD}."
        write_manifest(records, pairs, output / pairs.name, settings, remark)
        record = {"plan": plan, "versions": versions_of(_PACKAGES), "audit": asdict(audit)}
        write_json(folder / RECORD, record)
    return audit
