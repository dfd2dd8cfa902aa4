"""What the lines under a table say of prompts."""

from embedkit.evaluation.prompts_used import listed, origins

LONG = "Given a question, retrieve detailed question descriptions from Stackexchange: "


def test_tasks_without_prompts_take_one_line() -> None:
    assert listed({"STS12": {"text": ""}, "NQ": {"query": "", "document": ""}}) == []
    assert origins(["none", "none"]) == "prompts: none"
    assert (
        origins(["none", "the paper's", "none"])
        == "prompts: none for 2 tasks, the paper's for 1 task"
    )


def test_tasks_are_named_behind_their_prompt() -> None:
    e5 = {"query": "query: ", "document": "passage: "}
    alike = dict.fromkeys(e5, "ask: ")
    tasks = {"STS12": {"text": ""}, "NQ": e5, "FEVER": e5, "SciFact": alike}
    assert listed(tasks | {"HotpotQA": {"query": "query: ", "document": ""}}) == [
        "  none: STS12",
        "  query 'query: ', document 'passage: ': NQ, FEVER",
        "  'ask: ': SciFact",
        "  query 'query: ', document none: HotpotQA",
    ]


def test_an_aggregate_is_one_task_if_its_parts_are_alike() -> None:
    sides = [
        f"CQADupstack{part}Retrieval-{side}" for part in "AB" for side in ("query", "document")
    ]
    alike = dict.fromkeys(sides, "ask: ")
    assert listed({"CQADupstackRetrieval": alike}) == ["  'ask: ': CQADupstackRetrieval"]
    assert listed({"CQADupstackRetrieval": alike | {sides[0]: "find: "}}) == [
        "  query 'find: ', document 'ask: ': CQADupstackARetrieval",
        "  'ask: ': CQADupstackBRetrieval",
    ]


def test_long_prompts_are_whole_within_a_hundred_columns() -> None:
    names = [f"CQADupstack{number}Retrieval" for number in range(9)]
    (lines,) = listed({name: {"query": LONG, "document": LONG} for name in names})
    assert max(map(len, lines.splitlines())) <= 100
    told = " ".join(lines.split())
    assert repr(LONG) in told
    assert all(name in told for name in names)
