"""Mining from end to end, with a tiny random model over literal texts."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tomli_w
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives

import embedkit
from embedkit import load
from embedkit.data.exact_search import ExactSearch
from embedkit.data.manifests.manifest import load_manifest
from embedkit.data.pairs.records import Records, open_records
from embedkit.errors import DataError, UserError
from embedkit.mining import candidates
from embedkit.mining.audit import Audit, inspect
from embedkit.mining.corpus import Ids
from embedkit.mining.mine_source import mine
from embedkit.mining.search import Scores
from embedkit.mining.settings import SearchKind
from embedkit.models.embedding_model import EmbeddingModel

WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty"]
ROWS: list[dict[str, Any]] = [
    {"query": f"{word} {n}", "positive": f"{n} {word} {other}", "negatives": [f"{other} {n}"]}
    for n, (word, other) in enumerate(zip(WORDS, [*WORDS[5:], *WORDS[:5]], strict=True))
]
ALL: dict[str, Any] = {"negatives": 3, "depth": 20, "margin_kind": "none"}


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> EmbeddingModel:
    return load(tiny_model, dtype="fp32")


def pairs_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / f"{folder.name}.parquet").to_pylist()
    return rows


def test_sentence_transformers_mines_the_same(
    model: EmbeddingModel, tiny_model: Path, tmp_path: Path
) -> None:
    rows = [{key: row[key] for key in ("query", "positive")} for row in ROWS]
    settings: dict[str, Any] = {"negatives": 4, "depth": 9, "margin": 0.02}
    mine(Records.from_rows(rows), model, tmp_path / "mined", store="fp32", **settings)
    reference = mine_hard_negatives(
        Dataset.from_list(rows),
        SentenceTransformer(str(tiny_model), device="cpu"),
        num_negatives=4,
        range_max=9,
        relative_margin=0.02,
        output_format="labeled-list",
        verbose=False,
    )
    expected = {row["query"]: row["positive"][1:] for row in reference}
    found = {row["query"]: row["negatives"] for row in pairs_of(tmp_path / "mined")}
    assert {query: texts for query, texts in found.items() if texts} == expected
    assert {len(texts) for texts in expected.values()} > {1, 3, 4}


@pytest.mark.parametrize("whole", [True, False])
def test_damaged_vectors_are_encoded_again(
    whole: bool, model: EmbeddingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDKIT_CACHE", str(tmp_path / "cache"))
    first = mine(Records.from_rows(ROWS), model, tmp_path / "first", **ALL)
    expected = pairs_of(tmp_path / "first")
    stored = list((tmp_path / "cache" / "vectors").glob("*/vectors"))
    assert len(stored) == 2
    for path in stored:
        content = path.read_bytes()
        negated = -np.frombuffer(content, np.float16)
        path.write_bytes(negated.tobytes() if whole else content[:-1])
    with pytest.warns(UserWarning, match="1 of 1 blocks are damaged, so these are made again"):
        again = mine(Records.from_rows(ROWS), model, tmp_path / "again", **ALL)
    assert pairs_of(tmp_path / "again") == expected
    assert again.audit == first.audit
    assert sorted(stored) == sorted((tmp_path / "cache" / "vectors").glob("*/vectors"))


def test_a_query_gets_none_of_its_positives_in_any_row_or_spelling(
    model: EmbeddingModel, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"query": "heart attack", "positive": "Myocardial infarction"},
        {"query": "Heart  attack", "positive": "MI", "negatives": ["heart ATTACK", "Gout"]},
        {"query": "stroke", "positive": "Cerebral infarction", "negatives": ["mi"]},
    ]
    mined = mine(Records.from_rows(rows), model, tmp_path / "mined", **(ALL | {"negatives": 5}))
    first, second, third = pairs_of(tmp_path / "mined")
    assert set(first["negatives"]) == set(second["negatives"]) == {"Gout", "Cerebral infarction"}
    assert set(third["negatives"]) == {"Myocardial infarction", "MI", "heart ATTACK", "Gout"}
    assert (mined.audit.short, mined.audit.without) == (3, 0)
    assert mined.audit.equal_to_a_positive == 0
    assert second["query"] == "Heart  attack"


def test_rows_of_one_label_are_never_negatives_of_each_other(
    model: EmbeddingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Searched for a few at a time, so that most of what is found first is excluded.
    monkeypatch.setattr(candidates, "_FOUND", 10)
    rows = [
        {"query": f"{word} {n}", "positive": f"{word} {n} {n}", "label": word}
        for word in WORDS[:3]
        for n in range(8)
    ]
    mine(
        Records.from_rows(rows), model, tmp_path / "mined", negatives=2, depth=2, margin_kind="none"
    )
    mined = pairs_of(tmp_path / "mined")
    assert all(len(row["negatives"]) == 2 for row in mined)
    assert all(row["label"] not in text for row in mined for text in row["negatives"])
    opened = open_records(tmp_path / "mined" / "mined.toml")
    assert opened.has_labels
    assert opened.layout.unused == []


def test_a_mined_source_keeps_its_scores(model: EmbeddingModel, tmp_path: Path) -> None:
    rows = [{**row, "match": number / 2} for number, row in enumerate(ROWS)]
    records = Records.from_rows(rows, columns={"score": "match"})
    mine(records, model, tmp_path / "mined", **ALL)
    opened = open_records(tmp_path / "mined" / "mined.toml")
    found = [each.score for each in opened.take(range(len(ROWS)))]
    assert found == [row["match"] for row in rows]
    assert opened.layout.unused == []


def test_a_query_of_many_positives_makes_no_other_search_for_more(
    model: EmbeddingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    top = ExactSearch.top

    def noted(self: ExactSearch, queries: Scores, count: int) -> tuple[Scores, Ids]:
        asked.append((len(queries), count))
        return top(self, queries, count)

    monkeypatch.setattr(ExactSearch, "top", noted)
    rows = [{"query": "frequent", "positive": f"{word} {n}"} for n, word in enumerate(WORDS * 3)]
    rows += [{"query": f"rare {n}", "positive": f"{n} {word}"} for n, word in enumerate(WORDS)]
    mine(
        Records.from_rows(rows), model, tmp_path / "mined", negatives=2, depth=2, margin_kind="none"
    )
    assert all(len(row["negatives"]) == 2 for row in pairs_of(tmp_path / "mined"))
    assert asked[0] == (11, 4)


def test_texts_are_encoded_behind_the_prompts_of_their_source(
    model: EmbeddingModel, tmp_path: Path
) -> None:
    prompts = {"query": "heron grove: ", "document": "fjord: "}
    records = Records.from_rows(ROWS, prompts=prompts, max_document_tokens=12)
    mine(records, model, tmp_path / "mined", **ALL)
    row = pairs_of(tmp_path / "mined")[0]
    # Cosines are what is mined by, also for a model whose vectors have any norm.
    encode = partial(model.encode, normalize_embeddings=True)
    query = encode([row["query"]], prompt="heron grove: ")
    documents = encode([row["positive"], *row["negatives"]], prompt="fjord: ", max_tokens=12)
    scores = (query @ documents.T)[0]
    np.testing.assert_allclose(scores, [row["positive_score"], *row["negative_scores"]], atol=2e-3)
    assert sorted(row["negative_scores"], reverse=True) == row["negative_scores"]


def test_finetune_takes_two_steps_on_what_was_mined(
    model: EmbeddingModel, tiny_model: Path, tmp_path: Path
) -> None:
    described: dict[str, Any] = {
        "prompts": {"query": "q: "},
        "task": "sts",
        "license": "CC0",
        "batch_size": 4,
    }
    mined = mine(Records.from_rows(ROWS, **described), model, tmp_path / "mined", **ALL)
    manifest = load_manifest(str(mined.manifest))
    assert (manifest.rows, manifest.negatives_per_query) == (len(ROWS), 3)
    assert (manifest.prompts.query, manifest.task, manifest.license) == ("q: ", "sts", "CC0")
    recipe = embedkit.Recipe.model_validate(
        {
            "model": str(tiny_model),
            "steps": 2,
            "precision": "fp32",
            "data": {
                "batch_size": 8,
                "max_query_tokens": 32,
                "max_document_tokens": 32,
                "workers": 0,
                "mix": [{"manifest": str(mined.manifest)}],
            },
            "optim": {"lr": 1e-3},
        }
    )
    run = embedkit.finetune(recipe, tmp_path / "run").parent
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["source"] for line in lines] == ["mined", "mined"]
    assert all(np.isfinite(line["loss"]) for line in lines)


@pytest.mark.parametrize("search", ["faiss-flat", "faiss-ivf"])
def test_faiss_mines_the_same_as_torch(
    search: SearchKind, model: EmbeddingModel, tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    records = Records.from_rows(ROWS)
    mine(records, model, tmp_path / "torch", **ALL)
    mined = mine(records, model, tmp_path / "faiss", search=search, **ALL)
    assert [row["negatives"] for row in pairs_of(tmp_path / "faiss")] == [
        row["negatives"] for row in pairs_of(tmp_path / "torch")
    ]
    assert mined.audit.recall == (1.0 if search == "faiss-ivf" else None)


def test_the_audit_counts_what_the_file_holds(model: EmbeddingModel, tmp_path: Path) -> None:
    mined = mine(Records.from_rows(ROWS), model, tmp_path / "mined", negatives=3, margin=0.05)
    rows, audit = pairs_of(tmp_path / "mined"), mined.audit
    negatives = [text for row in rows for text in row["negatives"]]
    assert audit.rows == len(rows) == sum(audit.positive_scores)
    assert audit.negatives == len(negatives) == sum(audit.negative_scores)
    assert audit.short == sum(len(row["negatives"]) < 3 for row in rows)
    assert audit.most_used == max(map(negatives.count, negatives))
    assert all(
        score <= 0.95 * row["positive_score"] + 1e-6
        for row in rows
        for score in row["negative_scores"]
    )
    assert f"rows with fewer than 3            {audit.short}" in audit.text()


def test_a_negative_that_equals_a_positive_would_be_seen(tmp_path: Path) -> None:
    import pyarrow as pa

    rows = [
        {"query": "a", "positive": "one", "negatives": ["TWO", "three"]},
        {"query": "A ", "positive": "two", "negatives": [" a", "three"]},
        {"query": "b", "positive": "three", "negatives": ["one"]},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    assert inspect(tmp_path / "pairs.parquet") == (2, 2)


def test_what_is_finished_is_only_read(model: EmbeddingModel, tmp_path: Path) -> None:
    records = Records.from_rows(ROWS)
    first = mine(records, model, tmp_path / "mined", **ALL)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "mined").iterdir()}
    assert mine(records, model, tmp_path / "mined", **ALL) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "mined").iterdir()} == times
    assert [path.name for path in tmp_path.iterdir()] == ["mined"]


def test_vectors_are_made_once_for_all_settings(
    model: EmbeddingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records.from_rows(ROWS)
    mine(records, model, tmp_path / "one", **ALL)
    monkeypatch.setattr(model, "encode", lambda *_, **__: pytest.fail("encoded again"))
    mine(records, model, tmp_path / "two", **(ALL | {"skip": 2}))
    first, second = (pairs_of(tmp_path / name) for name in ("one", "two"))
    assert [row["negatives"][2] for row in first] == [row["negatives"][0] for row in second]


def refusal(records: Records, model: EmbeddingModel, output: Path, **options: Any) -> str:
    with pytest.raises(UserError) as refused:
        mine(records, model, output, **(ALL | options))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_another_source_model_or_setting_is_refused_by_name(
    model: EmbeddingModel, tiny_model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "mined"
    mine(Records.from_rows(ROWS), model, output, **ALL)
    told = refusal(Records.from_rows(ROWS), model, output, skip=4)
    assert "was begun otherwise (settings.skip: 0 -> 4): repeat it as it was" in told
    assert "(source.fingerprint: " in refusal(Records.from_rows(ROWS[:5]), model, output)
    other = load(tiny_model, dtype="fp32")
    other.prompts["query"] = "another: "
    assert "(model.identity: " in refusal(Records.from_rows(ROWS), other, output)
    mined = mine(Records.from_rows(ROWS), model, output, overwrite=True, **(ALL | {"skip": 4}))
    assert json.loads((output / "mining.json").read_text())["plan"]["settings"]["skip"] == 4
    assert mined.audit.rows == len(ROWS)


def test_a_manifest_that_was_edited_is_not_replaced(model: EmbeddingModel, tmp_path: Path) -> None:
    output = tmp_path / "mined"
    mine(Records.from_rows(ROWS), model, output, **ALL)
    manifest = output / "mined.toml"
    written = manifest.read_text()
    manifest.write_text(f"# mine\n{written}")
    other = {"overwrite": True, "skip": 4}
    told = refusal(Records.from_rows(ROWS), model, output, **other)
    assert "they were changed: mined.toml; move them elsewhere" in told
    assert manifest.read_text() == f"# mine\n{written}"
    manifest.write_text(written)
    (output / "embedkit.json").unlink()
    told = refusal(Records.from_rows(ROWS), model, output, **other)
    assert "holds no embedkit.json that marks it as written by embedkit" in told
    assert {path.name for path in tmp_path.iterdir()} == {"mined"}


def test_a_folder_of_something_else_is_left_alone(model: EmbeddingModel, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("1")
    for overwrite in (False, True):
        told = refusal(Records.from_rows(ROWS), model, tmp_path / "thesis", overwrite=overwrite)
        assert "thesis: holds no mined pairs; choose another --output" in told
    assert (tmp_path / "thesis" / "chapter").read_text() == "1"


def test_a_source_without_rows_is_refused(model: EmbeddingModel, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="rows: has no rows to mine negatives for"):
        mine(Records.from_rows([]), model, tmp_path / "mined")
    assert not list(tmp_path.iterdir())


def test_a_manifest_below_the_data_folder_moves_with_it(
    model: EmbeddingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDKIT_DATA", str(tmp_path / "data"))
    mine(Records.from_rows(ROWS), model, tmp_path / "data" / "mined", **ALL)
    shutil.move(tmp_path / "data", tmp_path / "moved")
    monkeypatch.setenv("EMBEDKIT_DATA", str(tmp_path / "moved"))
    assert len(open_records(tmp_path / "moved" / "mined" / "mined.toml")) == len(ROWS)


def test_what_a_source_holds_out_is_no_negative(model: EmbeddingModel, tmp_path: Path) -> None:
    rows = [
        {"query": row["query"], "positive": row["positive"], "concept": row["query"]}
        for row in ROWS
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = {
        "source": {"kind": "files", "files": [{"path": str(file)}]},
        "columns": {"concept": "concept"},
        "held_out": {"share": 0.5, "tasks": [{"name": "held", "type": "retrieval"}]},
    }
    (tmp_path / "source.toml").write_text(tomli_w.dumps(manifest))
    mine(tmp_path / "source.toml", model, tmp_path / "mined", **ALL)
    held_out = open_records(tmp_path / "source.toml", "held_out")
    hidden = {record.positive for record in held_out.take(range(len(held_out)))}
    mined = pairs_of(tmp_path / "mined")
    assert 0 < len(mined) < len(ROWS)
    assert not hidden & {text for row in mined for text in (row["positive"], *row["negatives"])}


def test_an_audit_without_negatives_can_be_read() -> None:
    assert Audit().text().startswith("rows")
