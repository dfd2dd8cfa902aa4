"""What a contextual model reads before a task, and that its scores are made in it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mteb.abstasks.abstask import AbsTask
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from support.contextual_tasks import PROMPTS, Noting, tiny_contextual
from support.encoders import Encoder
from support.mirrors import ONE_OF_EACH_TYPE
from support.ranks import run_on_ranks
from support.task_folders import ANIMALS, DOCUMENTS, LABELLED, MONEY, QUERIES, TYPES, write_task

import embedkit
from embedkit import distributed
from embedkit.errors import UserError
from embedkit.evaluation.encoding.encoders import CachedEncoder, Truncated
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.encoding.vector_cache import VectorCache
from embedkit.evaluation.mteb.instructions import Instructions
from embedkit.evaluation.mteb.mirror import with_local_data
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.mteb.task_prompts import resolve_prompts
from embedkit.evaluation.mteb.task_selection import select_tasks
from embedkit.evaluation.mteb.text_statistics import corpus_of
from embedkit.evaluation.summary import Summary
from embedkit.evaluation.task_folders.reading import read_task_folders
from embedkit.models.contextual.context import Context, similarity

QUESTIONS = {text for text, _ in QUERIES.values()}
THREE_TYPES = ["Banking77Classification", "ArguAna", "STS12"]
USES = {"search_query": "q: ", "search_document": "d: ", "classification": "c: ", "clustering": "k"}


def folder_tasks(folder: Path, *types: str) -> list[AbsTask]:
    for type_ in types:
        write_task(folder / type_, type_)
    return read_task_folders(folder)


def score(
    model: Noting,
    tasks: Sequence[AbsTask],
    output: Path,
    *,
    seed: int = 0,
    num_documents: int | None = None,
) -> Summary:
    encoder = ContextualEncoder(model, seed=seed, num_documents=num_documents)
    return evaluate(encoder, tasks, output)


def of_each_task(summary: Summary) -> dict[str, tuple[float, Mapping[str, object]]]:
    return {name: (each.score, each.contexts) for name, each in summary.scores.items()}


@pytest.mark.parametrize("name", ONE_OF_EACH_TYPE)
def test_no_query_and_no_label_can_be_in_a_context(name: str, mirror: Path) -> None:
    (task,) = select_tasks(tasks=[name])
    task = with_local_data(task, mirror)
    texts = set(corpus_of(task))
    assert texts
    assert texts <= set(DOCUMENTS)
    assert not texts & (QUESTIONS | {"not judged", "animals", "money", "rec.pets", "misc.forsale"})


@pytest.mark.parametrize("type_", [each for each in TYPES if "+" not in each])
def test_task_folders_give_documents_too(type_: str, tmp_path: Path) -> None:
    (task,) = folder_tasks(tmp_path, type_)
    texts = corpus_of(task)
    assert len(texts) == len(set(texts)) > 3
    assert not set(texts) & (QUESTIONS | {"animals", "money"})


def test_the_context_of_a_classification_is_of_the_train_split(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", "classification")
    train = [{"text": f"a text to learn from, {n}", "label": n % 2} for n in range(6)]
    lines = "".join(json.dumps(row) + "\n" for row in train)
    (folder / "train.jsonl").write_text(lines)
    rows = [row | {"label": int(row["label"] == "money")} for row in LABELLED]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (task,) = read_task_folders(folder)
    assert list(corpus_of(task)) == [row["text"] for row in train]


def test_documents_are_read_with_their_titles(tmp_path: Path) -> None:
    (task,) = folder_tasks(tmp_path, "retrieval")
    assert corpus_of(task)[0] == f"Cats {ANIMALS[0]}"
    assert list(corpus_of(task))[1:] == [*ANIMALS[1:], *MONEY]


@pytest.mark.slow
def test_every_task_has_one_context_of_its_own_documents(mirror: Path, tmp_path: Path) -> None:
    model = tiny_contextual()
    tasks = select_tasks(tasks=THREE_TYPES)
    encoder = ContextualEncoder(model, seed=3, num_documents=4)
    summary = evaluate(encoder, tasks, tmp_path / "out", data_dir=mirror)
    assert not summary.failed
    assert len(model.contexts) == len(tasks)
    words = [re.sub(r"\W", "", text.lower()) for text in DOCUMENTS]
    for name, drawn in zip(THREE_TYPES, model.contexts, strict=True):
        prompt = PROMPTS["search_document" if name == "ArguAna" else "classification"]
        start = re.sub(r"\W", "", prompt)
        stripped = [re.sub(r"\W", "", text) for text in drawn]
        assert all(text.removeprefix(start) in words for text in stripped), drawn
        assert all(text.startswith(start) for text in stripped)
        assert len(set(stripped)) == 4
        (facts,) = summary.scores[name].contexts.values()
        assert (facts["documents"], facts["seed"]) == (4, 3)


def test_a_score_is_that_of_vectors_made_in_the_recorded_context(tmp_path: Path) -> None:
    model = tiny_contextual()
    (task,) = folder_tasks(tmp_path, "sts")
    found = score(model, [task], tmp_path / "out", num_documents=5).scores["sts"]
    (kept,) = (tmp_path / "out/contexts").iterdir()
    context = Context.load(kept)
    assert found.contexts["sts"]["hash"] == context.hash
    assert task.dataset is not None
    rows = task.dataset["test"]
    first, second = (
        model.encode(rows[side], context=context, prompt=PROMPTS["classification"])
        for side in ("sentence1", "sentence2")
    )
    expected = spearmanr(np.diag(similarity(first, second)), rows["score"]).statistic
    assert found.score == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_two_runs_give_the_same_scores_in_the_same_contexts(tmp_path: Path) -> None:
    tasks = folder_tasks(tmp_path / "tasks", "retrieval", "classification", "sts")
    first, second = (
        score(tiny_contextual(), tasks, tmp_path / each, num_documents=4) for each in "ab"
    )
    assert of_each_task(first) == of_each_task(second)
    some = [task for task in tasks if task.metadata.name != "classification"]
    other = score(tiny_contextual(), some, tmp_path / "a", num_documents=4, seed=1)
    for name, each in other.scores.items():
        assert each.contexts[name]["hash"] != first.scores[name].contexts[name]["hash"]
    assert other.identity != first.identity


def test_what_is_scored_already_needs_no_context_anew(tmp_path: Path) -> None:
    tasks = folder_tasks(tmp_path / "tasks", "retrieval", "sts")
    before = score(tiny_contextual(), tasks, tmp_path / "out")
    model = tiny_contextual()
    after = score(model, tasks, tmp_path / "out")
    assert not model.contexts
    assert of_each_task(after) == of_each_task(before)
    for path in (tmp_path / "out/contexts").iterdir():
        path.write_bytes(path.read_bytes()[:99])
    assert of_each_task(score(model, tasks, tmp_path / "out")) == of_each_task(before)
    assert len(model.contexts) == 2


def test_a_summary_reads_its_contexts_back(tmp_path: Path) -> None:
    tasks = folder_tasks(tmp_path / "tasks", "sts")
    summary = score(tiny_contextual(), tasks, tmp_path / "out")
    assert asdict(Summary.read(tmp_path / "out/summary.json")) == asdict(summary)


def test_kept_vectors_belong_to_a_context(tmp_path: Path) -> None:
    model = tiny_contextual()
    cache = VectorCache(tmp_path / "vectors", 10**6)
    contexts = [ContextualEncoder(model, seed=seed).build_context(DOCUMENTS, "") for seed in (0, 1)]
    encoder = ContextualEncoder(model)
    for context in contexts:
        found = CachedEncoder(encoder.within(context), cache).encode(DOCUMENTS, prompt="p: ")
        alone = model.encode(DOCUMENTS, context=context, prompt="p: ").vectors
        np.testing.assert_allclose(found, alone, atol=1e-6)
    assert len({encoder.within(each).identity for each in contexts}) == 2


def test_a_cut_of_contextual_vectors_is_scored_apart(tmp_path: Path) -> None:
    tasks = folder_tasks(tmp_path / "tasks", "sts")
    model = tiny_contextual()
    whole = score(model, tasks, tmp_path / "out")
    cut = evaluate(
        ContextualEncoder(model),
        tasks,
        tmp_path / "out",
        around=lambda encoder: Truncated(encoder, 3),
    )
    assert cut.model == "tiny@3"
    assert cut.identity != whole.identity
    assert cut.scores["sts"].score != whole.scores["sts"].score
    assert cut.scores["sts"].contexts == whole.scores["sts"].contexts


def test_a_model_without_a_null_vector_repeats_the_documents_of_a_small_corpus() -> None:
    model = tiny_contextual(num_context=5, null_vector=False)
    context = ContextualEncoder(model).build_context(["one", "two"], "")
    assert sorted(model.contexts[0]) == ["one", "one", "one", "two", "two"]
    assert context.corpus_size == 2
    with pytest.raises(UserError, match="a context of 4 documents: the model has no null vector"):
        ContextualEncoder(model, num_documents=4)


def test_a_frozen_context_is_that_of_every_task(tmp_path: Path) -> None:
    model = tiny_contextual()
    model.frozen = model.build_context(MONEY)
    model.contexts.clear()
    tasks = folder_tasks(tmp_path / "tasks", "retrieval", "sts")
    summary = score(model, tasks, tmp_path / "out")
    assert not summary.failed
    assert not model.contexts
    for name, each in summary.scores.items():
        assert each.contexts[name]["hash"] == model.frozen.hash
    with pytest.raises(UserError, match="context_seed: tiny has a frozen context"):
        embedkit.evaluate(model, [tmp_path / "tasks"], tmp_path / "out", context_seed=1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NQ", {"query": "q: ", "document": "d: "}),
        ("QuoraRetrieval", {"query": "q: ", "document": "q: "}),
        ("AskUbuntuDupQuestions", {"query": "c: ", "document": "c: "}),
        ("STS12", {"text": "c: "}),
        ("SprintDuplicateQuestions", {"text": "c: "}),
        ("SummEval", {"text": "c: "}),
        ("Banking77Classification", {"text": "c: "}),
        ("TwentyNewsgroupsClustering", {"text": "k"}),
    ],
)
def test_the_prompt_is_that_of_the_use(
    name: str, expected: Mapping[str, str], noise_model: SentenceTransformer
) -> None:
    (task,) = select_tasks(tasks=[name])
    given = Instructions({name: "told: "})

    def resolved(stored: Mapping[str, str], *, contextual: bool = True) -> Mapping[str, str]:
        model = tiny_contextual(prompts=stored) if contextual else Encoder(noise_model, "m", stored)
        return resolve_prompts(task, model, given).by_side

    assert resolved(USES) == expected
    published = {"query": "search_query: ", "document": "search_document: "}
    words = {"q: ": "search_query: ", "d: ": "search_document: "}
    words |= {"c: ": "classification: ", "k": "clustering: "}
    said = {side: words[prompt] for side, prompt in expected.items()}
    assert resolved(published) == said
    # As training stores them, where the sources of a mixture differ.
    by_source = {"nq-query": "search_query: ", "nq-document": "search_document: "}
    assert resolved(by_source) == said
    # A model that stores no such prompt is told as any other.
    told = dict.fromkeys(expected, "told: ")
    assert resolved({"query": "x"}) == told
    assert resolved(USES, contextual=False) == told


@pytest.mark.parametrize("documents", [None, 0])
@pytest.mark.slow
def test_two_ranks_score_contextual_vectors_as_one(
    documents: int | None, tmp_path: Path, one_text_a_batch: None
) -> None:
    tasks = folder_tasks(tmp_path / "tasks", "retrieval", "sts")
    alone = score(tiny_contextual(), tasks, tmp_path / "alone", num_documents=documents)
    run_on_ranks(2, score_shared, tmp_path, documents)
    together = Summary.read(tmp_path / "together/summary.json")
    assert together.identity == alone.identity
    for name, each in alone.scores.items():
        assert together.scores[name].score == pytest.approx(each.score, abs=1e-6)
        assert together.scores[name].contexts == each.contexts


def score_shared(folder: Path, documents: int | None) -> None:
    model = tiny_contextual()
    counted: list[int] = []
    model.second.register_forward_hook(lambda *_: counted.append(1))
    tasks = read_task_folders(folder / "tasks")

    encoder = ContextualEncoder(model, num_documents=documents)
    encoder.run_on_main(lambda encoder: evaluate(encoder, tasks, folder / "together"))
    assert counted, "every rank encodes"
    # A context is made once, and sent to the other rank if that encodes in it too.
    embedded = distributed.sum_over_ranks(torch.tensor(len(model.contexts)))
    assert embedded == len(tasks) * (model.config.num_context if documents is None else documents)


def test_every_rank_encodes_in_the_frozen_context_of_another_model(one_text_a_batch: None) -> None:
    run_on_ranks(2, encode_in_frozen_context)


def encode_in_frozen_context() -> None:
    model = tiny_contextual()
    # As after an export that leaves out the first encoder, and so changes the model's hash.
    model.frozen = replace(model.build_context(MONEY), model="another")
    context = model.frozen
    encoder = ContextualEncoder(model)
    vectors = encoder.run_on_main(lambda encoder: encoder.within(context).encode(ANIMALS))
    np.testing.assert_allclose(vectors, model.encode(ANIMALS).vectors, atol=1e-6)
