from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from support.ranks import run_on_ranks
from support.tiny_bert import real_tokenizer

from embedkit import distributed
from embedkit.data.batch_sampler import BatchSampler, Source
from embedkit.data.manifests.manifest import load_manifest
from embedkit.data.pairs.contrastive_batches import Batches, ContrastiveBatch
from embedkit.data.pairs.records import Record, Records, open_records
from embedkit.errors import DataError
from embedkit.recipe import Data, Mix

ROWS = [{"query": f"q {row}", "positive": f"p {row}", "score": row / 4} for row in range(12)]


def test_a_score_is_read_where_it_is_named_and_nowhere_else() -> None:
    records = Records.from_rows(ROWS, columns={"score": "score"})
    assert records.has_scores
    assert records[3] == Record("q 3", "p 3", score=0.75)
    assert records.layout.columns["score"] == ["score"]
    with pytest.raises(DataError, match="nothing uses 'score': give it a part in columns, or say"):
        Records.from_rows(ROWS)
    without = Records.from_rows(ROWS, ignore="score")
    assert not without.has_scores
    assert without[3] == Record("q 3", "p 3")
    assert without.fingerprint != records.fingerprint


def test_sources_without_scores_are_called_as_before_there_were_any() -> None:
    records = Records.from_rows(ROWS, ignore="score")
    # Of embedkit as it was before it read scores.
    content = "af3027cd037fd70b5b5923d274e6d2e521d6b298826a4450e1909bb74700d387"
    fingerprint = "40195b3845ecfbd0c5e23ede9cbbb7f36e52baa673f05395384d159d17a16472"
    assert (records.table.facts.content, records.fingerprint) == (content, fingerprint)


def test_scores_change_what_a_source_is() -> None:
    other = [*ROWS[:-1], {**ROWS[-1], "score": 0.0}]
    one, two = (Records.from_rows(rows, columns={"score": "score"}) for rows in (ROWS, other))
    assert one.fingerprint != two.fingerprint


def test_csv_spells_its_scores(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("query,positive,rating\na,b,4.5\nc,d,-1e-3\n")
    records = Records.from_file(path, columns={"score": "rating"})
    assert [records[0].score, records[1].score] == [4.5, -0.001]


@pytest.mark.parametrize("value", [None, "high", float("nan"), float("inf"), [1.0], ""])
def test_what_is_no_score_is_refused_by_its_row(value: Any) -> None:
    rows = [*ROWS[:2], {**ROWS[2], "score": value}]
    with pytest.raises(DataError, match=r"row 3: score is .*, not a finite number: correct col"):
        Records.from_rows(rows, columns={"score": "score"})


def test_a_manifest_names_scores_too(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("query\tpositive\tscore\na\tb\t3\nc\td\t0.5\n")
    files = [{"path": str(tmp_path / "pairs.tsv")}]
    tables: dict[str, Any] = {"source": {"kind": "files", "files": files}}
    path = tmp_path / "pairs.toml"
    path.write_text(tomli_w.dumps(tables | {"columns": {"score": "score"}}))
    scored = open_records(load_manifest(str(path)))
    path.write_text(tomli_w.dumps(tables | {"ignore": ["score"]}))
    assert open_records(load_manifest(str(path)))[1] == Record("c", "d")
    assert scored[1] == Record("c", "d", score=0.5)


def batch_of(records: Records) -> ContrastiveBatch:
    data = Data(batch_size=6, mix=(Mix(manifest="rows"),))
    sampler = BatchSampler([Source("rows", 12, 6)], [1.0], steps=2, seed=0)
    return Batches(sampler, [records], real_tokenizer(), data, seed=0)[0]


def test_the_scores_of_a_batch_are_shared_out_with_its_queries() -> None:
    records = Records.from_rows(ROWS, columns={"score": "score"})
    whole = batch_of(records)
    assert whole.scores is not None
    assert whole.to(torch.device("cpu")).scores is not None
    assert batch_of(Records.from_rows(ROWS, ignore="score")).scores is None
    run_on_ranks(2, check_share, records, whole)


def check_share(records: Records, whole: ContrastiveBatch) -> None:
    own = batch_of(records)
    assert own.scores is not None
    assert whole.scores is not None
    part = distributed.share_of(6, distributed.rank(), 2)
    assert torch.equal(own.query_hashes, whole.query_hashes[part])
    assert torch.equal(own.scores, whole.scores[part])
