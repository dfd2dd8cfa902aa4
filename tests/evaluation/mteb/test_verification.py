"""Scores against stock sentence-transformers and mteb, in a process that does not know embedkit."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import mteb
import pytest
from embedkit_cli.app import app
from mteb.models import SentenceTransformerEncoderWrapper
from sentence_transformers import SentenceTransformer
from support.contextual_tasks import tiny_contextual
from support.stock_models import write_stock
from support.task_folders import write_task
from typer.testing import CliRunner

from embedkit import api, load
from embedkit.evaluation.mteb.verification import Verification
from embedkit.evaluation.task_folders.reading import read_task_folders

TYPES = ["retrieval", "sts", "classification", "clustering"]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small task folder of each of ``TYPES``; the search has a prompt of its own for queries."""
    folder = tmp_path_factory.mktemp("tasks")
    for type_ in TYPES:
        write_task(folder / type_, type_)
    write_task(folder / "prompted", "retrieval", instruction={"query": "Find what answers."})
    return folder


def write_contextual(folder: Path) -> Path:
    tiny_contextual().save(folder / "model")
    return folder / "model"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "no normalize",
        "default prompt",
        "dot",
        "cls",
        "last token",
        "two dense",
        pytest.param(write_contextual, id="contextual"),
    ],
)
def test_scores_of_a_folder_are_those_of_the_stock_libraries(
    kind: object, tasks: Path, tiny_model: Path, tmp_path: Path
) -> None:
    write = partial(write_stock, tiny_model, kind=kind) if isinstance(kind, str) else kind
    folder = write(tmp_path / "stock")  # type: ignore[operator]
    words = ["eval-mteb", "--model", folder, "--task-dir", tasks, "--output", tmp_path / "out"]
    words += ["--dtype", "fp32", "--verify", 5]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "largest difference: 0.0000" in result.output
    verified = result.output.partition("verified (scores times 100)")[2]
    assert all(f" {name} " in verified for name in [*TYPES, "prompted"])


def score_of_mteb(model: SentenceTransformer, task: Path) -> float:
    (opened,) = read_task_folders(task)
    found = mteb.evaluate(
        SentenceTransformerEncoderWrapper(model),
        opened,
        cache=None,
        co2_tracker=False,
        show_progress_bar=False,
        encode_kwargs={"show_progress_bar": False},
    )
    return float(found.task_results[0].get_score(splits=["test"]))


@pytest.mark.parametrize("kind", ["no normalize", "dot", "euclidean", "manhattan", "truncated"])
def test_a_search_goes_by_the_similarity_of_the_folder(
    kind: str, tasks: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = write_stock(tiny_model, tmp_path / "stock", kind)
    found = api.evaluate(folder, [tasks / "retrieval"], tmp_path / "out", dtype="fp32")
    expected = score_of_mteb(SentenceTransformer(str(folder), device="cpu"), tasks / "retrieval")
    assert found.scores["retrieval"].score == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_texts_are_cut_at_the_length_that_is_asked_for(
    tasks: Path, tiny_model: Path, tmp_path: Path
) -> None:
    model = load(tiny_model, dtype="fp32")
    theirs = SentenceTransformer(str(tiny_model), device="cpu")
    identities = set()
    for limit in (None, 4, 6):
        found = api.evaluate(model, [tasks / "sts"], tmp_path / "out", max_tokens=limit)
        theirs.max_seq_length = limit or model.max_tokens
        expected = score_of_mteb(theirs, tasks / "sts")
        assert found.scores["sts"].score == pytest.approx(expected, abs=1e-6)
        identities.add(found.identity)
    assert len(identities) == 3
    assert model.max_tokens == 128
    whole, cut = (
        api.estimate(model, [tasks / "sts"], max_tokens=limit).tasks[0].tokens
        for limit in (None, 4)
    )
    assert cut < whole


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("129", "bert reads at most 128 tokens; choose from 3 to 128"),
        ("2", "greater than or equal"),
    ],
)
def test_a_length_that_the_model_does_not_have_is_refused(
    limit: str, message: str, tasks: Path, tiny_model: Path, tmp_path: Path
) -> None:
    words = ["--model", tiny_model, "--task-dir", tasks, "--output", tmp_path / "out"]
    given = [str(word) for word in ("eval-mteb", *words, "--max-tokens", limit)]
    result = CliRunner().invoke(app, given)
    assert result.exit_code != 0
    assert message in str(result.exception)
    assert "max_tokens" in str(result.exception) or "--max-tokens" in str(result.exception)


def test_a_difference_that_rounding_does_not_explain_is_a_failure() -> None:
    same = Verification("m", "float32", {"a": (0.5, 0.50002), "b": (0.25, 0.25)}, {})
    assert not same.failed
    assert same.text().endswith("largest difference: 0.0020\n")
    other = replace(same, scores={"a": (0.5, 0.5), "b": (0.25, 0.2502)})
    assert other.failed
    assert other.text().endswith(
        "largest difference: 0.0200, more than 0.01: rounding explains it only where nearly equal "
        "vectors decide the score\n"
    )
    unknown = replace(same, scores={"a": (0.5, 0.5), "b": (float("nan"), 0.25)})
    assert unknown.failed
    assert "largest difference: nan" in unknown.text()
    # In half precision a difference is to be expected.
    half = replace(other, dtype="bfloat16")
    assert not half.failed
    assert "embedkit computed in bfloat16: --dtype fp32 gives a verdict" in half.text()


def test_a_task_that_the_stock_libraries_cannot_score_is_named_and_the_others_are_compared(
    tasks: Path, tiny_model: Path, tmp_path: Path
) -> None:
    # mteb has no euclidean distance of pairs, which STS compares.
    folder = write_stock(tiny_model, tmp_path / "model", kind="euclidean")
    words = ["eval-mteb", "--model", folder, "--output", tmp_path / "out", "--verify", 2]
    words += ["--task-dir", tasks / "sts", "--task-dir", tasks / "clustering"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    assert (
        "sts: not scored by the stock libraries: ValueError: Similarity function" in result.output
    )
    assert "largest difference: 0.0000" in result.output


def test_a_folder_that_only_embedkit_opens_is_refused_in_one_line(
    tasks: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = write_contextual(tmp_path)
    found = api.evaluate(folder, [tasks / "sts"], tmp_path / "out", dtype="fp32")
    code = folder / "modeling_contextual.py"
    code.write_text(code.read_text() + "# edited\n")
    with pytest.raises(api.UserError, match="needs code that this version of embedkit did not"):
        api.verify(folder, [tasks / "sts"], found, count=1, dtype="fp32")
