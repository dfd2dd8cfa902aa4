"""``max_rows`` of a manifest: training reads a sample of the rows."""

import json
import pickle
from collections import Counter
from pathlib import Path

import pytest
from embedkit_cli.data import app
from typer.testing import CliRunner

from embedkit.config import validated
from embedkit.data.concepts import is_held_out
from embedkit.data.manifests.manifest import Manifest
from embedkit.data.pairs.records import Records, open_records
from embedkit.errors import DataError
from embedkit.storage import cache
from embedkit.storage.hashing import sha256_of_file

ROWS = 3000
QUERIES = [f"query {number}" for number in range(ROWS)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "pairs.jsonl"
    rows = (
        {"query": query, "positive": f"answer {number}", "concept": str(number)}
        for number, query in enumerate(QUERIES)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def manifest(file: Path, **keys: object) -> Manifest:
    source = {"kind": "files", "files": [{"path": str(file)}]}
    ignore = () if "held_out" in keys else ("concept",)
    tables = {"name": "mine", "source": source, "rows": ROWS, "ignore": ignore, **keys}
    return validated(Manifest, tables, "mine.toml")


def queries(records: Records) -> list[str]:
    return [query for (query,) in records.table.scan(["query"])]


def test_a_sample_has_so_many_rows_each_once_and_in_order(file: Path) -> None:
    records = open_records(manifest(file, max_rows=1500))
    drawn = queries(records)
    assert len(records) == len(drawn) == len(set(drawn)) == 1500
    assert drawn == [query for query in QUERIES if query in set(drawn)]
    assert [record.query for record in records.take(range(1500))] == drawn
    assert list(records.texts())[::2] == drawn
    with pytest.raises(IndexError, match="row 1500 of 1500"):
        records[1500]
    assert queries(pickle.loads(pickle.dumps(records))) == drawn


def test_a_smaller_sample_is_part_of_a_larger_and_another_seed_draws_other_rows(
    file: Path,
) -> None:
    small, large = (set(queries(open_records(manifest(file, max_rows=n)))) for n in (300, 900))
    assert small < large
    other = set(queries(open_records(manifest(file, max_rows=900, max_rows_seed=1))))
    # Two draws of 30 % of the rows share about 9 % of them.
    assert 200 < len(other & large) < 340


def test_every_row_is_as_likely_as_any_other(file: Path) -> None:
    drawn = Counter[int]()
    for seed in range(200):
        records = open_records(manifest(file, max_rows=600, max_rows_seed=seed))
        drawn.update(QUERIES.index(query) // 300 for query in queries(records)[::10])
    # 12,000 rows of 10 equal parts of the file; a standard deviation is 33.
    assert all(abs(count - 1200) < 150 for count in drawn.values())


def test_a_source_of_fewer_rows_is_read_whole(file: Path) -> None:
    whole = open_records(manifest(file))
    for limit in (ROWS, ROWS + 1):
        assert open_records(manifest(file, max_rows=limit)).fingerprint == whole.fingerprint


def test_the_fingerprint_follows_the_sample_and_all_samples_share_the_rows_on_disk(
    file: Path,
) -> None:
    chosen = [{}, {"max_rows": 10}, {"max_rows": 11}, {"max_rows": 10, "max_rows_seed": 1}]
    assert len({open_records(manifest(file, **keys)).fingerprint for keys in chosen}) == 4
    assert len(list((cache.root() / "records").glob("*/train.arrow"))) == 1


def test_rows_that_are_held_out_are_not_sampled(file: Path) -> None:
    held_out = {"share": 0.1, "tasks": [{"name": "mine", "type": "retrieval"}]}
    keys = {"held_out": held_out, "columns": {"concept": "concept"}}
    whole, sampled = manifest(file, **keys), manifest(file, **keys, max_rows=50)
    expected = queries(open_records(whole, "held_out"))
    assert queries(open_records(sampled, "held_out")) == expected
    assert 200 < len(expected) < 400
    trained = queries(open_records(sampled))
    assert len(trained) == 50
    assert not any(is_held_out(query.split()[1], 0.1) for query in trained)


def test_stated_rows_are_those_of_the_whole_source(file: Path) -> None:
    pinned = {"path": str(file), "sha256": sha256_of_file(file)}
    source = {"kind": "files", "files": [pinned]}
    assert len(open_records(manifest(file, source=source, max_rows=50))) == 50
    with pytest.raises(DataError, match="mine: 3000 rows, expected 50"):
        open_records(manifest(file, source=source, max_rows=50, rows=50))


def test_commands_tell_of_the_sample(file: Path, tmp_path: Path) -> None:
    path, recipe = tmp_path / "mine.toml", tmp_path / "recipe.toml"
    source = f'source = {{ kind = "files", files = [{{ path = "{file}" }}] }}'
    path.write_text(f'rows = {ROWS}\nmax_rows = 400\nignore = ["concept"]\n{source}\n')
    check = CliRunner().invoke(app, ["check", str(path)], catch_exceptions=False)
    assert check.stdout == f"{path}\tok\t400 rows drawn of 3000\n"
    show = CliRunner().invoke(app, ["show", str(path)], catch_exceptions=False)
    assert "400 drawn of 3000" in show.stdout
    data = f'data = {{ batch_size = 8, mix = [{{ manifest = "{path}" }}] }}'
    recipe.write_text(f'steps = 50\nmodel = "starter"\n{data}\noptim = {{ lr = 1e-4 }}\n')
    # 50 batches of 8 are one pass.
    for rows in ([], ["--rows", "mine=9000"]):
        words = ["shares", "--recipe", str(recipe), *rows]
        shares = CliRunner().invoke(app, words, catch_exceptions=False)
        assert shares.stdout.splitlines()[1].split("\t")[1] == "400"
        assert shares.stdout.endswith("\t1.00\n")
