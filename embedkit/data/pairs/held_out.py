"""Writes task folders of the concepts that manifests hold out, free of every training text."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from embedkit.data.concepts import unit_hash
from embedkit.data.manifests.manifest import HeldOutTask, Manifest, Prompts
from embedkit.data.pairs.leaks import fold, leaked
from embedkit.data.pairs.records import Records, open_records
from embedkit.errors import DataError
from embedkit.storage.folders import check_replaceable, whole_folder

MAX_QUERIES = 500

_Files = dict[str, list[str]]
"""Lines of each file of a task."""
_ORDER = b"embedkit: order of texts"
_TRAIN_OR_TEST = b"embedkit: train or test"


def write_tasks(
    manifests: Sequence[Manifest],
    output: Path,
    max_documents: int | None = None,
    *,
    also_trained_on: Sequence[Records] = (),
) -> list[Path]:
    """Write the held-out tasks of a mixture, as folders under ``output``; return these.

    The same mixture gives the same bytes. A text of four or more words that stands anywhere in the
    training rows of the mixture, which are those of all ``manifests`` and of ``also_trained_on``,
    is in no task. Corpora are cut to ``max_documents``, queries to ``MAX_QUERIES``. Tasks that an
    earlier call wrote to ``output`` are replaced.

    Raises:
        UserError: ``output`` holds something that no earlier call wrote, or a task would be empty.
    """
    check_replaceable(output, "held-out tasks")
    held_out = [
        (manifest, task, open_records(manifest, "held_out"))
        for manifest in manifests
        if manifest.held_out
        for task in manifest.held_out.tasks
    ]
    if not held_out:
        raise DataError("no source of the mixture holds anything out: nothing to write")
    training = [*map(open_records, manifests), *also_trained_on]
    bad = leaked(
        (text for *_, records in held_out for text in records.texts()),
        (text for records in training for text in records.texts()),
    )
    with whole_folder(output, "held-out tasks") as aside:
        for manifest, task, records in held_out:
            make = _retrieval if task.type == "retrieval" else _classification
            files = make(records, bad, sys.maxsize if max_documents is None else max_documents)
            _write_task(aside / task.name, manifest, task, files)
    return [output / task.name for _, task, _ in held_out]


def _write_task(folder: Path, manifest: Manifest, task: HeldOutTask, files: _Files) -> None:
    if folder.exists():
        raise DataError(f"{manifest.name}: another manifest has a task {task.name}: rename one")
    if not all(files.values()):
        raise DataError(
            f"{manifest.name}: no text is left for the held-out task {task.name}: raise "
            "held_out.share, or drop the task"
        )
    header: dict[str, Any] = {"type": task.type, "license": manifest.license}
    if task.type == "retrieval" and manifest.prompts != Prompts():
        header["prompts"] = manifest.prompts.model_dump()
    folder.mkdir()
    files["task.json"] = [json.dumps(header, ensure_ascii=False, indent=1)]
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _retrieval(records: Records, bad: set[str], max_documents: int) -> _Files:
    relevant: dict[str, set[str]] = {}
    everything: set[str] = set()
    for query, positive, negatives in records.table.scan(("query", "positive", "negatives")):
        if query not in bad and positive not in bad:
            relevant.setdefault(query, set()).add(positive)
        everything.update((positive, *negatives))
    everything -= bad
    folded = set(map(fold, everything))
    queries: list[str] = []
    documents: set[str] = set()
    for query in _drawn(relevant):
        needed = documents | relevant[query]
        # A query that is a document of the corpus, word for word, would find itself.
        if fold(query) not in folded and len(needed) <= max_documents:
            queries.append(query)
            documents = needed
        if len(queries) == MAX_QUERIES:
            break
    documents |= set(_drawn(everything - documents)[: max_documents - len(documents)])
    hits = ((query, text) for query in queries for text in _drawn(relevant[query]))
    qrels = [f"{_id(query)}\t{_id(text)}\t1" for query, text in hits]
    return {
        "corpus.jsonl": [_line(_id=_id(text), title="", text=text) for text in _drawn(documents)],
        "queries.jsonl": [_line(_id=_id(text), text=text) for text in queries],
        "qrels.tsv": ["query-id\tcorpus-id\tscore", *qrels] if qrels else [],
    }


def _classification(records: Records, bad: set[str], max_documents: int) -> _Files:
    labels: dict[str, set[tuple[str, bool]]] = {}
    texts: dict[str, str] = {}
    for *sides, concept, topic in records.table.scan(("query", "positive", "concept", "topic")):
        for text in sides:
            if topic and text not in bad:
                texts.setdefault(fold(text), text)
                trained = unit_hash(concept, _TRAIN_OR_TEST) < 0.5
                labels.setdefault(fold(text), set()).add((topic, trained))
    # A text of two topics, or of both training and test, is left out.
    chosen = _drawn(key for key in texts if len(labels[key]) == 1)[:max_documents]
    train, test = (
        [(texts[key], topic) for key in chosen for topic, trained in labels[key] if trained == side]
        for side in (True, False)
    )
    common = {topic for _, topic in train} & {topic for _, topic in test}
    return {
        name: [_line(text=text, label=topic) for text, topic in split if topic in common]
        for name, split in (("train.jsonl", train), ("test.jsonl", test))
    }


def _drawn(texts: Iterable[str]) -> list[str]:
    """Return the texts in an order that looks random and depends on nothing but them."""
    return sorted(texts, key=lambda text: (unit_hash(text, _ORDER), text))


def _id(text: str) -> str:
    return f"{int(unit_hash(text, _ORDER) * 2**48):012x}"


def _line(**value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
