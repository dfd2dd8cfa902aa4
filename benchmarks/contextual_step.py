"""Measures the cost of a training step of the contextual model beside one of the plain model.

Both are made around one encoder and take the same batches of real text, forward, backward and Adam.
Every row of the table is measured in a process of its own, one after the other.

Usage::

    python benchmarks/contextual_step.py [--model starter] [--manifest hpo_definition]
        [--slots 16 64] [--chunks 4096 0] [--steps 5] [--threads 1]

``--slots`` are numbers of context documents, ``--chunks`` values of ``micro_batch_tokens``, 0 for
no gradient caching. Each run adds to ``benchmarks/results/contextual_step.md``.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median

import harness
import torch

from embedkit.data.batch_sampler import BatchSampler, Source
from embedkit.data.pairs.contrastive_batches import Batches, ContrastiveBatch
from embedkit.data.pairs.records import open_records
from embedkit.distributed import local_device
from embedkit.models import hub
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedder import Embedder
from embedkit.objectives.contextual import ContextualObjective
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.recipe import ContextualConfig, Contrastive, Data, InContext, Mix, ModelSettings

TITLE = "A step of the contextual model beside the plain one's"
MAX_TOKENS = 128
COLUMNS = ("model", "J", "micro_batch_tokens", "positions", "s a step", "to plain", "peak MiB")


def measure_steps(
    model: str, manifest: str, *, batch: int, steps: int, threads: int, slots: int, chunk: int
) -> dict[str, float]:
    """Return medians over the steps of a model, which is the plain one where ``slots`` is 0.

    ``tokens`` are those of the texts and of the context's documents; ``positions`` also counts the
    context in front of every text. ``peak`` is in MiB, the model and its moments included.
    """
    torch.set_num_threads(threads)
    device = local_device()
    embedder = hub.load(model, settings=ModelSettings(attention="eager"), device=device)
    trained, objective = with_objective(embedder, slots, chunk or None)
    optimizer = torch.optim.Adam(trained.train().parameters(), lr=5e-5, fused=True)
    seconds, tokens, positions = [], [], []
    for number, pairs in enumerate(batches_of(manifest, batch, steps + 1, embedder)):
        began = time.perf_counter()
        optimizer.zero_grad()
        metrics = objective.backward(trained, pairs.to(device), key=number, scale=1.0)
        optimizer.step()
        tokens.append(float(metrics["tokens"]))  # Waits for the device.
        seconds.append(time.perf_counter() - began)
        positions.append(tokens[-1] + slots * (len(pairs.queries) + len(pairs.documents)))
    # The first step also makes the optimizer's moments.
    return {
        "tokens": median(tokens[1:]),
        "positions": median(positions[1:]),
        "seconds": median(seconds[1:]),
        "peak": harness.peak_bytes(device) / harness.MIB,
    }


def with_objective(
    embedder: Embedder, slots: int, chunk: int | None
) -> tuple[Embedder | Contextual, ContextualObjective | ContrastiveObjective]:
    """Return the model that is trained, and its objective."""
    if not slots:
        return embedder, ContrastiveObjective(
            Contrastive(kind="contrastive", temperature=0.02, micro_batch_tokens=chunk)
        )
    return Contextual.around(embedder, ContextualConfig(num_context=slots)), ContextualObjective(
        InContext(kind="contextual", temperature=0.02, micro_batch_tokens=chunk)
    )


def batches_of(manifest: str, batch: int, count: int, embedder: Embedder) -> list[ContrastiveBatch]:
    """Return ``count`` batches, the same for every model."""
    records = open_records(manifest)
    sampler = BatchSampler([Source(records.name, len(records), batch)], [1.0], steps=count, seed=7)
    data = Data(
        batch_size=batch,
        mix=(Mix(manifest=manifest),),
        max_query_tokens=MAX_TOKENS,
        max_document_tokens=MAX_TOKENS,
    )
    batches = Batches(sampler, [records], embedder.tokenizer, data, seed=7)
    return [batches[number] for number in range(count)]


def row(slots: int, chunk: int, step: Mapping[str, float], plain: Mapping[str, float]) -> list[str]:
    """Return the row of a model; ``plain`` is the step of the plain one with the same chunks."""
    return [
        "contextual" if slots else "plain",
        str(slots or ""),
        f"{chunk:,}" if chunk else "no caching",
        f"{step['positions']:,.0f}",
        f"{step['seconds']:.2f}",
        f"{step['seconds'] / plain['seconds']:.1f}",
        f"{step['peak']:,.0f}",
    ]


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = harness.make_parser(__doc__, "contextual_step.md")
    parser.add_argument("--model", default="starter")
    parser.add_argument("--manifest", default="hpo_definition")
    parser.add_argument("--batch", type=int, default=64, help="Pairs of a batch.")
    parser.add_argument("--slots", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--chunks", type=int, nargs="+", default=[4096, 0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="Threads of a step on a CPU.")
    return parser.parse_args(words)


def main() -> None:
    """Measure both models, and add to the results."""
    options = read_options()
    torch.set_num_threads(options.threads)
    measured = partial(
        measure_steps,
        options.model,
        options.manifest,
        batch=options.batch,
        steps=options.steps,
        threads=options.threads,
    )
    rows = []
    for chunk in options.chunks:
        plain = harness.in_a_process(partial(measured, slots=0, chunk=chunk))
        rows.append(row(0, chunk, plain, plain))
        for slots in options.slots:
            step = harness.in_a_process(partial(measured, slots=slots, chunk=chunk))
            rows.append(row(slots, chunk, step, plain))
            print(*rows[-1], flush=True)
    harness.append_section(
        options.results,
        TITLE,
        f"{harness.stamp(local_device())}, fp32; {options.model}, {options.batch} pairs of "
        f"{options.manifest} with {plain['tokens']:,.0f} tokens,\n"
        f"median of {options.steps} steps of forward, backward and Adam.",
        harness.markdown(COLUMNS, rows),
    )


if __name__ == "__main__":
    main()
