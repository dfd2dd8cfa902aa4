"""Measures if models of two_by_two.py tell near documents apart, and if they use their context.

Each takes batches of 64 pairs of every source, contextual and random ones, and looks for the
document of each query among those of its batch. A model of two stages does so in several contexts:
the batch's own documents, as in training, others of the source, some of another source, and none.

Usage, when two_by_two.py has run::

    python benchmarks/two_by_two_why.py [--runs runs/two_by_two] [--batches 4] [--jobs 2]

Each run adds to ``benchmarks/results/two_by_two_why.md``.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean

import harness
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

TITLE = "What the models of two_by_two.py have learned"
Vectors = NDArray[np.float32]
Encode = Callable[[Sequence[str], str], Vectors]
"""Turns texts of a side into their vectors."""


def measure_model(model: str, runs: str, batches: int) -> dict[str, float]:
    """Return the percent of queries whose document is nearest, by kind of batch and context."""
    torch.set_num_threads(1)
    loaded = load(model, dtype="fp32")
    shares: dict[str, list[float]] = defaultdict(list)
    sources = open_mixture(load_recipe(str(RECIPE))).records
    table = BatchTable.open(Path(runs) / "batches")
    for number, records in enumerate(sources):
        rng = np.random.default_rng(number)
        near = table[records.name]
        kinds = {
            "contextual": [near[int(batch)] for batch in rng.permutation(len(near))[:batches]],
            "random": [rng.permutation(len(records))[: near.size] for _ in range(batches)],
        }
        for kind, drawn in kinds.items():
            for rows in drawn:
                for context, encode in encoders(loaded, sources, number, rows).items():
                    shares[f"{kind}, {context}"].append(accuracy(records, rows, encode))
    return {key: 100 * fmean(values) for key, values in shares.items()}


def encoders(
    model: EmbeddingModel, sources: Sequence[Records], number: int, rows: NDArray[np.int64]
) -> dict[str, Encode]:
    """Return how to embed ``rows`` of a source: in each context, if there are two stages."""
    records, other = sources[number], sources[(number + 1) % len(sources)]
    prompts = records.prompts.model_dump()
    if not isinstance(model, Contextual):
        return {"": lambda texts, side: np.asarray(model.encode(texts, prompt=prompts[side]))}
    contexts = {
        "its batch": documents(records, rows),
        "its source": documents(records, some(records, len(rows))),
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
    return [pair.positive for pair in records.take(rows)]


def some(records: Records, count: int) -> NDArray[np.int64]:
    return np.random.default_rng(1).permutation(len(records))[:count]


def accuracy(records: Records, rows: NDArray[np.int64], encode: Encode) -> float:
    pairs = records.take(rows)
    queries = encode([pair.query for pair in pairs], "query")
    answers = encode([pair.positive for pair in pairs], "document")
    nearest = (queries @ answers.T).argmax(axis=1)
    return float((nearest == np.arange(len(rows))).mean())


def measure_apart(model: Path, options: argparse.Namespace) -> dict[str, float]:
    """Measure a model in a process, so that several run at a time."""
    shares = harness.in_a_process(
        partial(measure_model, str(model), str(options.runs), options.batches)
    )
    print(model.parent.name, shares, flush=True)
    return shares


def rows_of(conditions: Mapping[str, Sequence[Mapping[str, float]]]) -> list[list[str]]:
    """Return a row for each condition, and context if it has two stages; means over the seeds."""
    rows = []
    for condition, seeds in conditions.items():
        for context in dict.fromkeys(key.partition(", ")[2] for key in seeds[0]):
            means = [
                fmean(shares[f"{kind}, {context}"] for shares in seeds)
                for kind in ("contextual", "random")
            ]
            rows.append([condition, context, *(f"{mean:.1f}" for mean in means)])
    return rows


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = harness.make_parser(__doc__, "two_by_two_why.md")
    parser.add_argument("--runs", type=Path, default=Path("runs/two_by_two"))
    parser.add_argument("--batches", type=int, default=4, help="Batches of each source and kind.")
    parser.add_argument("--jobs", type=int, default=2, help="Models measured at the same time.")
    return parser.parse_args(words)


def main() -> None:
    """Measure every model, and add to the results."""
    options = read_options()
    # By condition and steps, such as plain-80; the last number is the seed.
    runs: dict[str, list[Path]] = defaultdict(list)
    for model in sorted(options.runs.glob("*/model")):
        runs[model.parent.name.rpartition("-")[0].replace("-", " ")].append(model)
    runs = {"not at all": [options.runs / "backbone"], **runs}
    with ThreadPoolExecutor(options.jobs) as pool:
        conditions = {
            condition: list(pool.map(partial(measure_apart, options=options), models))
            for condition, models in runs.items()
        }
    columns = ("trained", "in the context of", "contextual batches", "random batches")
    table = harness.markdown(columns, rows_of(conditions), text=2)
    harness.append_section(
        options.results,
        TITLE,
        f"{harness.stamp(torch.device('cpu'))}, one thread a model.\n"
        "Percent of queries whose own document is the nearest of 64, over "
        f"{options.batches} batches of each of five sources:\n"
        "the same queries for every model, and means over the seeds. Nothing is filtered.",
        table,
    )
    print(table)


if __name__ == "__main__":
    main()
