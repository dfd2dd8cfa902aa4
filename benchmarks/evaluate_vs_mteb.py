"""Evaluation beside mteb with sentence-transformers: the same model, tasks and precision.

Each contender scores all tasks in a process of its own, in turns, without kept vectors or results:
embedkit as ``eval-mteb`` does it, and mteb called with a ``SentenceTransformer``. The scores are
compared first. The seconds spent in the encoder are counted apart from the rest, which is search,
classifiers, metrics and reading of data. What mteb takes longer is divided among three causes:
texts that only mteb encodes (repeats within a task), seconds for a text, and the rest.

Usage::

    python benchmarks/evaluate_vs_mteb.py --tasks DIR [--pairs FILE] [--dtype fp32] [--rounds 3]

``DIR`` holds task folders. ``FILE`` is a parquet file with the columns query and positive, of which
a retrieval task is made: all positives are its corpus. The result is a section of
``benchmarks/results/evaluate.md``.
"""

from needs import require

if __name__ == "__main__":
    require("dev", "mteb")

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import harness
import mteb
import numpy as np
import pyarrow.parquet as pq
import sentence_transformers
import torch
from harness import Spread
from mteb.abstasks.abstask import AbsTask
from mteb.cache import ResultCache
from sentence_transformers import SentenceTransformer

from embedkit.distributed import local_device
from embedkit.evaluation import evaluate as evaluation
from embedkit.evaluation.settings import EvaluationSettings
from embedkit.evaluation.task_folders.reading import read_task_folders
from embedkit.models import hub
from embedkit.models.load import opened
from embedkit.recipe.dtype_settings import Dtype


class TimedEncode:
    """A model's ``encode`` that adds up its seconds and texts."""

    def __init__(self, encode: Callable[..., Any]) -> None:
        self._encode, self.seconds, self.texts = encode, 0.0, 0

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        began = time.perf_counter()
        try:
            return self._encode(*args, **keywords)
        finally:
            self.seconds += time.perf_counter() - began
            self.texts += len(args[0] if args else keywords["inputs"])


def by_embedkit(
    tasks: Sequence[AbsTask], dtype: Dtype, output: Path
) -> tuple[dict[str, Any], TimedEncode]:
    """Score as ``embedkit eval-mteb --no-cache``; return the scores and what encoding took."""
    model = opened("starter", dtype=dtype).to(local_device())
    vars(model)["encode"] = timed = TimedEncode(model.encode)
    settings = EvaluationSettings(dtype=dtype, cache=False)
    summary = evaluation.score(model, lambda: [*tasks], output, settings)
    assert not summary.failed, summary.failed
    return {name: score.score for name, score in summary.scores.items()}, timed


def by_mteb(
    tasks: Sequence[AbsTask], dtype: Dtype, output: Path
) -> tuple[dict[str, Any], TimedEncode]:
    """Score with mteb and sentence-transformers, as their users call them."""
    device = local_device()
    model = SentenceTransformer(hub.resolve("starter"), device=str(device))
    vars(model)["encode"] = timed = TimedEncode(model.encode)
    in_bf16 = torch.autocast(device.type, torch.bfloat16) if dtype == "bf16" else nullcontext()
    with in_bf16:
        results = mteb.evaluate(model, tasks, cache=ResultCache(output), co2_tracker=False)
    splits = {task.metadata.name: list(task.eval_splits) for task in tasks}
    scores = {
        result.task_name: round(float(result.get_score(splits=splits[result.task_name])), 6)
        for result in results.task_results
    }
    return scores, timed


CONTENDERS = {"embedkit": by_embedkit, "mteb": by_mteb}


def score(contender: str, folders: list[str], dtype: Dtype) -> dict[str, Any]:
    """Score all tasks; return scores, seconds, those of encoding, and the number of its texts."""
    tasks = [task for folder in folders for task in read_task_folders(Path(folder))]
    with tempfile.TemporaryDirectory() as output:
        began = time.perf_counter()
        scores, encode = CONTENDERS[contender](tasks, dtype, Path(output))
        seconds = time.perf_counter() - began
    spent = f"{encode.seconds:.1f} of them encoding {encode.texts:,} texts"
    print(f"{contender}: {seconds:.1f} s, {spent}", flush=True)
    return {
        "scores": scores,
        "seconds": seconds,
        "encoding": encode.seconds,
        "texts": encode.texts,
    }


def write_retrieval(pairs: Path, queries: int, folder: Path) -> Path:
    """Write a retrieval task whose corpus is all positives of ``pairs``, with some queries."""
    table = pq.read_table(pairs, columns=["query", "positive"]).to_pydict()
    ids = {text: f"d{n}" for n, text in enumerate(dict.fromkeys(table["positive"]))}
    answers = dict(zip(table["query"], table["positive"], strict=True))
    drawn = np.random.default_rng(0).permutation(sorted(answers))[:queries].tolist()
    folder.mkdir(parents=True)
    (folder / "task.json").write_text(json.dumps({"type": "retrieval"}))
    corpus = [{"_id": id_, "title": "", "text": text} for text, id_ in ids.items()]
    asked = [{"_id": f"q{n}", "text": text} for n, text in enumerate(drawn)]
    for name, rows in (("corpus", corpus), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = [f"q{n}\t{ids[answers[text]]}\t1" for n, text in enumerate(drawn)]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    return folder


def paragraphs(runs: Mapping[str, Sequence[Mapping[str, Any]]], apart: float) -> list[str]:
    """Return the table of seconds, the ratio, and the share of each cause."""
    rows, medians = [], {}
    for name, results in runs.items():
        whole = Spread.of(result["seconds"] for result in results)
        encoding = Spread.of(result["encoding"] for result in results).median
        rest = Spread.of(result["seconds"] - result["encoding"] for result in results).median
        texts = int(results[0]["texts"])
        medians[name] = whole.median, encoding, rest, texts
        shown = f"{whole.median:.1f} ({whole.min:.1f} to {whole.max:.1f})"
        rows.append([name, shown, f"{encoding:.1f}", f"{texts:,}", f"{rest:.1f}"])
    table = harness.markdown(("", "seconds", "encoding", "texts encoded", "rest"), rows)
    ratio = medians["mteb"][0] / medians["embedkit"][0]
    remark = f"embedkit is {ratio:.2f} times as fast; scores differ by at most {apart:.6f}."
    return [table, remark, causes(medians["embedkit"], medians["mteb"])]


def causes(ours: tuple[float, float, float, int], theirs: tuple[float, float, float, int]) -> str:
    """Say how many seconds each cause takes of the difference.

    The arguments are seconds of all, of encoding and of the rest, and the number of texts encoded.
    """
    (_, our_encoding, our_rest, our_texts), (_, encoding, rest, texts) = ours, theirs
    repeats = (texts - our_texts) * encoding / texts
    faster = encoding - repeats - our_encoding
    return (
        f"Of mteb's seconds more, {repeats:.1f} are texts that are encoded again, {faster:.1f} are "
        f"slower encoding of the same texts, and {rest - our_rest:.1f} are the rest."
    )


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = harness.make_parser(__doc__, "evaluate.md")
    parser.add_argument("--tasks", type=Path, required=True, help="A folder of task folders.")
    parser.add_argument("--only", nargs="+", help="Names of task folders. Default: all.")
    parser.add_argument("--pairs", type=Path, help="A parquet file of pairs: one task more.")
    parser.add_argument("--queries", type=int, default=2_000, help="Number of its queries.")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args(words)


def main() -> None:
    """Score in turns, compare the scores, and add a section to the results."""
    options = read_options()
    found = sorted(path.parent for path in options.tasks.glob("*/task.json"))
    folders = [path for path in found if not options.only or path.name in options.only]
    with tempfile.TemporaryDirectory() as made:
        if options.pairs:
            folder = Path(made) / options.pairs.stem
            folders.append(write_retrieval(options.pairs, options.queries, folder))
        names = [str(folder) for folder in folders]
        runs = harness.in_turns(
            {
                contender: partial(
                    harness.in_a_process, partial(score, contender, names, options.dtype)
                )
                for contender in CONTENDERS
            },
            options.rounds,
        )
    ours, theirs = (runs[name][0]["scores"] for name in CONTENDERS)
    assert ours.keys() == theirs.keys(), (sorted(ours), sorted(theirs))
    apart = max(abs(ours[name] - theirs[name]) for name in ours)
    stamp = harness.stamp(local_device(), mteb, sentence_transformers)
    said = paragraphs(runs, apart)
    harness.append_section(options.results, "Evaluation beside mteb", stamp, *said)
    print("\n\n".join(said))


if __name__ == "__main__":
    main()
