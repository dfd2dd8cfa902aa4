"""What the models of two_by_two.py have learned: to tell near documents apart, to read a context.

Each takes batches of 64 pairs of every source, contextual and random ones, and looks for the
document of each query among those of its batch. A model of two stages does so in several contexts:
the batch's own documents, as in training, others of the source, some of another source, and none.

Usage, when two_by_two.py has run::

    python benchmarks/two_by_two_why.py [--runs runs/two_by_two] [--batches 4] [--jobs 2]

Writes ``benchmarks/results/two_by_two_why.md`` anew.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from two_by_two import RECIPE

from embedkit.data.batch_table import BatchTable
from embedkit.data.pairs.records import Records
from embedkit.finetuning.mixture import open_mixture
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.load import load
from embedkit.recipe import load_recipe

RESULTS = Path(__file__).parent / "results" / "two_by_two_why.md"
Vectors = NDArray[np.float32]
Encode = Callable[[Sequence[str], str], Vectors]
"""Texts of a side to their vectors."""


def measured(model: Path, runs: Path, batches: int) -> dict[str, float]:
    """Percent of queries whose document is the nearest, by kind of batch and context."""
    torch.set_num_threads(1)
    loaded = load(str(model), dtype="fp32")
    found: dict[str, list[float]] = defaultdict(list)
    sources = open_mixture(load_recipe(str(RECIPE))).records
    table = BatchTable.open(runs / "batches")
    for place, records in enumerate(sources):
        rng = np.random.default_rng(place)
        cut = table[records.name]
        kinds = {
            "contextual": [cut[int(number)] for number in rng.permutation(len(cut))[:batches]],
            "random": [rng.permutation(len(records))[: cut.size] for _ in range(batches)],
        }
        for kind, drawn in kinds.items():
            for rows in drawn:
                for context, encode in encoders(loaded, sources, place, rows).items():
                    found[f"{kind}, {context}"].append(accuracy(records, rows, encode))
    return {key: 100 * fmean(values) for key, values in found.items()}


def encoders(
    model: EmbeddingModel, sources: Sequence[Records], place: int, rows: NDArray[np.int64]
) -> dict[str, Encode]:
    """How to embed ``rows`` of a source: in each context, if there are two stages."""
    own, other = sources[place], sources[(place + 1) % len(sources)]
    prompts = own.prompts.model_dump()
    if not isinstance(model, Contextual):
        return {"": lambda texts, side: np.asarray(model.encode(texts, prompt=prompts[side]))}
    contexts = {
        "its batch": documents(own, rows),
        "its source": documents(own, some(own, len(rows))),
        "another source": documents(other, some(other, len(rows))),
        "none": [],
    }
    return {name: in_context(model, texts, prompts) for name, texts in contexts.items()}


def in_context(model: Contextual, documents: Sequence[str], prompts: Mapping[str, str]) -> Encode:
    prompt = prompts["document"]
    context = model.build_context(documents, num_documents=len(documents), seed=0, prompt=prompt)

    def encode(texts: Sequence[str], side: str) -> Vectors:
        return model.encode(texts, context=context, role="query", prompt=prompts[side]).vectors

    return encode


def documents(records: Records, rows: NDArray[np.int64]) -> list[str]:
    return [each.positive for each in records.take(rows)]


def some(records: Records, count: int) -> NDArray[np.int64]:
    return np.random.default_rng(1).permutation(len(records))[:count]


def accuracy(records: Records, rows: NDArray[np.int64], encode: Encode) -> float:
    pairs = records.take(rows)
    queries = encode([each.query for each in pairs], "query")
    answers = encode([each.positive for each in pairs], "document")
    nearest = (queries @ answers.T).argmax(axis=1)
    return float((nearest == np.arange(len(rows))).mean())


def in_a_process(run: Path, options: argparse.Namespace) -> dict[str, float]:
    words = ["--runs", str(options.runs), "--batches", str(options.batches), "--one", str(run)]
    done = subprocess.run(
        [sys.executable, __file__, *words], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(run.parent.name, found, flush=True)
    return found


def table(found: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """A line for each condition, and context if it has two stages; means over the seeds."""
    lines = [
        "| trained | in the context of | contextual batches | random batches |",
        "|---|---|---:|---:|",
    ]
    for condition, seeds in found.items():
        contexts = dict.fromkeys(key.partition(", ")[2] for key in seeds[0])
        for context in contexts:
            means = [
                fmean(each[f"{kind}, {context}"] for each in seeds)
                for kind in ("contextual", "random")
            ]
            lines.append(f"| {condition} | {context} | {means[0]:.1f} | {means[1]:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/two_by_two"))
    parser.add_argument("--batches", type=int, default=4, help="of each source and kind")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one, options.runs, options.batches)))
        return
    # By condition and steps, such as plain-80; the last number is the seed.
    runs: dict[str, list[Path]] = defaultdict(list)
    for model in sorted(options.runs.glob("*/model")):
        runs[model.parent.name.rpartition("-")[0].replace("-", " ")].append(model)
    runs = {"not at all": [options.runs / "backbone"], **runs}
    with ThreadPoolExecutor(options.jobs) as pool:
        found = {
            condition: list(pool.map(partial(in_a_process, options=options), models))
            for condition, models in runs.items()
        }
    RESULTS.write_text(
        "# What the models of two_by_two.py have learned\n\n"
        f"{datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, "
        f"`python {shlex.join(sys.argv)}`.\nPercent of queries whose own document is the nearest "
        f"of 64, over {options.batches} batches of each of five sources:\nthe same queries for "
        f"every model, and means over the seeds. Nothing is filtered.\n\n{table(found)}\n"
    )
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
