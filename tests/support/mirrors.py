"""A mirror of hub repositories, with rows of our own in the schemas that the hub has."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mteb
import pyarrow as pa
import pyarrow.parquet as pq
from support.task_folders import ANIMALS, DOCUMENTS, MONEY, QUERIES, write_json_lines

from embedkit.evaluation.mteb.task_selection import leaves

Rows = Sequence[Mapping[str, Any]]

ONE_OF_EACH_TYPE = {
    "Banking77Classification": "Classification",
    "TwentyNewsgroupsClustering": "Clustering",
    "SprintDuplicateQuestions": "PairClassification",
    "AskUbuntuDupQuestions": "Reranking",
    "ArguAna": "Retrieval",
    "CQADupstackGamingRetrieval": "Retrieval",
    "STS12": "STS",
    "STS17": "STS",
    "SummEval": "Summarization",
}


def write_mirror(root: Path) -> Path:
    """One folder for each repository of ``ONE_OF_EACH_TYPE``, as a download of it would lie."""
    _write_banking77(root / "mteb/banking77")
    _write_zipped(root / "mteb/twentynewsgroups-clustering/test.jsonl.gz", _cluster_sets())
    sprint = root / "mteb/sprintduplicatequestions-pairclassification"
    for split in ("validation", "test"):
        _write_zipped(sprint / f"{split}.jsonl.gz", [_pairs_in_one_row()])
    _write_reranking(root / "mteb/AskUbuntuDupQuestions")
    for repository in ("arguana", "cqadupstack-gaming"):
        _write_retrieval(root / "mteb" / repository)
    for split in ("train", "test"):
        _write_zipped(root / f"mteb/sts12-sts/{split}.jsonl.gz", _similar_pairs())
    _write_languages(root / "mteb/sts17-crosslingual-sts", ["en-en", "nl-en"])
    _write_parquet(root / "mteb/summeval/data/test-00000-of-00001.parquet", _summaries())
    for folder in (root / "mteb").iterdir():
        # What a download leaves beside the data.
        (folder / ".gitattributes").write_text("*.gz filter=lfs\n")
        (folder / ".cache/huggingface").mkdir(parents=True)
    return root


def write_cqadupstack(root: Path) -> list[str]:
    """Add the repositories of all twelve parts of CQADupstack, and return the parts' names."""
    parts = leaves(mteb.get_task("CQADupstackRetrieval"))
    for part in parts:
        _write_retrieval(root / str(part.metadata.dataset["path"]))
    return [part.metadata.name for part in parts]


def _write_banking77(folder: Path) -> None:
    rows = [
        {"text": text, "label": label, "label_text": ("animals", "money")[label]}
        for label, texts in enumerate((ANIMALS, MONEY))
        for text in texts
    ]
    for split in ("train", "test"):
        write_json_lines(folder / f"{split}.jsonl", rows)


def _cluster_sets() -> Rows:
    """Two sets that share texts, as those of the benchmark do."""
    sets = [(ANIMALS, MONEY), (ANIMALS[:4], MONEY[:4])]
    return [
        {
            "sentences": [*animals, *money],
            "labels": ["rec.pets"] * len(animals) + ["misc.forsale"] * len(money),
        }
        for animals, money in sets
    ]


def _pairs_in_one_row() -> Mapping[str, Any]:
    first, second = [*ANIMALS[:3], *MONEY[:3]], [*ANIMALS[1:4], *MONEY[:3]]
    return {"sent1": first, "sent2": second, "labels": [0, 0, 0, 1, 1, 1]}


def _similar_pairs() -> Rows:
    texts = [*ANIMALS[:3], *MONEY[:3]]
    return [
        {"split": "test", "sentence1": ANIMALS[0], "sentence2": text, "score": 5.0 - number}
        for number, text in enumerate(texts)
    ]


def _write_languages(folder: Path, subsets: Sequence[str]) -> None:
    for subset in subsets:
        rows = [dict(row) | {"lang": subset} for row in _similar_pairs()]
        _write_parquet(folder / subset / "test-00000-of-00001.parquet", rows)
    # mteb reads all languages at once and parts them by the column ``lang``.
    configs = [("default", "test", "*/test-*")]
    _write_card(folder, configs + [(each, "test", f"{each}/test-*") for each in subsets])


def _write_retrieval(folder: Path) -> None:
    corpus = [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(DOCUMENTS)]
    write_json_lines(folder / "corpus.jsonl", corpus)
    queries = [{"_id": key, "text": text} for key, (text, _) in QUERIES.items()]
    # A query that nothing is judged for takes no part.
    write_json_lines(folder / "queries.jsonl", [*queries, {"_id": "q99", "text": "not judged"}])
    qrels = [
        {"query-id": key, "corpus-id": document, "score": 1.0}
        for key, (_, document) in QUERIES.items()
    ]
    write_json_lines(folder / "qrels/test.jsonl", qrels)
    _write_card(
        folder,
        [
            ("default", "test", "qrels/test.jsonl"),
            ("corpus", "corpus", "corpus.jsonl"),
            ("queries", "queries", "queries.jsonl"),
        ],
    )


def _write_reranking(folder: Path) -> None:
    ranked = {"q0": ["d0", "d1", "d7"], "q6": ["d7", "d6", "d3"]}
    tables: dict[str, Rows] = {
        "default": [
            {"query-id": query, "corpus-id": document, "score": int(document[1:] == query[1:])}
            for query, documents in ranked.items()
            for document in documents
        ],
        "corpus": [{"id": f"d{n}", "text": text} for n, text in enumerate(DOCUMENTS)],
        "queries": [{"id": query, "text": QUERIES[query][0]} for query in ranked],
        "top_ranked": [{"query-id": key, "corpus-ids": ids} for key, ids in ranked.items()],
    }
    for config, rows in tables.items():
        _write_parquet(folder / config / "test-00000-of-00001.parquet", rows)
    _write_card(folder, [(config, "test", f"{config}/test-*") for config in tables])


def _summaries() -> Rows:
    return [
        {
            "id": f"cnn-{number}",
            "text": " ".join(texts),
            "human_summaries": [texts[0], texts[1]],
            "machine_summaries": [texts[0], texts[2], other],
            "relevance": [5.0, 3.5, 1.0],
            "coherence": [5.0, 3.0, 1.0],
        }
        for number, (texts, other) in enumerate(((ANIMALS, MONEY[0]), (MONEY, ANIMALS[0])))
    ]


def _write_card(folder: Path, configs: Sequence[tuple[str, str, str]]) -> None:
    """The README whose head tells ``datasets`` where each configuration's files lie."""
    lines = ["---", "configs:"]
    for name, split, path in configs:
        files = ["  data_files:", f"  - split: {split}", f'    path: "{path}"']
        lines += [f"- config_name: {name}", *files]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))


def _write_parquet(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)


def _write_zipped(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the time of writing, equal rows are equal bytes.
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(lines, mtime=0))
