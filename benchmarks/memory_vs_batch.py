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
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import resident
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
RESULTS = Path(__file__).parent / "results" / "memory.md"
TITLE = "Peak memory of a contrastive step against its batch"
MIB = 2**20


def embedder(name: str) -> Embedder:
    """``small``, two random layers of 128, or any name that embedkit knows, without dropout."""
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
    """Random ids, the same at every call."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1000, 4000, (count * length,), generator=generator)
    offsets = torch.arange(count + 1) * length
    return TokenBatch(ids, offsets, torch.zeros(count, dtype=torch.int64))


def batch_of(size: int, mine: slice) -> ContrastiveBatch:
    """The rows ``mine`` of a batch of ``size`` pairs, each with texts of its own."""
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


def measured(name: str, size: int, micro_batch_tokens: int | None) -> dict[str, float]:
    """One step of this rank: its loss, seconds, and MiB at most beyond those before it."""
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
    before = resident.bytes_now()
    resident.forget()
    start = time.perf_counter()
    metrics = objective.backward(model, batch, key=0, scale=1.0)
    seconds = time.perf_counter() - start
    vectors = 2 * size * model.backbone.width * 4
    return {
        "loss": float(metrics["loss"]),
        "seconds": seconds,
        "peak": (resident.bytes_at_most() - before) / MIB,
        # Of queries and documents, and their gradients.
        "vectors": 2 * vectors / MIB,
    }


def in_a_process(name: str, size: int, *, cached: bool, returned: bool) -> dict[str, float]:
    """``measured``, in a process that has made no step before."""
    words = [sys.executable, __file__, "--one", name, str(size), str(int(cached))]
    environment = os.environ | (resident.RETURNED if returned else {})
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def on_ranks(name: str, size: int, ranks: int) -> dict[str, float]:
    """One step with the negatives of all ranks: the largest of what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_rank, (ranks, folder, name, size), nprocs=ranks, start_method="spawn")
        found = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return {key: max(each[key] for each in found) for key in found[0]}


def _rank(rank: int, ranks: int, folder: str, name: str, size: int) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks
    )
    found = measured(name, size, CHUNK_TOKENS)
    torch.distributed.destroy_process_group()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


def rows_of(name: str, sizes: list[int], whole_up_to: int) -> list[list[str]]:
    """A line of the table for each batch."""
    rows, last = [], 0.0
    for size in sizes:
        used = in_a_process(name, size, cached=True, returned=True)
        kept = in_a_process(name, size, cached=True, returned=False)
        # Twice the batch, twice the graph.
        fits = size <= whole_up_to and 2 * last * MIB < 0.8 * psutil.virtual_memory().available
        whole = in_a_process(name, size, cached=False, returned=True) if fits else None
        last = whole["peak"] if whole else float("inf")
        rows.append(
            [
                name,
                f"{size:,}",
                f"{used['peak']:,.0f}",
                f"{used['vectors']:,.0f}",
                f"{kept['peak']:,.0f}",
                f"{whole['peak']:,.0f}" if whole else "-",
                f"{kept['seconds']:.1f}",
            ]
        )
        print(" ".join(rows[-1]), flush=True)
    return rows


def table(rows: list[list[str]]) -> str:
    heads = ["model", "batch", "cached, MiB", "of it vectors, MiB", "with freed blocks kept, MiB"]
    heads += ["not cached, MiB", "cached, s"]
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["small", "starter"])
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--whole-up-to", type=int, default=max(BATCHES))
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--ranks-batch", type=int, default=4096)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        name, size, cached = args.one
        print(json.dumps(measured(name, int(size), CHUNK_TOKENS if int(cached) else None)))
        return
    words = " ".join(sys.argv[1:])
    text = [
        f"## `python benchmarks/memory_vs_batch.py {words}`\n",
        f"{datetime.now(UTC):%Y-%m-%d}, CPU, torch {torch.__version__}, fp32, queries of {QUERY} "
        f"and documents of {DOCUMENT} tokens,\nchunks of {CHUNK_TOKENS:,} tokens. MiB beyond those "
        "of the process with model, gradients and batch in it.\n",
        table(
            [row for name in args.models for row in rows_of(name, args.batches, args.whole_up_to)]
        ),
    ]
    if args.ranks:
        text.append(_compared(args.models[0], args.ranks_batch, args.ranks))
    before = RESULTS.read_text() if RESULTS.exists() else f"# {TITLE}\n"
    RESULTS.write_text("\n".join([before, *text]) + "\n")


def _compared(name: str, size: int, ranks: int) -> str:
    together, alone = (
        on_ranks(name, size, ranks),
        in_a_process(name, size, cached=True, returned=False),
    )
    return (
        f"\nNegatives across {ranks} ranks (gloo), {name}, batch {size:,}: loss "
        f"{together['loss']:.6f} against {alone['loss']:.6f} in one process; "
        f"{together['peak']:,.0f} MiB a rank, {together['seconds']:.1f} s."
    )


if __name__ == "__main__":
    main()
