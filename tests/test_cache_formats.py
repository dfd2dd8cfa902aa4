"""What lies in the cache has a format number in its key, which has to change with what is written.

Each test writes a store from small fixed inputs and compares a hash of what was written with the
one that is noted beside the number.
"""

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.shards import write_shards
from support.tiny_bert import real_tokenizer

from embedkit.data.manifests.manifest import load_manifest
from embedkit.data.manifests.sources import HubJoin
from embedkit.data.pairs import known_answers, lengths, records
from embedkit.data.pairs.records import Records, open_records
from embedkit.data.sources import files, open_source
from embedkit.data.sources.joins import joined
from embedkit.data.sources.readers import shards
from embedkit.data.sources.readers.docstring import DocstringReader
from embedkit.data.sources.readers.icd import IcdReader
from embedkit.data.sources.readers.obo import OboReader
from embedkit.data.text import tokenized
from embedkit.data.text.texts import Texts
from embedkit.evaluation import query_results
from embedkit.evaluation.encoding import vector_cache
from embedkit.evaluation.encoding.vector_cache import VectorCache, keys_of
from embedkit.evaluation.query_results import QueryResult, write_query_results
from embedkit.mining import stored_vectors
from embedkit.storage import cache
from embedkit.storage.blocks import BlockFile
from embedkit.storage.hashing import sha256_of_file, sha256_of_json

NOTED = {
    "data/sources/open_source.py": (1, "9e9484d4b680c0e933fbb11afa5c740a"),
    "data/pairs/records.py": (1, "48583b4bf72680920d6eb8fd82985446"),
    "data/pairs/lengths.py": (1, "27aec2f83adec0ebcf0865802b901630"),
    "data/pairs/known_answers.py": (1, "c1b56f28dcf59fa0bbc67546dfd8cf07"),
    "data/text/tokenized.py": (1, "03c743a75832424ddfed10974c7bfa89"),
    "mining/stored_vectors.py": (2, "ed65bcfbc8efc123cbb6c73bb7a27526"),
    "evaluation/query_results.py": (1, "34322218a1e5e1a3aa796a2c8e0794f3"),
    "evaluation/encoding/vector_cache.py": (5, "73144acda0332914afd7c26db8be0e2a"),
}

OBO = """
[Term]
id: X:1
name: Root
def: "What all is." []

[Term]
id: X:2
name: Round eyes
def: "Eyes that are \\"round\\"." [source]
synonym: "Circular eyes" EXACT []
is_a: X:1 ! Root

[Term]
id: X:3
name: Square eyes
def: "Eyes that are square." []
synonym: "Boxy eyes" EXACT []
is_a: X:1 ! Root
"""

ICD = """<tabular><chapter><name>1</name><desc>Eyes</desc><section id="A00"><desc>Eyes</desc>
<diag><name>A00</name><desc>Red eye</desc>
<inclusionTerm><note>Ruddy eye</note></inclusionTerm></diag>
<diag><name>A01</name><desc>Blue eye</desc>
<inclusionTerm><note>Sad eye</note></inclusionTerm></diag>
</section></chapter></tabular>"""

MODULE = '''
class Stack:
    def push(self, item):
        """Put an item on the top."""
        # A comment stays.
        self.items.append(item)

    def pop(self):
        """Take the item from the top."""
        return self.items.pop()
'''

ROWS: list[dict[str, Any]] = [
    {
        "query": f"what is {number % 30}",
        "positive": f"it is grün {number % 30}",
        "negatives": [f"it is {number + 1}", "", "nothing"],
        "negative_concepts": [f"c{number + 1}", "", f"c{number % 5}"],
        "label": number % 3,
        "concept": f"c{number}",
        "topic": "even" if number % 2 == 0 else "odd",
        "score": number,
    }
    for number in range(40)
]
ROWS.append({**ROWS[5], "query": " ", "label": -1})


def check(module: str, number: int, written: object) -> None:
    """Compare what was written, and the format number of ``module``, with what is noted."""
    noted_number, noted = NOTED[module]
    found = sha256_of_json(written)[:32]
    if found == noted and number == noted_number:
        return
    raised = number if number != noted_number else number + 1
    pytest.fail(
        f"embedkit/{module} writes something else than under format {noted_number}: set its FORMAT "
        f'to {raised}, and the line of NOTED here to "{module}": ({raised}, "{found}")'
    )


def files_of(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of_file(path) for path in sorted(folder.iterdir())}


def formats(folder: Path) -> Iterator[Path]:
    """Write rows to files of every format."""
    rows = [{"text": f'{number} grün, "so"', "more": str(number)} for number in range(3)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines)
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for name, dialect in (("rows.csv", "excel"), ("rows.tsv", "excel-tab")):
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "more"], dialect=dialect)
            writer.writeheader()
            writer.writerows(rows)
    (folder / "rows.txt").write_text("first line\n\n  second \n")
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    yield from sorted(folder.iterdir())


def numbered(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> list[Any]:
    return [[number, dict(row)] for number, row in rows]


def test_rows_of_files(tmp_path: Path) -> None:
    found: dict[str, Any] = {path.name: numbered(files.rows(path)) for path in formats(tmp_path)}
    (tmp_path / "x.obo").write_text(OBO)
    relations: list[Literal["definition", "synonym", "term"]] = ["definition", "synonym", "term"]
    for relation in relations:
        reader = OboReader(kind="obo", relation=relation, siblings=2)
        found[relation] = list(reader.read(tmp_path / "x.obo"))
    (tmp_path / "icd.xml").write_text(ICD)
    found["icd"] = list(IcdReader(kind="icd", siblings=2).read(tmp_path / "icd.xml"))
    (tmp_path / "m.py").write_text(MODULE)
    functions = DocstringReader(kind="docstring", siblings=1, max_words=99)
    found["docstring"] = list(functions.read(tmp_path / "m.py"))
    pairs = [{"query": "q", "document": "d"}, {"query": "r", "document": "e"}]
    folder = write_shards(tmp_path, "set", {"shard-00000.jsonl.gz": pairs}, "query", "document")
    source = shards.Shards(folder=str(folder), files="shard-{00000..00000}.jsonl.gz")
    found["shards"] = [[name, numbered(rows)] for name, rows in shards.read(folder, source)]
    join = HubJoin(column="id", config="texts", split="train")
    table = [{"_id": "1", "text": "one"}, {"_id": "2", "text": "two"}, {"_id": "1", "text": "not"}]
    ids = [{"id": 2, "score": 1}, {"id": 1, "score": 0}, {"id": 9, "score": 0}]
    found["joins"] = list(joined(lambda: ids, [(join, table)]))
    check("data/sources/open_source.py", open_source.FORMAT, found)


MANIFESTS = {
    "held out": "drop_empty = true\nignore = ['score']\n"
    "columns = { concept = 'concept' }\n"
    "held_out = { share = 0.3, tasks = [{ name = 'eyes', type = 'retrieval' }] }",
    "filtered": "deduplicate = true\nfilter = 'score > 4'\ndrop_empty = true\n"
    "ignore = ['negative_concepts', 'label']",
    "of one label": "columns = { query = 'query', label = 'label' }\n"
    "filter = 'label >= 0'\nignore = ['positive', 'negatives', 'negative_concepts', 'score', "
    "'concept', 'topic']\n"
    "same_label = { seed = 3 }",
}


def test_tables_of_pairs(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    found: dict[str, Any] = {}
    for name, more in MANIFESTS.items():
        source = f'source = {{ kind = "files", files = [{{ path = "{path}" }}] }}'
        (tmp_path / "mine.toml").write_text(f"{more}\n{source}\n")
        folder = open_records(load_manifest(str(tmp_path / "mine.toml"))).table.path.parent
        # The rows and not the bytes of Arrow, which are pyarrow's own affair.
        found[name] = {
            each.name: [str(table.schema), table.to_pylist()]
            for each in sorted(folder.glob("*.arrow"))
            for table in [pa.ipc.open_file(each).read_all()]
        }
        found[name] |= {each.name: each.read_text() for each in sorted(folder.glob("*.json"))}
    check("data/pairs/records.py", records.FORMAT, found)


def test_lengths() -> None:
    rows = [{**row, "query": f"{row['query']} {'word ' * (row['score'] % 7)}"} for row in ROWS[:-1]]
    records = Records.from_rows(
        rows, prompts={"query": "ask: "}, ignore=["score", "negative_concepts"]
    )
    lengths.all_lengths(records, real_tokenizer())
    (folder,) = [each for each in (cache.root() / "lengths").iterdir() if each.is_dir()]
    check("data/pairs/lengths.py", lengths.FORMAT, files_of(folder))


def test_known_answers() -> None:
    rows = [{"query": f"query {row % 3}", "positive": f"answer {row % 7}"} for row in range(12)]
    assert len(Records.from_rows(rows).known_answers) > 0
    (folder,) = [each for each in (cache.root() / "known_answers").iterdir() if each.is_dir()]
    check("data/pairs/known_answers.py", known_answers.FORMAT, files_of(folder))


def test_token_ids() -> None:
    rows = [
        {"text": row["query"], "body": " ".join(row["negatives"]), "concept": row["concept"]}
        for row in ROWS[:-1]
    ]
    texts = Texts.from_rows(
        rows,
        columns={"text": ["text", "body"], "concept": "concept"},
        deduplicate=True,
        held_out={"share": 0.3},
    )
    tokenized.prepare(texts, real_tokenizer())
    (folder,) = [each for each in (cache.root() / "tokens").iterdir() if each.is_dir()]
    check("data/text/tokenized.py", tokenized.FORMAT, files_of(folder))


def vectors(count: int) -> np.ndarray:
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4) / 7


def test_blocks_of_vectors(tmp_path: Path) -> None:
    file = BlockFile(tmp_path / "vectors", np.dtype(np.float16), rows=5, width=4, block=2)
    for block in file.missing():
        file.write(block, vectors(5)[file.rows_of(block)])
    check("mining/stored_vectors.py", stored_vectors.FORMAT, files_of(tmp_path))


def test_results_of_queries(tmp_path: Path) -> None:
    result = QueryResult("test", "default", "q", 0.5, 2, ["d3", "d1"], [0.75, 0.5], ["d1"])
    write_query_results(tmp_path / "task.parquet", "ndcg_at_10", [result])
    table = pq.read_table(tmp_path / "task.parquet")
    found = [str(table.schema), table.to_pylist()]
    check("evaluation/query_results.py", query_results.FORMAT, found)


def test_kept_vectors(tmp_path: Path) -> None:
    kept = VectorCache(tmp_path, 10**6)
    kept.keep("model", "prompt: ", keys_of(["a", "grün", ""]), vectors(3))
    (group,) = tmp_path.glob("*.texts")
    found = {group.name: files_of(group)}
    check("evaluation/encoding/vector_cache.py", vector_cache.FORMAT, found)
