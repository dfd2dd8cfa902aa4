"""Instructions in a file of the user's, by mteb's keys."""

import json
import warnings
from pathlib import Path

import pytest
import tomli_w
from embedkit_cli.app import app
from sentence_transformers import SentenceTransformer
from support.encoders import Encoder
from support.small_runs import write_small_recipe
from support.task_folders import write_task
from typer.testing import CliRunner

import embedkit
from embedkit.data.manifests.manifest import load_manifest
from embedkit.errors import UserError
from embedkit.evaluation.mteb.instructions import Instructions
from embedkit.evaluation.mteb.task_prompts import resolve_prompts
from embedkit.evaluation.mteb.task_selection import check_held_out, select_tasks, sides_by_name
from embedkit.evaluation.summary import Summary
from embedkit.evaluation.task_folders.reading import read_task_folders
from embedkit.recipe import Evaluation


def written(path: Path, prefixes: object) -> Path:
    text = json.dumps(prefixes) if path.suffix == ".json" else tomli_w.dumps(dict(prefixes))  # type: ignore[call-overload]
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["told.toml", "told.json"])
def test_a_file_names_tasks_or_their_sides(
    name: str, tmp_path: Path, noise_model: SentenceTransformer
) -> None:
    prefixes = {"NQ-query": "ask: ", "STS12": "alike: ", "FEVER": "claim: ", "SciFact": ""}
    told = Instructions.asked_for(str(written(tmp_path / name, prefixes)))
    model = Encoder(noise_model, "m", {"query": "q: ", "document": "d: "})
    by_name = {
        task.metadata.name: resolve_prompts(task, model, told)
        for task in select_tasks(tasks=["NQ", "STS12", "STS13", "FEVER", "SciFact"])
    }
    # A side without a key keeps the model's own prompt.
    assert by_name["NQ"] == ({"query": "ask: ", "document": "d: "}, "the instructions file's")
    assert by_name["STS12"] == ({"text": "alike: "}, "the instructions file's")
    assert by_name["STS13"] == ({"text": ""}, "none")
    assert by_name["FEVER"].by_side == {"query": "claim: ", "document": "claim: "}
    assert by_name["SciFact"] == ({"query": "", "document": ""}, "none")


def test_a_file_may_name_a_task_folder_and_then_comes_before_its_own_prompts(
    tmp_path: Path, noise_model: SentenceTransformer
) -> None:
    write_task(tmp_path / "mine", "retrieval", prompts={"query": "own: ", "document": "page: "})
    (mine,) = read_task_folders(tmp_path / "mine")
    file = written(tmp_path / "told.toml", {"mine-query": "told: "})
    by_side, origin = resolve_prompts(
        mine, Encoder(noise_model, "m"), Instructions.asked_for(str(file))
    )
    assert (by_side, origin) == (
        {"query": "told: ", "document": "page: "},
        "the instructions file's",
    )


def test_keys_that_no_task_has_are_told_in_one_line(tmp_path: Path) -> None:
    keys = ["STS-12", *(f"other{number}" for number in range(6))]
    file = written(tmp_path / "told.json", dict.fromkeys(["STS12", "STS13-query", *keys], "x: "))
    tasks = select_tasks(tasks=["STS12", "STS13"])
    with pytest.warns(UserWarning, match="no task that is scored is called") as heard:
        Instructions.asked_for(str(file)).check(sides_by_name(tasks))
    (line,) = heard
    # STS13 has no sides.
    assert str(line.message).endswith("STS13-query, STS-12, other0, other1, other2 and 3 more")


def test_keys_of_held_out_tasks_are_verified_before_the_run_starts(
    tiny_model: Path, tmp_path: Path
) -> None:
    small_recipe = write_small_recipe(tmp_path, tiny_model)
    manifest = tmp_path / "pairs.toml"
    held_out = '{ share = 0.2, tasks = [{ name = "found", type = "retrieval" }] }'
    text = manifest.read_text().replace('negatives = "negatives"', 'concept = "query"')
    manifest.write_text(f'held_out = {held_out}\nignore = ["negatives"]\n{text}')
    file = written(tmp_path / "told.toml", {"fund-query": "q: "})
    settings = ["evaluation.held_out=true", f'evaluation.instructions="{file}"', "steps=1"]
    recipe = embedkit.load_recipe(str(small_recipe), [*settings, "optim.warmup_steps=0"])
    with pytest.raises(UserError, match=r"names none of the tasks .* such as found-query"):
        embedkit.finetune(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_keys_may_be_of_held_out_tasks_and_of_others(tmp_path: Path) -> None:
    manifests = [load_manifest("hpo_synonym"), load_manifest("icd10_inclusion")]
    held_out = [task for each in manifests if each.held_out for task in each.held_out.tasks]
    keys = [
        f"{task.name}-document" if task.type == "retrieval" else f"{task.name}_clustering"
        for task in held_out
    ]
    known = select_tasks(tasks=["STS12"])
    for more, heard in ((["STS12"], None), (["STS12-query", "other"], "STS12-query, other")):
        file = written(tmp_path / "told.toml", dict.fromkeys([*keys, *more], "x: "))
        wanted = Evaluation(held_out=True, instructions=str(file))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            check_held_out(wanted, manifests, known)
        assert [str(each.message).rpartition(" is called ")[2] for each in told] == (
            [heard] if heard else []
        )


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("absent.toml", None, "absent.toml: No such file or directory"),
        ("broken.json", "{", "broken.json: not valid JSON: "),
        ("broken.toml", "a =", "broken.toml: not valid TOML: "),
        ("empty.toml", "", "empty.toml: holds no instructions; write the name of a task"),
        ("list.json", "[1]", "list.json: holds no instructions"),
        ("table.toml", '[STS12]\nquery = "x"', "STS12: write the prefix as a text .* STS12-query"),
        ("none.toml", 'STS_12 = "x"', r"names none of the tasks .*STS_12\); .* such as STS12"),
    ],
)
def test_a_file_of_no_use_is_refused_before_a_task_is_read(
    name: str, content: str | None, told: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    words = ["--model", "starter", "--tasks", "STS12", "--output", str(tmp_path / "out")]
    given = ["eval-mteb", *words, "--instructions", str(tmp_path / name)]
    error = CliRunner().invoke(app, given).exception
    assert isinstance(error, UserError)
    with pytest.raises(UserError, match=told):
        raise error


def test_a_recipe_and_python_take_a_file_and_the_scores_are_read_behind_it(
    tiny_model: Path, small_recipe: Path, tmp_path: Path
) -> None:
    write_task(tmp_path / "tasks" / "alike", "sts")
    file = written(tmp_path / "told.toml", {"alike": "compare: "})
    settings = [
        f'evaluation.task_dirs=["{tmp_path / "tasks"}"]',
        f'evaluation.instructions="{file}"',
        "steps=1",
        "optim.warmup_steps=0",
    ]
    recipe = embedkit.load_recipe(str(small_recipe), settings)
    embedkit.finetune(recipe, tmp_path / "run")
    trained = Summary.read(tmp_path / "run" / "eval" / "after" / "summary.json")
    again = embedkit.evaluate(
        tiny_model, [tmp_path / "tasks"], tmp_path / "out", instructions=file, dtype="fp32"
    )
    for summary in (trained, again):
        assert summary.scores["alike"].prompts == {"text": "compare: "}
        assert "\nprompts: the instructions file's for 1 task" in summary.text()
    with pytest.raises(UserError, match=r"absent\.toml: No such file"):
        embedkit.finetune(
            embedkit.load_recipe(str(small_recipe), ["evaluation.instructions=absent.toml"]),
            tmp_path / "other",
        )
    assert not (tmp_path / "other").exists()
