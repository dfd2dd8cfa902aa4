"""Hard negatives for a source: encode, search, choose, write, and say what came out."""

import shutil
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Unpack

from numpy.typing import NDArray
from rich.console import Console

from embedkit.config import from_arguments
from embedkit.data.pairs.records import Records, open_records
from embedkit.errors import DataError
from embedkit.mining import faiss_search
from embedkit.mining.audit import Audit, inspect
from embedkit.mining.candidates import find_candidates, recall
from embedkit.mining.corpus import Corpus, open_corpus
from embedkit.mining.exclusions import Exclusions
from embedkit.mining.mined_source import write_manifest, write_pairs
from embedkit.mining.output_folder import RECORD, OutputFolder
from embedkit.mining.search import ExactSearch, Search, torch_best
from embedkit.mining.settings import MiningOptions, MiningSettings
from embedkit.mining.stored_vectors import stored_vectors
from embedkit.models.embedder import Embedder
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.load import one_stage
from embedkit.storage.atomic import write_json

_PACKAGES = ("embedkit-neobert", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Mined:
    """What mining leaves."""

    manifest: Path
    """Of the pairs with their negatives."""
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
    same bytes. What is finished is only read.

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
        faiss_search.load_faiss()
    records = source if isinstance(source, Records) else open_records(source)
    if not len(records):
        raise DataError(f"{records.name}: has no rows to mine negatives for")
    embedder = one_stage(model, dtype=settings.dtype, purpose="mine")
    plan = {
        "source": {"name": records.name, "fingerprint": records.fingerprint},
        "model": {"name": embedder.name, "identity": embedder.identity},
        "settings": settings.recorded(),
    }
    place = OutputFolder(Path(output))
    manifest = place.output / f"{place.output.name}.toml"
    if record := place.finished(plan, overwrite=overwrite):
        place.tidy()
        return Mined(manifest, Audit(**record["audit"]))
    console = Console(stderr=True)
    with place.claimed(plan) as work:
        audit = _Run(records, embedder, plan, settings, work, console).write(place.output)
        place.publish(work / "result")
    return Mined(manifest, audit)


class _Run:
    """One source, one model, one folder of work."""

    def __init__(
        self,
        records: Records,
        embedder: Embedder,
        plan: dict[str, Any],
        settings: MiningSettings,
        work: Path,
        console: Console,
    ) -> None:
        self._records, self._settings, self._plan = records, settings, plan
        self._device, self._work, self._console = embedder.device, work, console
        self._corpus: Corpus = open_corpus(records)
        encode = partial(
            stored_vectors,
            embedder=embedder,
            identity=plan["model"]["identity"],
            store=settings.store,
            console=console,
        )
        self._vectors: dict[str, NDArray[Any]] = {
            "queries": encode(
                self._corpus.queries,
                prompt=records.prompts.query,
                max_tokens=records.max_query_tokens,
            ),
            "documents": encode(
                self._corpus.documents,
                prompt=records.prompts.document,
                max_tokens=records.max_document_tokens,
            ),
        }
        self._exact = ExactSearch(self._vectors["documents"], self._device, torch_best)

    def write(self, output: Path) -> Audit:
        """Fill the folder ``result``, which is to become ``output``."""
        queries, documents = self._vectors["queries"], len(self._corpus.documents)
        exclusions = Exclusions(self._corpus)
        candidates = find_candidates(
            self._work / "candidates",
            self._search(),
            queries,
            exclusions,
            depth=self._settings.depth,
            documents=documents,
            console=self._console,
        )
        result, name = self._work / "result", output.name
        shutil.rmtree(result, ignore_errors=True)
        result.mkdir()
        pairs = result / f"{name}.parquet"
        audit = write_pairs(
            pairs, self._records, self._corpus, self._vectors, candidates, self._settings
        )
        audit.equal_to_a_positive, audit.most_used = inspect(pairs)
        if self._settings.search == "faiss-ivf":
            audit.recall = recall(candidates, self._exact, queries, exclusions, documents)
        remark = (
            f"Negatives of {self._records.name} by {self._plan['model']['name']}: see {RECORD}."
        )
        write_manifest(
            result / f"{name}.toml",
            self._records,
            pairs,
            output / pairs.name,
            self._settings,
            remark,
        )
        versions = {package: version(package) for package in _PACKAGES}
        record = {"plan": self._plan, "versions": versions, "audit": audit.table()}
        write_json(result / RECORD, record)
        return audit

    def _search(self) -> Search:
        settings, documents = self._settings, self._vectors["documents"]
        if settings.search == "torch":
            return self._exact
        faiss = faiss_search.load_faiss()
        if settings.search == "faiss-flat":
            best = faiss_search.flat_best(faiss, self._device)
            return ExactSearch(documents, self._device, best)
        return faiss_search.IvfSearch(
            faiss,
            documents,
            self._work / "index",
            lists=settings.lists,
            probes=settings.probes,
            seed=settings.seed,
            device=self._device,
            console=self._console,
        )
