"""Task folders from the concepts that manifests hold out, free of every training text."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedkit.data.concepts import unit_hash
from embedkit.data.manifests.manifest import HeldOutTask, Manifest, Prompts
from embedkit.data.pairs.leaks import fold, leaked
from embedkit.data.pairs.records import Records, open_manifest
from embedkit.errors import DataError
from embedkit.storage.folders import check_replaceable, whole_folder

MAX_QUERIES = 500

_ORDER = b"embedkit: order of texts"
_TRAIN_OR_TEST = b"embedkit: train or test"


@dataclass(frozen=True, slots=True)
class _Row:
    query: str
    positive: str
    negatives: list[str]
    concept: str
    topic: str | None

    def texts(self) -> tuple[str, ...]:
        return (self.query, self.positive, *self.negatives)


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
    kept_out = [(each, _held_out_rows(each)) for each in manifests if each.held_out]
    if not kept_out:
        raise DataError("no source of the mixture holds anything out: nothing to write")
    training = [*map(open_manifest, manifests), *also_trained_on]
    bad = leaked(
        (text for _, rows in kept_out for row in rows for text in row.texts()),
        (text for records in training for text in records.texts()),
    )
    with whole_folder(output, "held-out tasks") as aside:
        names = [
            _write_task(aside, task, manifest, rows, bad, max_documents)
            for manifest, rows in kept_out
            for task in (manifest.held_out.tasks if manifest.held_out else ())
        ]
    return [output / name for name in names]


def _held_out_rows(manifest: Manifest) -> list[_Row]:
    table = open_manifest(manifest, "held_out").table
    columns = ("query", "positive", "negatives", "concept", "topic")
    return [_Row(*values) for values in table.scan(columns)]


def _write_task(
    output: Path,
    task: HeldOutTask,
    manifest: Manifest,
    rows: list[_Row],
    bad: set[str],
    max_documents: int | None,
) -> str:
    folder = output / task.name
    if folder.exists():
        raise DataError(f"{manifest.name}: another manifest has a task {task.name}: rename one")
    folder.mkdir()
    make = _retrieval if task.type == "retrieval" else _classification
    files = make(rows, bad, max_documents)
    if not all(files.values()):
        raise DataError(
            f"{manifest.name}: no text is left for the held-out task {task.name}: raise "
            "held_out.share, or drop the task"
        )
    header: dict[str, Any] = {"type": task.type, "license": manifest.license}
    if task.type == "retrieval" and manifest.prompts != Prompts():
        header["prompts"] = manifest.prompts.model_dump()
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "task.json").write_text(
        json.dumps(header, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
    return task.name


def _retrieval(rows: list[_Row], bad: set[str], max_documents: int | None) -> dict[str, list[str]]:
    relevant: dict[str, set[str]] = {}
    for row in rows:
        if row.query not in bad and row.positive not in bad:
            relevant.setdefault(row.query, set()).add(row.positive)
    everything = {row.positive for row in rows}.union(*(row.negatives for row in rows)) - bad
    folded = set(map(fold, everything))
    # A query that is a document of the corpus, word for word, would find itself.
    candidates = [query for query in _drawn(relevant) if fold(query) not in folded]
    queries, documents = _choose(candidates, relevant, max_documents)
    room = None if max_documents is None else max_documents - len(documents)
    documents |= set(_drawn(everything - documents)[:room])
    qrels = [
        f"{_id(query)}\t{_id(document)}\t1"
        for query in queries
        for document in _drawn(relevant[query])
    ]
    return {
        "corpus.jsonl": [
            _line({"_id": _id(text), "title": "", "text": text}) for text in _drawn(documents)
        ],
        "queries.jsonl": [_line({"_id": _id(text), "text": text}) for text in queries],
        "qrels.tsv": ["query-id\tcorpus-id\tscore", *qrels] if qrels else [],
    }


def _choose(
    candidates: list[str], relevant: dict[str, set[str]], max_documents: int | None
) -> tuple[list[str], set[str]]:
    """The first queries whose documents all fit the corpus, and these documents."""
    queries: list[str] = []
    documents: set[str] = set()
    for query in candidates:
        needed = documents | relevant[query]
        if max_documents is not None and len(needed) > max_documents:
            continue
        queries.append(query)
        documents = needed
        if len(queries) == MAX_QUERIES:
            break
    return queries, documents


def _classification(
    rows: list[_Row], bad: set[str], max_documents: int | None
) -> dict[str, list[str]]:
    topics: dict[str, set[str]] = {}
    sides: dict[str, set[bool]] = {}
    texts: dict[str, str] = {}
    for row in rows:
        for text in (row.query, row.positive):
            if row.topic and text not in bad:
                texts.setdefault(fold(text), text)
                topics.setdefault(fold(text), set()).add(row.topic)
                sides.setdefault(fold(text), set()).add(
                    unit_hash(row.concept, _TRAIN_OR_TEST) < 0.5
                )
    # What two topics or two sides share can be told neither way.
    clear = [key for key in texts if len(topics[key]) == 1 and len(sides[key]) == 1]
    chosen = _drawn(clear)[:max_documents]
    split: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
    for key in chosen:
        split[min(sides[key])].append((texts[key], min(topics[key])))
    common = {topic for _, topic in split[True]} & {topic for _, topic in split[False]}
    return {
        name: [_line({"text": text, "label": topic}) for text, topic in pairs if topic in common]
        for name, pairs in (("train.jsonl", split[True]), ("test.jsonl", split[False]))
    }


def _drawn(texts: Iterable[str]) -> list[str]:
    """The texts in an order that looks random and depends on nothing but them."""
    return sorted(texts, key=lambda text: (unit_hash(text, _ORDER), text))


def _id(text: str) -> str:
    return f"{int(unit_hash(text, _ORDER) * 2**48):012x}"


def _line(value: dict[str, str]) -> str:
    return json.dumps(value, ensure_ascii=False)
