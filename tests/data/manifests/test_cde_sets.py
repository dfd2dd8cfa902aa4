"""The manifests of contextual training's two stages, read from folders that stand for the hub."""

import warnings
from pathlib import Path

import pytest
from embedkit_cli.data import app, prepare
from support.cde_sets import (
    BGE,
    BGE_ID,
    NOMIC,
    NOMIC_ID,
    shards_of,
    source_of,
    write_bucket,
    write_hub,
)
from support.manifests import shipped_manifests
from support.tiny_bert import MINILM
from typer.testing import CliRunner

from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.pairs.records import Record, Records, open_records
from embedkit.errors import DataError, UserError

SEARCH = ("search_query: ", "search_document: ")
# By the first side; where a set is not searched, the other side has the same.
PREFIXES = {
    "search_query: ": {
        "nomic/amazonqa", "nomic/eli5", "nomic/gooaq", "nomic/paq", "nomic/squad",
        "nomic/yahoo_qa", "nomic/yahoo_title_answer", "nomic/yahoo_title_question",
        "bge/arguana", "bge/eli5", "bge/fever", "bge/fiqa", "bge/hotpotqa",
        "bge/msmarco_document", "bge/msmarco_passage", "bge/nq", "bge/quora", "bge/scidocsrr",
        "bge/squad", "bge/trivial",
    },
    "clustering: ": {
        "nomic/codesearch", "nomic/reddit_title_body", "nomic/s2orc_abstract_body",
        "nomic/s2orc_abstract_citation", "nomic/s2orc_citation_titles",
        "nomic/s2orc_title_abstract", "nomic/stackexchange_body_body",
        "nomic/stackexchange_duplicate_questions", "nomic/stackexchange_title_body",
        "bge/arXiv_abstract", "bge/arxiv_title", "bge/biorxiv_abstract", "bge/biorxiv_title",
        "bge/medrxiv_abstract", "bge/medrxiv_title", "bge/reddit_clustering",
        "bge/reddit_clusteringP2P", "bge/stack_exchange_clustering",
        "bge/stack_exchange_clusteringP2P", "bge/twenty_news_groups",
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what stands for the hub."""
    monkeypatch.setenv("EMBEDKIT_HUB", str(tmp_path / "hub"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub"


def rowless(name: str) -> Manifest:
    """The manifest without the rows of the true data set, which a stand-in has not."""
    return load_manifest(name).model_copy(update={"rows": None})


def check(records: Records, name: str) -> None:
    first = Record(f"{source_of(name).split} of otters", "otters.")
    assert (len(records), records[0], records.layout.unused) == (12, first, [])


def test_the_recipes_read_every_set_of_both_stages_once() -> None:
    assert (len(NOMIC), len(BGE)) == (29, 33)
    shipped = {name for name in shipped_manifests() if name.startswith(("nomic/", "bge/"))}
    assert {*NOMIC, *BGE} == shipped
    assert all(source_of(name).split == name.partition("/")[2] for name in shipped)
    assert {source_of(name).id for name in NOMIC} == {NOMIC_ID}
    assert {source_of(name).id for name in BGE} == {BGE_ID}


def test_every_set_has_the_prefixes_of_its_task() -> None:
    for name in (*NOMIC, *BGE):
        prompts = load_manifest(name).prompts
        first = next((each for each, of in PREFIXES.items() if name in of), "classification: ")
        searched = first == SEARCH[0] and name != "bge/quora"
        assert (prompts.query, prompts.document) == (SEARCH if searched else (first, first)), name


def test_no_set_of_nomic_has_more_rows_than_its_shards_hold() -> None:
    # 100,000 each.
    for name in NOMIC:
        rows, pattern = load_manifest(name).rows, shards_of(name).files
        shards = int(pattern.split("..")[1][:5]) + 1 if "{" in pattern else 1
        assert rows is None or rows <= 100_000 * shards, name


def test_a_set_of_either_stage_is_read_from_its_split(hub: Path) -> None:
    for name, id_ in (("nomic/paq", NOMIC_ID), ("bge/trivial", BGE_ID)):
        write_hub(hub, id_)
        check(open_records(rowless(name)), name)


@pytest.mark.slow
@pytest.mark.parametrize("id_", [NOMIC_ID, BGE_ID])
def test_all_sets_are_read_from_their_splits(hub: Path, id_: str) -> None:
    write_hub(hub, id_)
    for name in NOMIC if id_ == NOMIC_ID else BGE:
        check(open_records(rowless(name)), name)


@pytest.mark.parametrize(
    ("name", "id_", "column"),
    [
        ("nomic/paq", NOMIC_ID, "query"),
        ("nomic/paq", NOMIC_ID, "document"),
        ("bge/nli", BGE_ID, "query"),
        ("bge/nli", BGE_ID, "pos"),
    ],
)
def test_a_renamed_column_of_the_hub_is_refused(
    hub: Path, name: str, id_: str, column: str
) -> None:
    write_hub(hub, id_, renamed=column)
    with pytest.raises(DataError, match=rf"{name}: .*row 1: no column '{column}'"):
        open_records(rowless(name))


@pytest.mark.parametrize("name", NOMIC)
def test_shards_are_read_in_place_of_the_hub(hub: Path, name: str) -> None:
    write_bucket(hub, name)
    check(open_records(rowless(name)), name)


@pytest.mark.parametrize("name", NOMIC)
def test_a_renamed_column_of_the_shards_is_refused(hub: Path, name: str) -> None:
    there = {ours: column for column, ours in shards_of(name).rename.items()}
    for column in (there.get(each, each) for each in ("query", "document")):
        write_bucket(hub, name, renamed=column)
        message = rf"{name}: .*shard-00000\.jsonl\.gz, line 1: no column '{column}'"
        with pytest.raises(DataError, match=message):
            open_records(rowless(name))


def test_shards_of_another_number_of_rows_are_a_warning(hub: Path) -> None:
    write_bucket(hub, "nomic/paq")
    with pytest.warns(UserWarning, match="nomic/paq: 12 rows, expected 53874545; the manifest"):
        open_records(load_manifest("nomic/paq"))


def test_mined_negatives_are_not_read(hub: Path) -> None:
    write_hub(hub, BGE_ID)
    records = open_records(rowless("bge/nq"))
    assert (records[0].negatives, records.negatives_per_query) == ((), 0)


def test_a_recipe_s_sources_are_checked(hub: Path) -> None:
    for name in NOMIC:
        write_bucket(hub, name)
    result = CliRunner().invoke(app, ["check", "--recipe", "cde-stage1"])
    lines = [line.split("\t") for line in result.output.splitlines()]
    assert [line[:3] for line in lines] == [[name, "ok", "12 rows"] for name in NOMIC]
    assert result.exit_code == 0


def test_names_beside_a_recipe_are_refused() -> None:
    with pytest.raises(UserError, match=r"data check takes NAME\.\.\. or --recipe, not both"):
        CliRunner().invoke(app, ["check", "npr", "--recipe", "cde-stage1"], catch_exceptions=False)


def test_stage_one_is_prepared(
    hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for name in NOMIC:
        write_bucket(hub, name)
    with warnings.catch_warnings():
        # Of the rows, which a stand-in has not.
        warnings.simplefilter("ignore", UserWarning)
        prepare(recipe="cde-stage1", tokenizer=MINILM, workers=1)
    printed = capsys.readouterr()
    rows = [line.strip("│ ").split() for line in printed.out.splitlines() if line.startswith("│")]
    # A table of shares, and one of lengths.
    assert [row[0] for row in rows if row[0].startswith("nomic/")] == NOMIC * 2
    assert [line.partition(" ")[2] for line in printed.err.splitlines()] == [
        *(f"{name}: 12 rows" for name in NOMIC),
        *(f"{name}: tokenized" for name in NOMIC),
    ]
