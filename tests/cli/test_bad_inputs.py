"""What a user can get wrong, and the one line that says so. ``-rA -s`` shows every line."""

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from embedkit_cli.app import main
from support.small_runs import write_source

FINETUNE = ("finetune", "--recipe", "recipe.toml", "--output", "run")
ROW = {"query": "a question", "positive": "an answer"}


@dataclass(frozen=True)
class Bad:
    """A mistake in an otherwise sound folder, and what the answer to it must contain."""

    told: tuple[str, ...]
    words: tuple[str, ...] = FINETUNE
    overrides: tuple[str, ...] = ()
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Added to that of the source."""
    prepare: Callable[[Path], object] = lambda _folder: None


def rows(*lines: Mapping[str, Any] | str) -> dict[str, str | bytes]:
    """A source of sound rows, and ``lines`` after them."""
    sound = [{"query": f"question {n}", "positive": f"answer {n}"} for n in range(20)]
    texts = [line if isinstance(line, str) else json.dumps(line) for line in (*sound, *lines)]
    return {"pairs.jsonl": "".join(f"{text}\n" for text in texts)}


def without(folder: Path, *names: str) -> None:
    for name in names:
        (folder / "model" / name).unlink()


def write_task(folder: Path) -> None:
    task = folder / "tasks" / "broken"
    task.mkdir(parents=True)
    (task / "task.json").write_text('{"type": "sts"}')
    (task / "test.jsonl").write_text('{"sentence1": "a", "sentence2": "b"}\n')


def write_run_json(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "run.json").write_text("{}")


def write_thesis(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "thesis.tex").touch()


BAD = {
    "recipe_name": Bad(
        ("startr: not a name under recipes/", "starter", "a path ends in .toml"),
        words=("finetune", "--recipe", "startr"),
    ),
    "recipe_path": Bad(("nowhere.toml: no such file",), words=("show", "nowhere.toml")),
    "recipe_syntax": Bad(
        ("recipe.toml: not valid TOML: ", "line 1"), files={"recipe.toml": "steps = \n"}
    ),
    "unknown_key": Bad(
        ("optim.lrr: there is no such key, did you mean optim.lr?",), overrides=("optim.lrr=1e-4",)
    ),
    "wrong_type": Bad(
        ("data.batch_size: ", "valid integer", "got 'many'"), overrides=("data.batch_size=many",)
    ),
    "out_of_range": Bad(
        ("optim.lr: ", "greater than 0", "got -0.001"), overrides=("optim.lr=-1e-3",)
    ),
    "no_choice": Bad(
        ("optim.schedule: ", "'constant', 'linear' or 'cosine'", "'wsd'"),
        overrides=("optim.schedule=wsd",),
    ),
    "steps_and_epochs": Bad(("give exactly one of steps and epochs",), overrides=("epochs=1.0",)),
    "override_without_value": Bad(("--set optim.lr: write KEY=VALUE",), overrides=("optim.lr",)),
    "some_weights": Bad(
        ("weight is missing for b: give every source one, or none",),
        overrides=("data.mix=[{manifest='a', weight=1.0}, {manifest='b'}]",),
    ),
    "manifest_name": Bad(
        ("hpo_synonyms: not a name under data_manifests/", "hpo_synonym"),
        overrides=("data.mix=[{manifest='hpo_synonyms'}]",),
    ),
    "manifest_key": Bad(
        ("pairs.toml: deduplicat: there is no such key, did you mean deduplicate?",),
        manifest={"deduplicat": True},
    ),
    "missing_data": Bad(
        ("pairs: pairs.jsonl: no such file: fetch it or correct its path",),
        prepare=lambda folder: (folder / "pairs.jsonl").unlink(),
    ),
    "data_folder_unset": Bad(
        ("set EMBEDKIT_DATA to the folder that holds the data",),
        manifest={"source": {"kind": "files", "files": [{"path": "$EMBEDKIT_DATA/a.jsonl"}]}},
    ),
    "wrong_hash": Bad(
        ("pairs.jsonl: sha256 is ", "expected 0000", "fetch the file again, or correct the man"),
        manifest={
            "source": {"kind": "files", "files": [{"path": "pairs.jsonl", "sha256": "0" * 64}]}
        },
    ),
    "wrong_row_count": Bad(
        ("pairs: 20 rows, expected 21: correct rows in the manifest",), manifest={"rows": 21}
    ),
    "missing_column": Bad(
        ("pairs.jsonl, line 1: no column 'question' (there are 'query', 'positive')", "[columns]"),
        manifest={"columns": {"query": "question"}},
    ),
    "unused_negatives": Bad(
        (
            "pairs: pairs.jsonl, line 21: nothing uses 'Score': give it a part in ",
            'ignore = ["Score"]',
        ),
        files=rows({**ROW, "negs": ["a wrong answer"], "Score": 3}),
    ),
    "named_and_ignored": Bad(
        ("pairs.toml: ignore lists 'positive', but columns.positive reads it: take it out of one",),
        manifest={"ignore": ["positive"]},
    ),
    "empty_query": Bad(
        ("pairs.jsonl, line 21: query is empty: fill it in, or set drop_empty = true",),
        files=rows({**ROW, "query": " "}),
    ),
    "no_text": Bad(
        ("pairs.jsonl, line 21: positive holds 7, not text: correct [columns] or the data",),
        files=rows({**ROW, "positive": 7}),
    ),
    "bad_json": Bad(
        (
            "pairs.jsonl, line 21: not valid JSON (",
            "column",
            "correct the line",
        ),
        files=rows('{"query": "cut sho'),
    ),
    "bad_encoding": Bad(
        ("pairs.jsonl, line 1: not UTF-8 at byte 11", "convert the file to UTF-8"),
        files={"pairs.jsonl": b'{"query": "\xe9t\xe9", "positive": "summer"}\n'},
    ),
    "cut_archive": Bad(
        ("pairs.jsonl.gz: unreadable or cut short", "fetch the file again"),
        files={"pairs.jsonl.gz": b"\x1f\x8b\x08\x00\x00"},
        manifest={"source": {"kind": "files", "files": [{"path": "pairs.jsonl.gz"}]}},
    ),
    "filter_syntax": Bad(
        ("pairs.toml: filter: ", "is no filter; write it as in: score > 4"),
        manifest={"filter": "score is large"},
    ),
    "small_source": Bad(
        ("source pairs has 20 rows, fewer than one batch of 64: set batch_size = 20 or less",),
        overrides=("data.batch_size=64",),
    ),
    "package_missing": Bad(
        ("no-such-package is not installed: pip install no-such-package",),
        overrides=("model=package:no-such-package/model",),
    ),
    "model_missing": Bad(
        (
            "no/such-model: there is no such folder, and as an id of the hub it cannot be loaded: ",
            "Pass a folder with config.json",
        ),
        overrides=("model=no/such-model",),
    ),
    "no_hub_for_the_model": Bad(
        (
            "chandar-lab/NeoBERT: there is no such folder, and as an id of the hub it cannot be ",
            "--backbone starter",
            "a folder with ",
            "HF_HOME",
        ),
        words=("finetune", "--recipe", "unified", "--output", "run"),
    ),
    "no_hub_for_the_data": Bad(
        ("agnews: cannot ask the hub ", "data lock", "$EMBEDKIT_HUB/sh0416/ag_news"),
        words=("finetune", "--recipe", "unified", "--output", "run", "--backbone", "model"),
    ),
    "backbone_missing": Bad(
        ("./nowhere: no such folder",), words=(*FINETUNE, "--backbone", "./nowhere")
    ),
    "backbone_empty": Bad(
        ("recipe.toml: model: String should have",), words=(*FINETUNE, "--backbone", "")
    ),
    "model_without_weights": Bad(
        ("model: cannot be loaded: ", "model.safetensors"),
        prepare=lambda folder: without(folder, "model.safetensors"),
    ),
    "model_without_config": Bad(
        ("model: holds neither modules.json nor config.json",),
        prepare=lambda folder: without(folder, "config.json"),
    ),
    "model_is_a_file": Bad(
        ("model/config.json: is a file; pass the folder that holds config.json",),
        overrides=("model=model/config.json",),
    ),
    "lora_target_missing": Bad(
        ("lora.target_modules: the backbone has no linear layer qkv; it has query, key, value, ",),
        overrides=("lora.target_modules=['query', 'qkv']",),
    ),
    "lora_target_is_a_word": Bad(
        ('lora.target_modules: query is not "all-linear": write a list, ["query"]',),
        overrides=("lora.target_modules=query",),
    ),
    "lora_rank": Bad(("lora.rank: ", "greater than 0", "got 0"), overrides=("lora.rank=0",)),
    "matryoshka_order": Bad(
        ("objective: matryoshka_dims = [8, 16]: each has to be less than the one before it",),
        overrides=("objective.matryoshka_dims=[8, 16]",),
    ),
    "matryoshka_weights": Bad(
        ("objective: matryoshka_weights has 1 values for 2 matryoshka_dims: give each one, or",),
        overrides=("objective.matryoshka_dims=[16, 8]", "objective.matryoshka_weights=[1.0]"),
    ),
    "matryoshka_too_wide": Bad(
        ("objective: a width of 64 is more than the 32 dimensions of model; begin with 32",),
        overrides=("objective.matryoshka_dims=[64, 8]",),
    ),
    "texts_too_long": Bad(
        ("data.max_document_tokens = 512: model reads at most 128 tokens; set it to that or less",),
        overrides=("data.max_document_tokens=512",),
    ),
    "output_in_use": Bad(
        ("run: is not empty; continue the run in it with --resume",), prepare=write_run_json
    ),
    "overwrite_no_run": Bad(
        ("run: is not a run of embedkit, so --overwrite leaves it alone",),
        words=(*FINETUNE, "--overwrite"),
        prepare=write_thesis,
    ),
    "resume_nothing": Bad(
        ("run: no run to resume; leave --resume out, or check --output",),
        words=(*FINETUNE, "--resume"),
    ),
    "output_is_a_file": Bad(
        ("pairs.jsonl: is a file; choose another --output",),
        words=(*FINETUNE[:-1], "pairs.jsonl"),
    ),
    "output_under_a_file": Bad(
        ("pairs.jsonl/run: cannot be written (Not a directory); choose another --output",),
        words=(*FINETUNE[:-1], "pairs.jsonl/run"),
    ),
    "tracker_missing": Bad(
        ("logging.trackers: trackio is not installed: pip install trackio",),
        overrides=("logging.trackers=['trackio']",),
    ),
    "task_name": Bad(
        ("STS99: mteb has no such task; near: STS",),
        overrides=("evaluation.tasks=['STS99']",),
    ),
    "task_folder": Bad(
        ("tasks/broken/test.jsonl, line 1: score is missing",),
        overrides=("evaluation.task_dirs=['tasks']",),
        prepare=write_task,
    ),
    "nothing_held_out": Bad(
        ("evaluation.held_out = true, but no source of the mixture holds anything out: give",),
        overrides=("evaluation.held_out=true",),
    ),
    "step_beyond_the_end": Bad(
        ("--step: the recipe has 12 steps, which are counted from 0 (got 12)",),
        words=("batch", "--recipe", "recipe.toml", "--step", "12"),
    ),
    "too_many_recipes": Bad(
        ("show takes one recipe, or two to compare, not 3",),
        words=("show", "starter", "starter", "starter"),
    ),
    "eval_model_missing": Bad(
        ("nowhere: there is no such folder, and as an id of the hub it cannot be loaded: ",),
        words=("eval-mteb", "--model", "nowhere", "--tasks", "STS12", "--output", "results"),
    ),
    "eval_nothing": Bad(
        ("give exactly one of --benchmark, --tasks, --task-dir, --recipe (got 0)",),
        words=("eval-mteb", "--model", "model", "--output", "results"),
    ),
    "eval_dtype": Bad(
        ("--dtype: 'int8' is not one of 'auto', 'bf16', 'fp16', 'fp32'",),
        words=(
            *("eval-mteb", "--model", "model", "--tasks", "STS12"),
            *("--output", "results", "--dtype", "int8"),
        ),
    ),
}


SLOW = ["task_name"]
"""mteb takes its time to list all its tasks."""
FAST = [name for name in BAD if name not in SLOW]


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which ``FINETUNE`` would train; what is wrong comes on top."""
    write_source(tmp_path, "pairs", rows=20, negatives=0)
    shutil.copytree(tiny_model, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EMBEDKIT_DATA", raising=False)
    # Sources are named as a user names them: from the working folder.
    manifest = {"source": {"kind": "files", "files": [{"path": "pairs.jsonl"}]}}
    (tmp_path / "pairs.toml").write_text(tomli_w.dumps(manifest))
    data = {
        "batch_size": 8,
        "max_query_tokens": 32,
        "max_document_tokens": 32,
        "workers": 0,
        "mix": [{"manifest": "pairs.toml"}],
    }
    recipe = {"steps": 12, "model": "model", "data": data, "optim": {"lr": 1e-3}}
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(recipe))
    (tmp_path / "pairs.jsonl").write_text(str(rows()["pairs.jsonl"]))
    return tmp_path


def make_wrong(folder: Path, bad: Bad) -> list[str]:
    """Put the mistake into the folder; return the command that meets it."""
    for name, content in bad.files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
    source = {"source": {"kind": "files", "files": [{"path": "pairs.jsonl"}]}}
    (folder / "pairs.toml").write_text(tomli_w.dumps({**source, **bad.manifest}))
    bad.prepare(folder)
    return [*bad.words, *(word for each in bad.overrides for word in ("--set", each))]


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.usefixtures("native_bf16")
def test_the_folder_is_sound_before_anything_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = make_wrong(folder, Bad(told=(), overrides=("steps=1",)))
    monkeypatch.setattr(sys, "argv", ["embedkit", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert (folder / "run" / "model" / "modules.json").is_file()


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_a_mistake_is_answered_in_one_line_and_leaves_no_trace(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = make_wrong(folder, BAD[name])
    before = contents(folder)
    monkeypatch.setattr(sys, "argv", ["embedkit", *words])
    with redirect_stderr(io.StringIO()) as screen, pytest.raises(SystemExit) as ended:
        main()
    line = screen.getvalue()
    sys.stdout.write(f"BAD {name}\t{line}")
    assert ended.value.code == 2
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    for part in BAD[name].told:
        assert part in line
    assert contents(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unknown_key", "model_missing"])
def test_the_command_itself_answers_so(name: str, folder: Path) -> None:
    words = make_wrong(folder, BAD[name])
    before = contents(folder)
    command = [str(Path(sys.executable).with_name("embedkit")), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    for part in BAD[name].told:
        assert part in lines[0]
    assert "Traceback" not in done.stderr
    assert contents(folder) == before
