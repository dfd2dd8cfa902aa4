"""Small stand-ins for the data sets of the shipped manifests: the published columns, other rows."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
Files = dict[str, list[Row]]

SUBJECTS = [
    "otters", "tides", "violins", "glaciers", "beetles", "bridges",
    "comets", "kilns", "ferns", "canals", "magnets", "clocks",
]  # fmt: skip


def texts(*columns: str) -> list[Row]:
    """A dozen rows, with a text of its own in each column."""
    return [{column: f"{column} of {subject}" for column in columns} for subject in SUBJECTS]


def numbered(columns: list[Row], **more: Any) -> list[Row]:
    """``columns``, each with what the functions of its number say besides."""
    return [
        {**row, **{name: value(number) for name, value in more.items()}}
        for number, row in enumerate(columns)
    ]


def negatives(count: int) -> list[str]:
    return [f"negative_{number}" for number in range(1, count + 1)]


def judged(titles: bool) -> Files:
    """Eleven claims, the first with two documents, the last with a document of score 0."""
    documents = [
        {"_id": f"d{number}", "title": subject if titles else "", "text": f"All of {subject}."}
        for number, subject in enumerate(SUBJECTS)
    ]
    queries = [
        {"_id": f"q{number}", "text": f"Is {each} so?"} for number, each in enumerate("abcdefghijk")
    ]
    pairs = [(0, 0), *((number, number + 1) for number in range(11))]
    qrels = [
        {"query-id": f"q{query}", "corpus-id": f"d{document}", "score": float(query != 10)}
        for query, document in pairs
    ]
    return {"qrels/train.jsonl": qrels, "queries.jsonl": queries, "corpus.jsonl": documents}


def scored(**more: Any) -> list[Row]:
    return numbered(texts("sentence1", "sentence2"), score=lambda number: number / 2, **more)


def paragraphs(kind: str, count: int, number: int) -> list[Row]:
    subject = SUBJECTS[number]
    return [{"title": subject, "text": f"{kind} {place} of {subject}"} for place in range(count)]


def question(number: int) -> str:
    return f"What do {SUBJECTS[number]} need?"


def answers(kind: str, count: int, number: int) -> list[str]:
    return [f"{kind} {place} for {SUBJECTS[number]}" for place in range(count)]


RETRIEVAL = {
    "default": {"train": "qrels/train.jsonl"},
    "corpus": {"corpus": "corpus.jsonl"},
    "queries": {"queries": "queries.jsonl"},
}

# By id: the files, and of which splits of which configurations they are, where the card says so.
FIXTURES: dict[str, tuple[Files, dict[str, dict[str, str]]]] = {
    "sh0416/ag_news": (
        {"train.jsonl": numbered(texts("title", "description"), label=lambda n: 1 + n % 4)},
        {},
    ),
    "sentence-transformers/all-nli": (
        {
            "triplet/train-00000-of-00001.parquet": texts("anchor", "positive", "negative"),
            "pair/train-00000-of-00001.parquet": texts("anchor", "positive"),
        },
        {"pair": {"train": "pair/train-*"}, "triplet": {"train": "triplet/train-*"}},
    ),
    "embedding-data/Amazon-QA": (
        {
            "amazon-qa.jsonl.gz": [
                {"query": question(n), "pos": answers("answer", 1 + n % 3, n)} for n in range(12)
            ]
        },
        {},
    ),
    "stanfordnlp/concurrentqa-retrieval": (
        {
            "Retriever_CQA_train_all_original.json": [
                {
                    "question": question(n),
                    "answer": answers("answer", 1, n),
                    "pos_paras": paragraphs("hop", 2, n),
                    "neg_paras": paragraphs("wrong", 6 + n % 3, n),
                    "_id": f"id{n}",
                }
                for n in range(12)
            ]
        },
        {},
    ),
    "mteb/fever": (judged(titles=True), RETRIEVAL),
    "mteb/msmarco": (judged(titles=False), RETRIEVAL),
    "WhereIsAI/github-issue-similarity": (
        {
            "data/train-00000-of-00001.parquet": numbered(
                texts("text1", "text2"), label=lambda n: n % 2
            ),
            "positive/train-00000-of-00001.parquet": texts("anchor", "positive"),
        },
        {"default": {"train": "data/train-*"}, "positive": {"train": "positive/train-*"}},
    ),
    "tomaarsen/gooaq-hard-negatives": (
        {"triplet-5/train-00000-of-00008.parquet": texts("question", "answer", *negatives(5))},
        {"triplet-5": {"train": "triplet-5/train-*"}},
    ),
    "openlifescienceai/medmcqa": (
        {
            "data/train-00000-of-00001.parquet": numbered(
                texts("id", "question", "opa", "opb", "opc", "opd"),
                cop=lambda n: n % 4,
                choice_type=lambda n: "single",
                exp=lambda n: None if n % 4 == 3 else f"It follows from {SUBJECTS[n]}.",
                subject_name=lambda n: ["Anatomy", "Dental", "Surgery"][n % 3],
                topic_name=lambda n: None,
            )
        },
        {"default": {"train": "data/train-*"}},
    ),
    "sentence-transformers/npr": (
        {"pair/train-00000-of-00001.parquet": texts("title", "body")},
        {"pair": {"train": "pair/train-*"}},
    ),
    "embedding-data/PAQ_pairs": (
        {
            "PAQ_pairs_processed.jsonl.gz": [
                {"set": [question(n), f"They need {n}."]} for n in range(12)
            ]
        },
        {},
    ),
    "sentence-transformers/pubmedqa": (
        {"triplet-20/train-00000-of-00001.parquet": texts("anchor", "positive", *negatives(20))},
        {"triplet-20": {"train": "triplet-20/train-*"}},
    ),
    "embedding-data/QQP_triplets": (
        {
            "QQP_triplets.jsonl.gz": [
                {
                    "set": {
                        "query": question(n),
                        "pos": answers("same", 1 + n % 2, n),
                        "neg": answers("other", n, n),
                    }
                }
                for n in range(12)
            ]
        },
        {},
    ),
    "embedding-data/sentence-compression": (
        {
            "sentence-compression_compressed.jsonl.gz": [
                {"set": [f"{subject}, it is said, are many.", f"{subject} are many."]}
                for subject in SUBJECTS
            ]
        },
        {},
    ),
    "sentence-transformers/stackexchange-duplicates": (
        {
            "body-body-pair/train-00000-of-00001.parquet": texts("body1", "body2"),
            "post-post-pair/train-00000-of-00001.parquet": texts("post1", "post2"),
            "title-title-pair/train-00000-of-00001.parquet": texts("title1", "title2"),
        },
        {
            f"{each}-{each}-pair": {"train": f"{each}-{each}-pair/train-*"}
            for each in ("body", "post", "title")
        },
    ),
    "mteb/stackoverflowdupquestions-reranking": (
        {
            "train.jsonl.gz": [
                {
                    "query": question(n),
                    "positive": answers("same", 1 + n % 2, n),
                    "negative": answers("other", 30 - n, n),
                }
                for n in range(12)
            ]
        },
        {},
    ),
    "mteb/sts12-sts": ({"train.jsonl.gz": scored()}, {}),
    "mteb/stsbenchmark-sts": (
        {
            "train.jsonl.gz": scored(
                split=lambda n: "train",
                genre=lambda n: "main-captions",
                dataset=lambda n: "MSRvid",
                year=lambda n: "2012test",
                sid=lambda n: f"{n:04}",
            )
        },
        {},
    ),
    "sentence-transformers/trivia-qa-triplet": (
        {"triplet/train-00000-of-00001.parquet": texts("anchor", "positive", "negative")},
        {"triplet": {"train": "triplet/train-*"}},
    ),
    "sentence-transformers/wikihow": (
        {"pair/train-00000-of-00001.parquet": texts("text", "summary")},
        {"pair": {"train": "pair/train-*"}},
    ),
    "community-datasets/yahoo_answers_topics": (
        {
            "yahoo_answers_topics/train-00000-of-00001.parquet": numbered(
                texts("question_title", "question_content", "best_answer"),
                id=lambda n: n,
                topic=lambda n: n % 5,
            )
        },
        {"yahoo_answers_topics": {"train": "yahoo_answers_topics/train-*"}},
    ),
}  # fmt: skip


def write_data_set(root: Path, id_: str, renamed: str | None = None) -> None:
    """Lay a data set out under ``root`` as on the hub; ``renamed`` is a field that is not there."""
    write_files(root / id_, *FIXTURES[id_], renamed)


def write_files(
    folder: Path, files: Files, configs: dict[str, dict[str, str]], renamed: str | None = None
) -> None:
    """Fill ``folder`` with files, and with a card that says of which splits they are."""
    for name, rows in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, [_without(row, renamed) for row in rows])
    listed = [
        {
            "config_name": config,
            "data_files": [{"split": split, "path": path} for split, path in splits.items()],
        }
        for config, splits in configs.items()
    ]
    card = f"---\nconfigs: {json.dumps(listed)}\n---\n" if listed else "No configurations.\n"
    (folder / "README.md").write_text(card)


def _write(path: Path, rows: list[Row]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return
    lines = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


def _without(value: Any, name: str | None) -> Any:
    if isinstance(value, list):
        return [_without(each, name) for each in value]
    if isinstance(value, dict):
        return {
            f"{key} renamed" if key == name else key: _without(each, name)
            for key, each in value.items()
        }
    return value
