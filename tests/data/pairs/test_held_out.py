import json
from pathlib import Path
from typing import Any

import pytest

from embedkit.data.concepts import is_held_out
from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.pairs.held_out import write_tasks
from embedkit.data.pairs.leaks import leaked
from embedkit.data.pairs.records import Records, open_records
from embedkit.errors import DataError, UserError

SHARE = 0.3


def row(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "query": f"the query of concept c{number:03}",
        "positive": f"the document of concept c{number:03}",
        "negatives": [
            f"the document of concept c{number + 1:03}",
            f"c{number + 2:03} of few words",
        ],
        "id": f"c{number:03}",
        "others": [f"c{number + 1:03}", f"c{number + 2:03}"],
        "topic": f"topic {number % 2}",
        **changes,
    }


ROWS = [row(number) for number in range(100)]
HELD_OUT = [number for number in range(100) if is_held_out(f"c{number:03}", SHARE)]
TRAINED_ON = [number for number in range(100) if number not in HELD_OUT]


def manifest_over(
    folder: Path, rows: list[dict[str, Any]], name: str = "mine", *, prompts: str = ""
) -> Manifest:
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / f"{name}.toml").write_text(f"""
        license = "CC0"
        source = {{ kind = "files", files = [{{ path = "{folder}/{name}.jsonl" }}] }}
        prompts = {{ {prompts} }}
        [columns]
        negatives = "negatives"
        concept = "id"
        negative_concepts = "others"
        topic = "topic"
        [held_out]
        share = {SHARE}
        tasks = [
          {{ name = "{name}_find", type = "retrieval" }},
          {{ name = "{name}_tell", type = "classification+clustering" }},
        ]
    """)
    return load_manifest(str(folder / f"{name}.toml"))


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def texts(path: Path) -> set[str]:
    return {line["text"] for line in lines(path)}


def test_about_the_share_is_held_out_and_a_smaller_share_is_part_of_it() -> None:
    assert 20 < len(HELD_OUT) < 40
    assert all(is_held_out(f"c{n:03}", 0.5) for n in HELD_OUT)


def test_concepts_are_held_out_whole(tmp_path: Path) -> None:
    manifest = manifest_over(tmp_path, ROWS)
    for split, numbers in (("train", TRAINED_ON), ("held_out", HELD_OUT)):
        records = open_records(manifest, "train" if split == "train" else "held_out")
        found = records.take(range(len(records)))
        assert [each.query for each in found] == [ROWS[n]["query"] for n in numbers]
        spoken_of = {text for each in found for text in each.negatives}
        on_the_other_side = set(range(102)) - set(numbers)
        for number in on_the_other_side & set(range(100)):
            assert f"the document of concept c{number:03}" not in spoken_of
            assert f"c{number:03} of few words" not in spoken_of


def test_what_holds_nothing_out_has_no_such_split(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"query": "a", "positive": "b"}')
    (tmp_path / "a.toml").write_text(
        f'source = {{ kind = "files", files = [{{ path = "{tmp_path}/a.jsonl" }}] }}'
    )
    manifest = load_manifest(str(tmp_path / "a.toml"))
    with pytest.raises(DataError, match="a: holds nothing out"):
        open_records(manifest, "held_out")
    with pytest.raises(DataError, match="no source of the mixture holds anything out"):
        write_tasks([manifest], tmp_path / "tasks")


def test_a_retrieval_task_asks_for_held_out_documents_among_held_out_ones(tmp_path: Path) -> None:
    find, _ = write_tasks([manifest_over(tmp_path, ROWS)], tmp_path / "tasks")
    corpus = {each["_id"]: each["text"] for each in lines(find / "corpus.jsonl")}
    queries = {each["_id"]: each["text"] for each in lines(find / "queries.jsonl")}
    head, *pairs = (find / "qrels.tsv").read_text().splitlines()
    assert head == "query-id\tcorpus-id\tscore"
    found = {
        (queries[query], corpus[document], score)
        for query, document, score in (pair.split("\t") for pair in pairs)
    }
    assert found == {(ROWS[n]["query"], ROWS[n]["positive"], "1") for n in HELD_OUT}
    siblings = {f"c{n + 2:03} of few words" for n in HELD_OUT if is_held_out(f"c{n + 2:03}", SHARE)}
    neighbours = {f"the document of concept c{n:03}" for n in HELD_OUT}
    assert neighbours | siblings <= set(corpus.values())
    assert all(lines(find / "corpus.jsonl")[0][key] == "" for key in ("title",))


def test_a_query_that_is_itself_a_document_is_not_asked(tmp_path: Path) -> None:
    first, second = (ROWS[n] for n in HELD_OUT[:2])
    twin = {**first, "query": second["positive"].upper()}
    find, _ = write_tasks([manifest_over(tmp_path, [*ROWS, twin])], tmp_path / "tasks")
    assert twin["query"] not in texts(find / "queries.jsonl")
    assert first["query"] in texts(find / "queries.jsonl")


def test_a_task_says_licence_and_prompts(tmp_path: Path) -> None:
    prompted = manifest_over(tmp_path, ROWS, prompts='query = "ask: "')
    find, tell = write_tasks([prompted], tmp_path / "tasks")
    assert json.loads((find / "task.json").read_text()) == {
        "type": "retrieval",
        "license": "CC0",
        "prompts": {"query": "ask: ", "document": ""},
    }
    assert json.loads((tell / "task.json").read_text()) == {
        "type": "classification+clustering",
        "license": "CC0",
    }


def test_classification_divides_concepts_and_leaves_out_unclear_texts(tmp_path: Path) -> None:
    first, second = HELD_OUT[:2]
    shared = [
        row(first, query="of two topics", topic="topic 0"),
        row(second, query="of two topics", topic="topic 1"),
    ]
    manifest = manifest_over(tmp_path, ROWS + shared)
    _, tell = write_tasks([manifest], tmp_path / "tasks")
    train, test = texts(tell / "train.jsonl"), texts(tell / "test.jsonl")
    assert "of two topics" not in train | test
    assert {text.rsplit(" ", 1)[1] for text in train}.isdisjoint(
        text.rsplit(" ", 1)[1] for text in test
    )
    for line in lines(tell / "train.jsonl") + lines(tell / "test.jsonl"):
        number = int(line["text"].rsplit(" c", 1)[1])
        assert line["label"] == f"topic {number % 2}"
    assert len(train | test) > len(HELD_OUT)


def test_a_text_that_any_training_text_contains_is_left_out(tmp_path: Path) -> None:
    manifest = manifest_over(tmp_path, ROWS)
    first, second, third = (ROWS[n] for n in HELD_OUT[:3])
    extra = Records.from_rows(
        [
            {"query": first["query"].upper(), "positive": "p"},
            {"query": "q", "positive": f"Here stands\n{second['positive']}, and more."},
            {"query": "q", "positive": "p", "negatives": [third["query"].replace(" ", "  ")]},
        ]
    )
    find, tell = write_tasks([manifest], tmp_path / "tasks", also_trained_on=[extra])
    evaluated = texts(find / "corpus.jsonl") | texts(find / "queries.jsonl")
    evaluated |= texts(tell / "train.jsonl") | texts(tell / "test.jsonl")
    assert not evaluated & {first["query"], second["positive"], third["query"]}
    assert second["query"] not in texts(find / "queries.jsonl")
    assert {ROWS[n]["query"] for n in HELD_OUT[3:]} <= evaluated


@pytest.mark.parametrize(
    ("text", "training", "found"),
    [
        ("one two three four", "One  TWO three\nfour", True),
        ("one two three four", "stone two three fourteen", True),
        ("one two three four", "one two, three four", False),
        ("one two three", "one two three", False),
        ("one two three four five six", "zero one two three four five six seven", True),
        ("one two three four five six", "one two three four five", False),
    ],
)
def test_a_leak_is_a_piece_of_a_training_text_of_four_words_or_more(
    text: str, training: str, found: bool
) -> None:
    assert leaked([text], [training]) == ({text} if found else set())


def test_two_spellings_of_a_leaked_text_are_both_found() -> None:
    evaluated = ["One two three four", "one two three FOUR", "one two three five"]
    assert leaked(evaluated, ["one two three four"]) == set(evaluated[:2])


def test_the_corpus_is_cut_but_keeps_what_the_queries_need(tmp_path: Path) -> None:
    find, tell = write_tasks([manifest_over(tmp_path, ROWS)], tmp_path / "tasks", max_documents=8)
    corpus = {each["_id"] for each in lines(find / "corpus.jsonl")}
    _, *pairs = (find / "qrels.tsv").read_text().splitlines()
    assert len(corpus) == 8
    assert pairs
    assert {pair.split("\t")[1] for pair in pairs} <= corpus
    assert len(lines(tell / "train.jsonl") + lines(tell / "test.jsonl")) <= 8


def test_the_same_mixture_gives_the_same_bytes(tmp_path: Path) -> None:
    manifest = manifest_over(tmp_path, ROWS)
    first = write_tasks([manifest], tmp_path / "first", 20)
    reordered = manifest_over(tmp_path, ROWS[::-1])
    second = write_tasks([reordered], tmp_path / "second", 20)
    for one, two in zip(first, second, strict=True):
        for file in one.iterdir():
            assert file.read_bytes() == (two / file.name).read_bytes(), file.name


def test_tasks_are_replaced_but_nothing_else_is_overwritten(tmp_path: Path) -> None:
    manifest = manifest_over(tmp_path, ROWS)
    output = tmp_path / "tasks"
    write_tasks([manifest], output, 20)
    assert {path.name for path in write_tasks([manifest], output)} == {"mine_find", "mine_tell"}
    assert len(lines(output / "mine_find" / "corpus.jsonl")) > 20
    (output / "own").mkdir()
    (output / "own" / "task.json").write_text('{"type": "sts"}')
    with pytest.raises(UserError, match=r"changed: own/task\.json; move them elsewhere, or choose"):
        write_tasks([manifest], output)
    assert (output / "own" / "task.json").read_text() == '{"type": "sts"}'


def test_the_tasks_of_somebody_else_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "tasks" / "own").mkdir(parents=True)
    (tmp_path / "tasks" / "own" / "task.json").write_text('{"type": "sts"}')
    with pytest.raises(UserError, match=r"holds no embedkit\.json .*; delete it yourself"):
        write_tasks([manifest_over(tmp_path, ROWS)], tmp_path / "tasks")
    assert (tmp_path / "tasks" / "own" / "task.json").is_file()


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text("")
    with pytest.raises(UserError, match="is a file; choose another --output"):
        write_tasks([manifest_over(tmp_path, ROWS)], tmp_path / "tasks")


def test_a_task_without_texts_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    manifest = manifest_over(tmp_path, [ROWS[n] for n in TRAINED_ON])
    with pytest.raises(DataError, match="mine: no text is left for the held-out task mine_find"):
        write_tasks([manifest], tmp_path / "tasks")
    assert {path.name for path in tmp_path.iterdir()} == {"mine.jsonl", "mine.toml"}


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    manifest = manifest_over(tmp_path, ROWS)
    with pytest.raises(DataError, match="another manifest has a task mine_find"):
        write_tasks([manifest, manifest], tmp_path / "tasks")
