"""Whose prompts stand before a task's texts, against mteb called directly on the same data."""

from collections.abc import Mapping
from pathlib import Path

import mteb
import pytest
from embedkit_cli.app import app
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.aggregate_task_metadata import AggregateTaskMetadata
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.cache import ResultCache
from mteb.models import SentenceTransformerEncoderWrapper
from mteb.types import PromptType
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from support.encoders import MINILM, Encoder
from support.task_folders import write_json_lines, write_task
from typer.testing import CliRunner

from embedkit.data.manifests.manifest import load_manifest
from embedkit.data.pairs.records import Record, open_records
from embedkit.evaluation.mteb.instructions import Instructions
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.mteb.task_prompts import resolve_prompts
from embedkit.evaluation.mteb.task_selection import leaves, select_tasks
from embedkit.evaluation.summary import Summary
from embedkit.evaluation.task_folders.reading import read_task_folders


@pytest.fixture(scope="module")
def terms() -> list[Record]:
    """Terms of medicine, each with a synonym and with terms of a near meaning."""
    records = open_records(load_manifest("hpo_synonym")).take(range(0, 9000, 300))
    return [record for record in records if record.negatives]


def write_terms(folder: Path, type_: str, terms: list[Record]) -> Path:
    """A task folder of real text: ``sts``, or the search for a term's synonym."""
    write_task(folder, type_)
    if type_ == "sts":
        graded = [
            {"sentence1": term.query, "sentence2": other, "score": score}
            for term, far in zip(terms, [*terms[1:], terms[0]], strict=True)
            for other, score in ((term.positive, 5), (term.negatives[0], 3), (far.positive, 0))
        ]
        write_json_lines(folder / "test.jsonl", graded)
        return folder
    corpus = [text for term in terms for text in (term.positive, *term.negatives)]
    documents = [{"_id": f"d{number}", "text": text} for number, text in enumerate(corpus)]
    write_json_lines(folder / "corpus.jsonl", documents)
    queries = [{"_id": f"q{number}", "text": term.query} for number, term in enumerate(terms)]
    write_json_lines(folder / "queries.jsonl", queries)
    judged = [f"q{n}\td{corpus.index(term.positive)}\t1\n" for n, term in enumerate(terms)]
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return folder


def score_of_mteb(model: SentenceTransformer, task: Path, cache: Path) -> float:
    found = mteb.evaluate(model, read_task_folders(task), cache=ResultCache(cache))
    return float(found.task_results[0].get_score(splits=["test"]))


def eval_mteb(output: Path, *words: object) -> tuple[str, Summary]:
    """What the command prints, and its summary."""
    given = ["eval-mteb", "--output", output, "--dtype", "fp32", *words]
    result = CliRunner().invoke(app, [str(word) for word in given])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout, Summary.read(output / "summary.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "type_"),
    [("STSwordsim", "sts"), ("CQADupstackTermsRetrieval", "retrieval"), ("STS12", "sts")],
)
def test_a_folder_scores_what_mteb_scores_whatever_its_name(
    name: str, type_: str, terms: list[Record], minilm_model: SentenceTransformer, tmp_path: Path
) -> None:
    folder = write_terms(tmp_path / "tasks" / name, type_, terms)
    expected = score_of_mteb(minilm_model, folder, tmp_path / "plain")
    assert 0.1 < expected < 0.99
    for asked in ([], ["--instructions", "paper"]):
        words = ["--model", MINILM, "--task-dir", folder, *asked]
        printed, summary = eval_mteb(tmp_path / "out", *words)
        assert summary.scores[name].score == pytest.approx(expected, abs=1e-5)
        assert set(summary.scores[name].prompts.values()) == {""}
        assert printed.endswith("\nprompts: none\n")


STORED = {
    "query": "find: ",
    "Retrieval-document": "page: ",
    "STS": "alike: ",
    "STS12": "twelve: ",
    "STSwordsim": "of no task that mteb has: ",
    "topic": "about: ",
}


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that stores prompts, one of them its default. Read it only."""
    modules = [Transformer(MINILM), Pooling(384)]
    model = SentenceTransformer(
        modules=modules, device="cpu", prompts=STORED, default_prompt_name="topic"
    )
    folder = tmp_path_factory.mktemp("prompted") / "model"
    model.save(str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "type_", "expected"),
    [
        ("STSwordsim", "sts", {"text": "alike: "}),
        ("STS12", "sts", {"text": "twelve: "}),
        ("terms", "retrieval", {"query": "find: ", "document": "page: "}),
        ("ranks", "reranking", {"query": "find: ", "document": ""}),
        ("groups", "clustering", {"text": "about: "}),
    ],
)
def test_stored_prompts_are_used_as_mteb_uses_them(
    name: str,
    type_: str,
    expected: Mapping[str, str],
    terms: list[Record],
    prompted: Path,
    tmp_path: Path,
) -> None:
    folder = tmp_path / name
    if type_ in ("sts", "retrieval"):
        write_terms(folder, type_, terms)
    else:
        write_task(folder, type_)
    theirs = SentenceTransformer(str(prompted), device="cpu")
    score = score_of_mteb(theirs, folder, tmp_path / "plain")
    printed, summary = eval_mteb(tmp_path / "out", "--model", prompted, "--task-dir", folder)
    assert summary.scores[name].prompts == expected
    assert summary.scores[name].score == pytest.approx(score, abs=1e-4)
    assert "\nprompts: the model's own for 1 task\n" in printed


def test_prompts_of_mtebs_tasks_are_those_that_mteb_would_choose(
    prompted: Path, noise_model: SentenceTransformer
) -> None:
    stored = STORED | {"Reranking-document": "d: ", "NQ-query": "e: ", "Clustering": ""}
    theirs = SentenceTransformer(str(prompted), device="cpu")
    theirs.prompts = {"query": "", "document": "", **stored}
    wrapper = SentenceTransformerEncoderWrapper(theirs)
    assert wrapper.model_prompts is not None
    sides = {"query": PromptType.query, "document": PromptType.document, "text": None}
    names = ["STS12", "STS13", "NQ", "SciDocsRR", "TwentyNewsgroupsClustering", "FEVER"]
    ours = Encoder(noise_model, "m", stored)
    ours.default_prompt_name = "topic"
    for task in select_tasks(tasks=names):
        for side, prompt in resolve_prompts(task, ours, Instructions()).by_side.items():
            key = wrapper.get_prompt_name(task.metadata, sides[side])
            assert prompt == (wrapper.model_prompts[key] if key else STORED["topic"])


def test_a_folder_s_own_prompts_go_first_and_the_paper_s_before_the_model_s(
    tmp_path: Path, noise_model: SentenceTransformer
) -> None:
    write_task(tmp_path / "mine", "retrieval", prompts={"query": "own: "})
    (mine,) = read_task_folders(tmp_path / "mine")
    model = Encoder(noise_model, "m", {"query": "side", "NQ-query": "x"})
    by_side, origin = resolve_prompts(mine, model, Instructions({"mine": "told"}))
    assert (by_side, origin) == ({"query": "own: ", "document": ""}, "the task folder's own")
    (nq,) = select_tasks(tasks=["NQ"])
    by_side, origin = resolve_prompts(nq, model, Instructions({"NQ": "told"}))
    assert (by_side, origin) == ({"query": "told", "document": "told"}, "the paper's")


@pytest.mark.slow
def test_no_task_outside_the_benchmark_gets_the_paper_s_instruction(
    noise_model: SentenceTransformer,
) -> None:
    paper = Instructions.asked_for("paper")
    every = mteb.get_tasks(exclude_superseded=False)
    parts = {part.metadata.name: part for task in every for part in leaves(task)}
    near = {
        "STSES",
        "RomaniBibleClustering",
        "CQADupstackRetrieval-PL",
        "ClimateFEVERHardNegatives",
    }
    assert near <= {task.metadata.name for task in every}
    told = {name for name, part in parts.items() if paper.of(part)}
    assert told == paper.prefixes.keys()
    assert len(told) == 67
    for name in ("CmedqaRetrieval", "STSES", "CQADupstackGisRetrieval", "SciFact"):
        prompts = resolve_prompts(parts[name], Encoder(noise_model, "m"), paper)
        given = paper.prefixes.get(name, "")
        assert (set(prompts.by_side.values()), prompts.origin == "the paper's") == (
            {given},
            bool(given),
        )


@pytest.mark.slow
def test_the_summary_tells_whose_prompts_were_used(
    mirror: Path, minilm_model: SentenceTransformer, tmp_path: Path
) -> None:
    write_task(tmp_path / "plain", "sts")
    write_task(tmp_path / "told", "sts", instruction="Compare.")
    folders = [path for name in ("plain", "told") for path in read_task_folders(tmp_path / name)]
    tasks = [*folders, *select_tasks(tasks=["STS12", "STS17"])]
    encoder = Encoder(minilm_model, "m")

    def line(encoder: Encoder, instructions: Instructions) -> str:
        summary = evaluate(
            encoder, tasks, tmp_path / "out", instructions=instructions, data_dir=mirror
        )
        assert not summary.failed
        return next(each for each in summary.text().splitlines() if each.startswith("prompts: "))

    told = "the task folder's own for 1 task"
    assert line(encoder, Instructions()) == f"prompts: none for 3 tasks, {told}"
    expected = f"prompts: none for 1 task, {told}, the paper's for 2 tasks"
    assert line(encoder, Instructions.asked_for("paper")) == expected
    encoder.prompts = {"STS": "alike: "}
    assert line(encoder, Instructions()) == f"prompts: the model's own for 3 tasks, {told}"


def test_each_part_of_an_aggregate_has_its_own_instruction(
    mirror: Path, minilm_model: SentenceTransformer, tmp_path: Path
) -> None:
    metadata = AggregateTaskMetadata(
        name="Both",
        description="the mean of two",
        tasks=select_tasks(tasks=["STS12", "STS17"]),
        main_score="cosine_spearman",
        type="STS",
        eval_splits=["test"],
    )
    both: AbsTask = type("Both", (AbsTaskAggregate,), {"metadata": metadata})()
    for instructions, prompt, origin in (
        ({"STS12": "twelve: ", "STS17": "more: ", "Both": "both: "}, "more: ", "the paper's"),
        ({"STS12": "twelve: ", "Both": "both: "}, "", "the paper's"),
        ({"Both": "both: "}, "", "none"),
    ):
        summary = evaluate(
            Encoder(minilm_model, "m"),
            [both],
            tmp_path / "out",
            instructions=Instructions(instructions),
            data_dir=mirror,
        )
        found = summary.scores["Both"]
        prompts = {"STS12-text": instructions.get("STS12", ""), "STS17-text": prompt}
        assert (found.prompts, found.prompt_origin) == (prompts, origin)
