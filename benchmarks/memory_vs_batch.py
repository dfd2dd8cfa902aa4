"""Peak memory of a contrastive step against its batch, with gradient caching and without.

Every step runs in a process of its own, on random ids: queries of 4 tokens, documents of 8. What
is counted is memory beyond that of the process with model, gradients and batch in it. glibc keeps
freed blocks in a heap that becomes fragmented; so a step with caching is measured twice: where
freed blocks go back to the system at once, which shows what the step uses, and as processes start.
Without caching, a batch is left out once the last one says that it would not fit.

Usage::

    python benchmarks/memory_vs_batch.py [--models small starter] [--batches 256 ... 8192]
        [--whole-up-to 4096] [--ranks 2 --ranks-batch 4096]

``--ranks`` also makes one step on that many gloo processes, with negatives of all of them, and
compares its loss with that of a single process. Each run adds to ``benchmarks/results/memory.md``.
"""

from needs import require

if __name__ == "__main__":
    require("dev", "psutil")

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import harness
import psutil
import torch
from torch.multiprocessing.spawn import start_processes
from transformers import AutoModel, BertConfig, BertModel

from embedkit import distributed
from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.models import hub
from embedkit.models.backbones import PaddedBackbone
from embedkit.models.embedder import Embedder
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.recipe import Contrastive
from embedkit.tokens.batch import TokenBatch

QUERY, DOCUMENT = 4, 8
CHUNK_TOKENS = 1024
BATCHES = (256, 512, 1024, 2048, 4096, 8192)
TITLE = "Peak memory of a contrastive step against its batch"
COLUMNS = ("model", "batch", "cached, MiB", "of it vectors, MiB", "with freed blocks kept, MiB",
           "not cached, MiB", "cached, s")  # fmt: skip


def embedder(name: str) -> Embedder:
    """Return ``small``, two random layers, or load any name that embedkit knows; no dropout."""
    tokenizer = hub.load_tokenizer("starter")
    if name == "small":
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=4000,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=512,
        )
        network = BertModel(config)
    else:
        network = AutoModel.from_pretrained(hub.resolve(name))
    model = Embedder(
        PaddedBackbone(network, pad_id=0),
        tokenizer,
        pooling="mean",
        include_prompt=True,
        prompts={},
        max_tokens=128,
        position_limit=128,
        name=name,
    )
    return model.eval()


def sequences(count: int, length: int, seed: int) -> TokenBatch:
    """Draw random ids, the same at every call."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1000, 4000, (count * length,), generator=generator)
    offsets = torch.arange(count + 1) * length
    return TokenBatch(ids, offsets, torch.zeros(count, dtype=torch.int64))


def batch_of(size: int, mine: slice) -> ContrastiveBatch:
    """Return the rows ``mine`` of a batch of ``size`` pairs that share no text."""
    rows = torch.arange(size)[mine]
    return ContrastiveBatch(
        source="random",
        size=size,
        in_batch_negatives=True,
        queries=sequences(size, QUERY, 0).select(rows),
        documents=sequences(size, DOCUMENT, 1).select(rows),
        owners=torch.arange(len(rows)),
        query_hashes=1 + rows,
        document_hashes=1 + size + rows,
        labels=torch.zeros(len(rows), dtype=torch.int64),
    )


def measure_step(name: str, size: int, micro_batch_tokens: int | None) -> dict[str, float]:
    """Make one step of this rank; its loss, its seconds, and MiB at most beyond those before it."""
    model = embedder(name)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    mine = distributed.share_of(size, distributed.rank(), distributed.world_size())
    batch = batch_of(size, mine)
    objective = ContrastiveObjective(
        Contrastive(kind="contrastive", micro_batch_tokens=micro_batch_tokens)
    )
    # What the first forward allocates for good is of no batch.
    with torch.no_grad():
        model(batch.queries.select(torch.arange(8)))

    def step() -> tuple[float, float]:
        began = time.perf_counter()
        metrics = objective.backward(model, batch, key=0, scale=1.0)
        return float(metrics["loss"]), time.perf_counter() - began

    (loss, seconds), peak = harness.peak_beyond(step)
    vectors = 2 * size * model.backbone.width * 4
    return {
        "loss": loss,
        "seconds": seconds,
        "peak": peak / harness.MIB,
        # The vectors of queries and documents, and their gradients.
        "vectors": 2 * vectors / harness.MIB,
    }


def step_on_ranks(name: str, size: int, ranks: int) -> dict[str, float]:
    """Make one step with the negatives of all ranks; the largest of what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_rank, (ranks, folder, name, size), nprocs=ranks, start_method="spawn")
        steps = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return {key: max(step[key] for step in steps) for key in steps[0]}


def _rank(rank: int, ranks: int, folder: str, name: str, size: int) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks
    )
    step = measure_step(name, size, CHUNK_TOKENS)
    torch.distributed.destroy_process_group()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(step))


def rows_of(name: str, sizes: Sequence[int], whole_up_to: int) -> list[list[str]]:
    """Measure a model; a row for each batch."""
    rows, last = [], 0.0
    returned = harness.FREED_BLOCKS_RETURNED
    for size in sizes:
        cached = partial(measure_step, name, size, CHUNK_TOKENS)
        used = harness.in_a_process(cached, **returned)
        kept = harness.in_a_process(cached)
        # Twice the batch, twice the graph.
        free = psutil.virtual_memory().available
        fits = size <= whole_up_to and 2 * last * harness.MIB < 0.8 * free
        whole = partial(measure_step, name, size, None)
        last = harness.in_a_process(whole, **returned)["peak"] if fits else float("inf")
        rows.append(
            [
                name,
                f"{size:,}",
                f"{used['peak']:,.0f}",
                f"{used['vectors']:,.0f}",
                f"{kept['peak']:,.0f}",
                f"{last:,.0f}" if fits else "-",
                f"{kept['seconds']:.1f}",
            ]
        )
        print(*rows[-1], flush=True)
    return rows


def compared(name: str, size: int, ranks: int) -> str:
    """Return a sentence on one step of several ranks beside that of a single process."""
    together = step_on_ranks(name, size, ranks)
    alone = harness.in_a_process(partial(measure_step, name, size, CHUNK_TOKENS))
    return (
        f"Negatives across {ranks} ranks (gloo), {name}, batch {size:,}: loss "
        f"{together['loss']:.6f} against {alone['loss']:.6f} in one process; "
        f"{together['peak']:,.0f} MiB a rank, {together['seconds']:.1f} s."
    )


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = harness.make_parser(__doc__, "memory.md")
    parser.add_argument("--models", nargs="+", default=["small", "starter"])
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument(
        "--whole-up-to",
        type=int,
        default=max(BATCHES),
        help="The largest batch that is also measured without gradient caching.",
    )
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--ranks-batch", type=int, default=4096)
    return parser.parse_args(words)


def main() -> None:
    """Measure every batch, and add to the results."""
    options = read_options()
    rows = [
        row
        for name in options.models
        for row in rows_of(name, options.batches, options.whole_up_to)
    ]
    paragraphs = [harness.markdown(COLUMNS, rows)]
    if options.ranks:
        paragraphs.append(compared(options.models[0], options.ranks_batch, options.ranks))
    harness.append_section(
        options.results,
        TITLE,
        f"{harness.stamp(torch.device('cpu'))}, fp32, queries of {QUERY} and documents of "
        f"{DOCUMENT} tokens,\nchunks of {CHUNK_TOKENS:,} tokens. MiB beyond those of the process "
        "with model, gradients and batch in it.",
        *paragraphs,
    )


if __name__ == "__main__":
    main()
