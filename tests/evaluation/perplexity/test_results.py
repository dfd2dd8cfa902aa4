import itertools
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from embedkit.evaluation.perplexity.results import (
    Point,
    ResultFile,
    Scored,
    plot,
    summarise,
    write_csv,
)


def scored(losses: list[float], *, maskable: int, document: int = 1) -> Scored:
    return Scored(
        key=f"{document}",
        model="mine",
        length=8,
        document=document,
        maskable=maskable,
        positions=len(losses),
        loss=statistics.fmean(losses),
        variance=statistics.variance(losses),
    )


def test_a_point_is_the_mean_over_documents_and_its_error_is_theirs() -> None:
    documents = [scored([0.0, 2.0], maskable=2), scored([2.0, 4.0], maskable=2)]
    point = summarise(documents)
    assert (point.documents, point.positions) == (2, 4)
    assert (point.loss, point.stderr) == (2.0, 1.0)
    assert point.pseudo_perplexity == pytest.approx(math.exp(2))
    assert point.pseudo_perplexity_stderr == pytest.approx(math.exp(2))
    assert point.sampling_stderr == 0.0


def test_a_single_document_tells_nothing_of_others() -> None:
    point = summarise([scored([1.0, 3.0], maskable=6)])
    assert (point.stderr, point.pseudo_perplexity_stderr) == (None, None)
    # Two of six positions, of variance 2: a third is seen.
    assert point.sampling_stderr == pytest.approx(math.sqrt((1 - 2 / 6) * 2 / 2))


def test_a_sample_of_positions_errs_as_much_as_it_says() -> None:
    """Over every pair that can be drawn of five losses, in each of two documents."""
    first, second = [1.0, 2.0, 4.0, 8.0, 9.0], [0.0, 1.0, 1.0, 5.0, 30.0]
    points = [
        summarise([scored([*a], maskable=5, document=1), scored([*b], maskable=5, document=2)])
        for a in itertools.combinations(first, 2)
        for b in itertools.combinations(second, 2)
    ]
    losses = [point.loss for point in points]
    assert statistics.fmean(losses) == pytest.approx(statistics.fmean(first + second))
    told = statistics.fmean(point.sampling_stderr**2 for point in points)
    assert told == pytest.approx(statistics.pvariance(losses))


def test_documents_drawn_at_random_err_as_much_as_is_said() -> None:
    """Over every three documents, drawn with replacement, of four."""
    documents = [scored([loss, loss], maskable=2) for loss in (1.0, 2.0, 4.0, 8.0)]
    points = [summarise(drawn) for drawn in itertools.product(documents, repeat=3)]
    told = statistics.fmean((point.stderr or 0.0) ** 2 for point in points)
    assert told == pytest.approx(statistics.pvariance([point.loss for point in points]))


def test_a_loss_beyond_all_numbers_still_makes_a_point() -> None:
    assert summarise([scored([1000.0, 1000.0], maskable=2)]).pseudo_perplexity < math.inf


def test_results_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "documents.jsonl"
    documents = [scored([0.1, 0.2], maskable=3, document=number) for number in range(3)]
    for document in documents:
        ResultFile(path).add(document)
    again = ResultFile(path)
    assert [again.get(str(number)) for number in range(4)] == [*documents, None]


@pytest.mark.parametrize("cut", [1, 2, 60])
def test_a_line_that_a_kill_cut_short_is_written_anew(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "documents.jsonl"
    documents = [scored([0.1, 0.2], maskable=3, document=number) for number in range(3)]
    for document in documents[:2]:
        ResultFile(path).add(document)
    path.write_bytes(path.read_bytes()[:-cut])
    torn = ResultFile(path)
    assert torn.get("0") == documents[0]
    # Without its line break alone, a line is whole.
    assert torn.get("1") == (documents[1] if cut == 1 else None)
    for document in documents[1:]:
        torn.add(document)
    again = ResultFile(path)
    assert [again.get(str(number)) for number in range(3)] == documents


def points() -> list[Point]:
    first = summarise([scored([0.0, 2.0], maskable=2), scored([2.0, 4.0], maskable=2)])
    return [
        first,
        replace(first, length=16, stderr=None, pseudo_perplexity_stderr=None),
        replace(first, model="yours", pseudo_perplexity=900.0),
    ]


def test_the_csv_has_a_row_for_each_model_and_length(tmp_path: Path) -> None:
    write_csv(points(), tmp_path / "perplexity.csv")
    head, first, second, third = (tmp_path / "perplexity.csv").read_text().splitlines()
    assert head == (
        "model,length,documents,positions,loss,stderr,pseudo_perplexity,"
        "pseudo_perplexity_stderr,sampling_stderr"
    )
    assert first.startswith("mine,8,2,4,2.0,1.0,7.38905609893065,7.38905609893065,0.0")
    assert second.startswith("mine,16,2,4,2.0,,7.38905609893065,,0.0")
    assert third.startswith("yours,8,2,4,2.0,1.0,900.0")


def test_a_plot_shows_each_model_and_is_the_same_each_time(tmp_path: Path) -> None:
    assert plot(points(), tmp_path / "first") is None
    assert plot(points(), tmp_path / "second") is None
    assert (tmp_path / "first.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "first.svg").read_text()
    assert svg == (tmp_path / "second.svg").read_text()
    for words in ("mine", "yours", "Sequence length (tokens)", "Pseudo-perplexity"):
        assert f">{words}<" in svg


def test_without_matplotlib_the_plot_is_left_out_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install" in (plot(points(), tmp_path / "perplexity") or "")
    assert not list(tmp_path.iterdir())
