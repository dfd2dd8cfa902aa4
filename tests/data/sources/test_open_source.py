import csv
import gzip
import hashlib
import io
import json
import lzma
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.pairs.records import Record, open_records
from embedkit.data.sources.files import rows
from embedkit.data.sources.hub import DatasetLocation, check_revision
from embedkit.errors import DataError

ROWS = [{"query": "a, b", "positive": "é"}, {"query": 'say "c"', "positive": "d"}]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def as_jsonl() -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in ROWS).encode()


def as_csv() -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["query", "positive"])
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode("utf-8-sig")


def as_tsv() -> bytes:
    return "\n".join(["query\tpositive", *("\t".join(row.values()) for row in ROWS)]).encode()


def as_zstd(content: bytes) -> bytes:
    target = pa.BufferOutputStream()
    with pa.CompressedOutputStream(target, "zstd") as stream:
        stream.write(content)
    return bytes(target.getvalue())


FORMATS = {".jsonl": as_jsonl(), ".csv": as_csv(), ".tsv": as_tsv()}
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": as_zstd,
}


def manifest_of(folder: Path, source: str, more: str = "") -> Manifest:
    path = folder / "mine.toml"
    path.write_text(f"{more}\nsource = {source}\n")
    return load_manifest(str(path))


def files_manifest(path: Path, more: str = "", sha256: str | None = None) -> Manifest:
    hashed = f', sha256 = "{sha256}"' if sha256 else ""
    source = f'{{ kind = "files", files = [{{ path = "{path}"{hashed} }}] }}'
    return manifest_of(path.parent, source, more)


def package_manifest(folder: Path, more: str = "", **changes: str) -> Manifest:
    source = {
        "kind": "package",
        "distribution": "boltons",
        "version": metadata.version("boltons"),
        "path": "boltons",
        "sha256": "b8ef7c7fa58feef4d1529474664ac1b920c4205a4b6102e32a233400e635389c",
        **changes,
    }
    fields = ", ".join(f'{key} = "{value}"' for key, value in source.items())
    return manifest_of(folder, f'{{ {fields}, reader = {{ kind = "docstring" }} }}', more)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("suffix", FORMATS)
def test_every_text_format_gives_the_same_rows(
    tmp_path: Path, suffix: str, compression: str
) -> None:
    path = tmp_path / f"pairs.v1{suffix}{compression}"
    path.write_bytes(COMPRESSIONS[compression](FORMATS[suffix]))
    assert [row for _, row in rows(path)] == ROWS


def test_parquet_gives_nested_rows_with_their_numbers(tmp_path: Path) -> None:
    nested = [{"set": {"query": "a", "pos": ["b"]}}, {"set": {"query": "c", "pos": []}}]
    pq.write_table(pa.Table.from_pylist(nested), tmp_path / "pairs.parquet")
    assert list(rows(tmp_path / "pairs.parquet")) == [(1, nested[0]), (2, nested[1])]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n\n{"a": \n', r"a\.jsonl, line 3: not valid JSON"),
        ("a.jsonl", b'{"a": 1}\n[1]\n', r"line 2: expected a JSON object, found \[1\]"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xe9"}\n', r"line 2: not UTF-8 at byte 7"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", r"line 3: 3 values under 2 column names"),
        ("a.csv", b'a,b\n1,"2\n', r"line 2: not valid csv"),
        ("a.tsv", b"a\tb\n1\n", r"line 2: 1 values under 2 column names"),
        ("a.text", b"a", r"a\.text, of unknown format: use \.jsonl, \.json, \.csv, \.tsv"),
        ("a.jsonl.gz", gzip.compress(as_jsonl() * 99)[:-20], r"a\.jsonl\.gz: unreadable or cut"),
        ("a.jsonl.xz", lzma.compress(as_jsonl() * 99)[:-20], r"a\.jsonl\.xz: unreadable or cut"),
        ("a.jsonl.zst", as_zstd(as_jsonl() * 99)[:-20], r"a\.jsonl\.zst: unreadable or cut"),
        ("a.jsonl.gz", b"no gzip at all", r"a\.jsonl\.gz: unreadable or cut short"),
        ("a.parquet", b"PAR1 and no more", r"a\.parquet: unreadable or cut short"),
    ],
)
def test_a_bad_file_is_an_error_with_its_place(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(rows(tmp_path / name))


def test_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    for name in ("one", "two"):
        row = {"query": name, "positive": name}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    listed = ", ".join(f'{{ path = "{tmp_path}/{name}.jsonl" }}' for name in ("two", "one"))
    records = open_records(manifest_of(tmp_path, f'{{ kind = "files", files = [{listed}] }}'))
    assert [each.query for each in records.take([0, 1])] == ["two", "one"]


def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(as_jsonl())
    right = hashlib.sha256(as_jsonl()).hexdigest()
    assert len(open_records(files_manifest(path, sha256=right))) == 2
    path.write_bytes(as_jsonl() + b"\n")
    with pytest.raises(DataError, match=rf"mine: .*pairs\.jsonl: sha256 is \w+, expected {right}"):
        open_records(files_manifest(path, sha256=right))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine: .*absent\.jsonl: no such file"):
        open_records(files_manifest(tmp_path / "absent.jsonl"))


def test_a_package_that_is_not_installed_is_answered_with_the_command(tmp_path: Path) -> None:
    manifest = package_manifest(tmp_path, distribution="no-such-package", version="1.2")
    with pytest.raises(DataError, match=r'pip install "no-such-package==1\.2"'):
        open_records(manifest)


def test_another_version_is_a_warning_and_is_not_checked(tmp_path: Path) -> None:
    manifest = package_manifest(tmp_path, "rows = 7", version="24.0.0", sha256="0" * 64)
    installed = metadata.version("boltons")
    message = f"boltons {installed} is installed, the manifest is written for 24.0.0"
    with pytest.warns(UserWarning, match=message):
        assert len(open_records(manifest)) > 7


def test_a_package_with_other_content_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine: boltons of boltons==\S+ has sha256 b8ef"):
        open_records(package_manifest(tmp_path, sha256="0" * 64))


def test_a_package_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine: boltons \S+ has no bolts"):
        open_records(package_manifest(tmp_path, path="bolts"))


def test_a_wrong_number_of_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(as_jsonl())
    for _ in range(2):  # The second time from the cache.
        with pytest.raises(DataError, match="mine: 2 rows, expected 3"):
            open_records(files_manifest(path, "rows = 3"))


def hub_manifest(folder: Path, id_: str) -> Manifest:
    return manifest_of(folder, f'{{ kind = "hub", id = "{id_}", revision = "{COMMIT}" }}')


@pytest.fixture
def _own_datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.mark.usefixtures("_own_datasets_cache")
def test_a_folder_stands_for_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "org_pairs"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(as_jsonl())
    manifest = hub_manifest(tmp_path, str(folder))
    assert open_records(manifest)[1] == Record('say "c"', "d")
    (folder / "train.jsonl").write_bytes(as_jsonl() * 2)
    assert len(open_records(manifest)) == 4


@pytest.mark.usefixtures("_own_datasets_cache")
def test_a_hub_out_of_reach_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    manifest = hub_manifest(tmp_path, "no-such-org/no-such-pairs")
    with pytest.raises(DataError, match=r"mine: cannot open no-such-org/.*EMBEDKIT_HUB") as caught:
        open_records(manifest)
    assert "\n" not in str(caught.value)


def test_another_revision_in_the_hubs_cache_is_refused() -> None:
    at = DatasetLocation("org/pairs", COMMIT, pinned=True)
    url: Callable[[str], dict[str, Any]] = lambda commit: {  # noqa: E731
        f"hf://datasets/org/pairs@{commit}/train.jsonl": None
    }
    check_revision(at, url(COMMIT))
    with pytest.raises(DataError, match=rf"is not revision {COMMIT}, but hf://\S+@ffff"):
        check_revision(at, url("f" * 40))
