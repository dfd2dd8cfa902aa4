"""The manifests of the hub's data sets, read from folders that stand for them."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.hub_sets import FIXTURES, write_data_set

from embedkit.data.manifests.manifest import Manifest, SameLabel, load_manifest
from embedkit.data.manifests.sources import HubSource
from embedkit.data.pairs.records import Record, Records, open_records
from embedkit.errors import DataError
from embedkit.storage import cache
from embedkit.tokens.prompts import as_prefix

# Table 7 of the paper.
INSTRUCTIONS = {
    "agnews": "Given a news title, retrieve relevant articles.",
    "allnli": "Given a premise, retrieve a hypothesis that is entailed by the premise.",
    "amazonqa": "Given a question, retrieve Amazon posts that answer the question.",
    "concurrentqa": (
        "Given a multi-hop question, retrieve documents that can help answer the question."
    ),
    "fever": "Given a claim, retrieve documents that support or refute the claim.",
    "githubissue": (
        "Given a question, retrieve questions from Github that are duplicates to the "
        "given question."
    ),
    "gooaq": "Given a question, retrieve relevant documents that best answer the question.",
    "medmcqa": "Given a medical question, retrieve relevant passages that answer the question.",
    "medmcqa_clust": (
        "Identify the main category of medical exams based on their questions and answers."
    ),
    "msmarco": "Given a web search query, retrieve relevant passages that answer the query.",
    "npr": "Given a news title, retrieve relevant articles.",
    "paq": "Given a question, retrieve Wikipedia passages that answer the question.",
    "pubmedqa": "Given a medical question, retrieve documents that best answer the question.",
    "qqp": (
        "Given a question, retrieve questions from Quora forum that are semantically "
        "equivalent to the given question."
    ),
    "sentencecomp": "Given a sentence, retrieve semantically equivalent summaries.",
    "stackexchange": (
        "Given a Stack Exchange post, retrieve posts that are duplicates to the given post."
    ),
    "stackoverflow": "Retrieve duplicate questions from StackOverflow forum.",
    "sts12": "Retrieve semantically similar text.",
    "stsbenchmark": "Retrieve semantically similar text.",
    "triviaqa": "Given a question, retrieve documents that answer the question.",
    "wikihow": "Given a Wikihow post, retrieve titles that best summarize the post.",
    "yahoo_clust": "Identify the main topic of Yahoo posts based on their titles and answers.",
}

# Rows of the stand-in, and the first of them.
TRIPLET = Record("anchor of otters", "positive of otters", ("negative of otters",))
NEGATIVES = tuple(f"negative_{number} of otters" for number in range(1, 21))
HOPS = tuple(f"wrong {place} of otters" for place in range(6))
OTHERS = tuple(f"other {place} for otters" for place in range(30))
EXPECTED = {
    "agnews": (12, Record("title of otters", "description of otters")),
    "allnli": (12, TRIPLET),
    "amazonqa": (12, Record("What do otters need?", "answer 0 for otters")),
    "concurrentqa": (24, Record("What do otters need?", "hop 0 of otters", HOPS)),
    "fever": (11, Record("Is a so?", "otters All of otters.")),
    "githubissue": (12, Record("anchor of otters", "positive of otters")),
    "gooaq": (12, Record("question of otters", "answer of otters", NEGATIVES[:5])),
    "medmcqa": (9, Record("question of otters", "It follows from otters.")),
    "msmarco": (11, Record("Is a so?", "All of otters.")),
    "npr": (12, Record("title of otters", "body of otters")),
    "paq": (12, Record("What do otters need?", "They need 0.")),
    "pubmedqa": (12, Record("anchor of otters", "positive of otters", NEGATIVES)),
    "qqp": (12, Record("What do otters need?", "same 0 for otters")),
    "sentencecomp": (12, Record("otters, it is said, are many.", "otters are many.")),
    "stackexchange": (24, Record("body1 of otters", "body2 of otters")),
    "stackoverflow": (12, Record("What do otters need?", "same 0 for otters", OTHERS)),
    "sts12": (3, Record("sentence1 of canals", "sentence2 of canals")),
    "stsbenchmark": (3, Record("sentence1 of canals", "sentence2 of canals")),
    "triviaqa": (12, TRIPLET),
    "wikihow": (12, Record("text of otters", "summary of otters")),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDKIT_HUB", str(tmp_path / "hub"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


def hub_source(manifest: Manifest) -> HubSource:
    assert isinstance(manifest.source, HubSource)
    return manifest.source


def opened(name: str, tmp_path: Path) -> Records:
    manifest = load_manifest(name)
    write_data_set(tmp_path / "hub", hub_source(manifest).id)
    # The stand-in has not as many rows as the data set, which is only a warning.
    return open_records(manifest.model_copy(update={"rows": None, "rows_read": None}))


def used(manifest: Manifest) -> set[str]:
    """The names of all fields that the manifest speaks of, as they are on the hub."""
    source, columns = hub_source(manifest), manifest.columns
    assert columns
    paths = [*columns.query, *columns.negatives, columns.label or "", manifest.filter or ""]
    paths += () if manifest.same_label else columns.positive
    names = {name for path in paths for name in re.findall(r"[a-z][\w-]*", path)}
    for config in source.configs:
        names = (names - set(config.rename.values())) | config.rename.keys()
    return names | {join.key for join in source.joins}


def test_every_row_of_table_7_has_its_instruction_word_for_word() -> None:
    for name, instruction in INSTRUCTIONS.items():
        prompts = load_manifest(name).prompts
        assert (prompts.query, prompts.document) == (as_prefix(instruction),) * 2


def test_every_stand_in_is_of_a_manifest() -> None:
    assert {hub_source(load_manifest(name)).id for name in INSTRUCTIONS} == FIXTURES.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_manifest_reads_the_published_columns(name: str, tmp_path: Path) -> None:
    records = opened(name, tmp_path)
    assert (len(records), records[0]) == EXPECTED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_a_renamed_column_is_refused(name: str, tmp_path: Path) -> None:
    manifest = load_manifest(name)
    for column in sorted(used(manifest)):
        write_data_set(tmp_path / "hub", hub_source(manifest).id, renamed=column)
        with pytest.raises(DataError, match=rf"{name}: .*no (column|field) '{re.escape(column)}'"):
            open_records(manifest)


def test_five_hard_negatives_are_drawn_of_three_sets_and_one_of_the_others() -> None:
    manifests = [load_manifest(name) for name in INSTRUCTIONS]
    drawn = {
        each.name: each.negatives_per_query
        for each in manifests
        if each.columns and each.columns.negatives
    }
    assert drawn == {
        "allnli": 1, "concurrentqa": 5, "gooaq": 5, "pubmedqa": 5,
        "qqp": 1, "stackoverflow": 1, "triviaqa": 1,
    }  # fmt: skip


def test_configurations_are_read_one_after_the_other(tmp_path: Path) -> None:
    records = opened("stackexchange", tmp_path)
    assert records[12] == Record("post1 of otters", "post2 of otters")


def test_a_query_with_several_documents_makes_several_rows(tmp_path: Path) -> None:
    records = opened("fever", tmp_path)
    assert records[1] == Record("Is a so?", "tides All of tides.")
    assert records[2] == Record("Is b so?", "violins All of violins.")


def test_each_hop_is_a_row(tmp_path: Path) -> None:
    records = opened("concurrentqa", tmp_path)
    assert [each.positive for each in records.take([0, 1, 2])] == [
        "hop 0 of otters", "hop 1 of otters", "hop 0 of tides"
    ]  # fmt: skip


def test_a_list_of_negatives_may_be_of_any_length(tmp_path: Path) -> None:
    records = opened("qqp", tmp_path)
    assert [len(each.negatives) for each in records.take(range(12))] == list(range(12))


@pytest.mark.parametrize(("name", "labels"), [("medmcqa_clust", 3), ("yahoo_clust", 5)])
def test_a_positive_is_another_text_of_the_label(name: str, labels: int, tmp_path: Path) -> None:
    records = opened(name, tmp_path).take(range(12))
    label_of = {each.query: each.label for each in records}
    assert len(label_of) == 12
    assert len(set(label_of.values())) == labels
    assert {each.positive for each in records} == label_of.keys()
    assert all(each.query != each.positive for each in records)
    assert all(label_of[each.positive] == each.label for each in records)
    assert any(first.label == second.label for first, second in pairwise(records))


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_every_published_column_is_used_or_ignored(name: str, tmp_path: Path) -> None:
    assert opened(name, tmp_path).layout.unused == []


def test_another_seed_makes_other_pairs(tmp_path: Path) -> None:
    first = opened("yahoo_clust", tmp_path).take(range(12))
    manifest = load_manifest("yahoo_clust").model_copy(update={"same_label": SameLabel(seed=1)})
    assert set(open_records(manifest).take(range(12))) != set(first)


def test_a_stand_in_of_another_size_is_a_warning(tmp_path: Path) -> None:
    write_data_set(tmp_path / "hub", "sentence-transformers/npr")
    with pytest.warns(UserWarning, match="npr: 12 rows, expected 594384; the manifest pins no"):
        assert len(open_records(load_manifest("npr"))) == 12


def test_what_is_read_of_a_set_is_counted_before_its_filter(tmp_path: Path) -> None:
    write_data_set(tmp_path / "hub", "mteb/sts12-sts")
    with pytest.warns(UserWarning, match="sts12: 12 rows read, expected 2234; the manifest pins"):
        assert len(open_records(load_manifest("sts12"))) < 12


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_a_set_of_table_7_states_its_rows(name: str) -> None:
    manifest = load_manifest(name)
    # Of these two no count has been published.
    unknown = name in {"gooaq", "pubmedqa"}
    assert (manifest.rows is None and manifest.rows_read is None) == unknown


def test_labels_arrive_where_equal_ones_are_no_negatives(tmp_path: Path) -> None:
    named = {
        name: columns.label
        for name in INSTRUCTIONS
        if (columns := load_manifest(name).columns) and columns.label
    }
    assert named == {"medmcqa_clust": "subject_name", "yahoo_clust": "topic"}
    assert all(opened(name, tmp_path).has_labels for name in named)


def mine(tmp_path: Path, source: str, more: str = "") -> Manifest:
    path = tmp_path / "mine.toml"
    path.write_text(f'{more}\n[source]\nkind = "hub"\n{source}\n')
    return load_manifest(str(path))


def test_an_unknown_configuration_of_a_folder_is_one_line(tmp_path: Path) -> None:
    write_data_set(tmp_path / "hub", "sentence-transformers/npr")
    with pytest.raises(DataError, match=r"mine: cannot open .*npr \(.*'pears'") as caught:
        open_records(mine(tmp_path, 'id = "sentence-transformers/npr"\nconfig = "pears"'))
    assert "\n" not in str(caught.value)


def test_a_folder_that_changes_is_read_anew(tmp_path: Path) -> None:
    assert len(opened("npr", tmp_path)) == 12
    (path,) = (tmp_path / "hub/sentence-transformers/npr/pair").iterdir()
    rows = [{"title": "t", "body": "b"}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.warns(UserWarning, match="npr: 1 rows"):
        assert open_records(load_manifest("npr"))[0] == Record("t", "b")


def write_join(tmp_path: Path, pairs: list[tuple[Any, Any]]) -> Manifest:
    folder = tmp_path / "hub/org/joined"
    folder.mkdir(parents=True)
    tables = {
        "pairs": [{"q": query, "d": document} for query, document in pairs],
        "texts": [{"id": number, "text": f"text {number}"} for number in (1, 2, 3)],
    }
    tables["texts"].append({"id": 1, "text": "again"})
    for name, rows in tables.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    listed = [{"config_name": name, "data_files": f"{name}.jsonl"} for name in tables]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(listed)}\n---\n")
    join = '{{ column = "{}", config = "texts", split = "train", key = "id" }}'
    source = (
        f'id = "org/joined"\nconfig = "pairs"\njoins = [{join.format("q")}, {join.format("d")}]'
    )
    return mine(tmp_path, source, 'columns = { query = "q.text", positive = "d.text" }')


def test_a_join_takes_the_first_row_of_an_id_written_either_way(tmp_path: Path) -> None:
    records = open_records(write_join(tmp_path, [("3", 1), ("1", 2)]))
    assert [records[0], records[1]] == [Record("text 3", "text 1"), Record("text 1", "text 2")]
    assert not list((cache.root() / "joins").iterdir())


def test_an_id_that_names_no_row_is_empty(tmp_path: Path) -> None:
    manifest = write_join(tmp_path, [(1, 2), (1, 9)])
    with pytest.raises(DataError, match=r"row 2: d\.text is empty: fill it in, or set drop_empty"):
        open_records(manifest)
    assert len(open_records(manifest.model_copy(update={"drop_empty": True}))) == 1


def test_a_hub_folder_that_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match=r"npr: EMBEDKIT_HUB is .*/hub, which is no folder"):
        open_records(load_manifest("npr"))
