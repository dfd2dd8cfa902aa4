"""Small task folders of every type, in words that a real encoder tells apart."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ANIMALS = [
    "The cat sleeps on the sofa.",
    "A dog barks at the postman.",
    "Horses run across the meadow.",
    "The sparrow builds a nest in spring.",
    "Cows graze behind the barn.",
    "A rabbit hides from the fox.",
]
MONEY = [
    "The bank raised its interest rate.",
    "Shares fell after the quarterly report.",
    "Inflation eats up the savings of retired people.",
    "She pays off the mortgage next year.",
    "The tax on profits was lowered.",
    "Investors bought government bonds.",
]
LABELLED = [{"text": text, "label": "animals"} for text in ANIMALS] + [
    {"text": text, "label": "money"} for text in MONEY
]
DOCUMENTS = [*ANIMALS, *MONEY]
QUERIES = {
    "q0": ("where does the cat rest", "d0"),
    "q1": ("which animal makes noise at the mailman", "d1"),
    "q6": ("cost of borrowing from the bank", "d6"),
    "q7": ("stock market losses", "d7"),
}


def write_json_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_task(folder: Path, type_: str, **settings: Any) -> Path:
    """A sound folder of the type, with the settings in its ``task.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.json").write_text(json.dumps({"type": type_, **settings}), encoding="utf-8")
    if type_ == "retrieval":
        _write_retrieval(folder)
    else:
        write_json_lines(folder / "test.jsonl", _ROWS[type_])
    if type_.startswith("classification"):
        write_json_lines(folder / "train.jsonl", LABELLED)
    return folder


def _write_retrieval(folder: Path) -> None:
    corpus = [
        {"_id": f"d{n}", "title": "" if n else "Cats", "text": text}
        for n, text in enumerate(DOCUMENTS)
    ]
    write_json_lines(folder / "corpus.jsonl", corpus)
    queries = [{"_id": key, "text": text} for key, (text, _) in QUERIES.items()]
    write_json_lines(folder / "queries.jsonl", queries)
    lines = [f"{key}\t{document}\t1" for key, (_, document) in QUERIES.items()]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines, ""]))


_PAIRS = [
    (ANIMALS[0], "A cat is asleep on the couch.", 5.0),
    (ANIMALS[1], "The postman is barked at by a dog.", 4.5),
    (ANIMALS[2], "Cows graze in the meadow.", 2.0),
    (MONEY[0], "Interest rates were put up by the bank.", 5),
    (MONEY[1], "Inflation rose last quarter.", 1.5),
    (MONEY[2], ANIMALS[3], 0),
]
_ROWS: dict[str, list[dict[str, Any]]] = {
    "reranking": [
        {"query": text, "positive": [DOCUMENTS[int(key[1:])]], "negative": DOCUMENTS[2:6]}
        for key, (text, _) in QUERIES.items()
    ],
    "sts": [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in _PAIRS],
    "pair_classification": [
        {"sentence1": a, "sentence2": b, "label": int(score > 4), "origin": "kept and ignored"}
        for a, b, score in _PAIRS
    ],
    "classification": LABELLED,
    "clustering": LABELLED,
    "classification+clustering": LABELLED,
    "summarization": [
        {
            "text": f"{texts[0]} {texts[1]} {texts[2]}",
            "human_summaries": [texts[0], texts[1]],
            "machine_summaries": [texts[0], texts[2], other],
            "relevance": [5, 3.5, 1],
        }
        for texts, other in ((ANIMALS, MONEY[0]), (MONEY, ANIMALS[0]))
    ],
}
TYPES = ("retrieval", *_ROWS)
