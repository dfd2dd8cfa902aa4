"""What a training step of the contextual model costs beside one of the plain model.

Both are made around one encoder and take the same batches of real text, forward, backward and Adam.
Every row of the table is measured in a process of its own, one after the other.

Usage::

    python benchmarks/contextual_step.py [--model starter] [--manifest hpo_definition]
        [--slots 16 64] [--chunks 4096 0] [--steps 5] [--threads 1]

``--slots`` are numbers of context documents, ``--chunks`` values of ``micro_batch_tokens``, 0 for
no gradient caching. Each run adds to ``benchmarks/results/contextual_step.md``.
"""

import argparse
import json
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import resident
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

RESULTS = Path(__file__).parent / "results" / "contextual_step.md"
TITLE = "A step of the contextual model beside the plain one's"
MAX_TOKENS = 128
MIB = 2**20


@dataclass(frozen=True)
class Step:
    pairs: int
    tokens: float
    """That an encoder reads: of the texts, and of the context's documents."""
    positions: float
    """As many, and those of the context in front of every text."""
    seconds: float
    peak: float
    """MiB at most, the model and its moments included."""


def measured(args: argparse.Namespace, slots: int, micro_batch_tokens: int | None) -> Step:
    """The median of some steps; ``slots`` is 0 for the plain model."""
    device = local_device()
    embedder = hub.load(args.model, settings=ModelSettings(attention="eager"), device=device)
    model: Embedder | Contextual = embedder
    objective: ContextualObjective | ContrastiveObjective = ContrastiveObjective(
        Contrastive(kind="contrastive", temperature=0.02, micro_batch_tokens=micro_batch_tokens)
    )
    if slots:
        model = Contextual.around(embedder, ContextualConfig(num_context=slots))
        objective = ContextualObjective(
            InContext(kind="contextual", temperature=0.02, micro_batch_tokens=micro_batch_tokens)
        )
    optimizer = torch.optim.Adam(model.train().parameters(), lr=5e-5, fused=True)
    seconds, tokens, positions = [], [], []
    for number, batch in enumerate(batches_of(args, embedder)):
        begun = time.perf_counter()
        optimizer.zero_grad()
        metrics = objective.backward(model, batch.to(device), key=number, scale=1.0)
        optimizer.step()
        tokens.append(float(metrics["tokens"]))  # Waits for the device.
        seconds.append(time.perf_counter() - begun)
        positions.append(tokens[-1] + slots * (len(batch.queries) + len(batch.documents)))
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else resident.bytes_at_most()
    # The first step also makes the optimizer's moments.
    return Step(
        args.batch, median(tokens[1:]), median(positions[1:]), median(seconds[1:]), peak / MIB
    )


def batches_of(args: argparse.Namespace, embedder: Embedder) -> list[ContrastiveBatch]:
    """As many as are timed and one before them, the same for every model."""
    records = open_records(args.manifest)
    sampler = BatchSampler(
        [Source(records.name, len(records), args.batch)], [1.0], steps=args.steps + 1, seed=7
    )
    data = Data(
        batch_size=args.batch,
        mix=(Mix(manifest=args.manifest),),
        max_query_tokens=MAX_TOKENS,
        max_document_tokens=MAX_TOKENS,
    )
    batches = Batches(sampler, [records], embedder.tokenizer, data, seed=7)
    return [batches[number] for number in range(args.steps + 1)]


def in_a_process(words: list[str], slots: int, chunk: int) -> Step:
    """``measured``, in a process that holds nothing else."""
    command = [sys.executable, __file__, *words, "--one", str(slots), str(chunk)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Step(**json.loads(done.stdout.splitlines()[-1]))


def table(found: dict[tuple[int, int], Step]) -> str:
    heads = ["model", "J", "micro_batch_tokens", "positions", "s a step", "to plain", "peak MiB"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---:|---:|---:|---:|---:|---:|"]
    for (slots, chunk), step in found.items():
        plain = found[0, chunk]
        cells = [
            "contextual" if slots else "plain",
            str(slots or ""),
            f"{chunk:,}" if chunk else "no caching",
            f"{step.positions:,.0f}",
            f"{step.seconds:.2f}",
            f"{step.seconds / plain.seconds:.1f}",
            f"{step.peak:,.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="starter")
    parser.add_argument("--manifest", default="hpo_definition")
    parser.add_argument("--batch", type=int, default=64, help="pairs")
    parser.add_argument("--slots", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--chunks", type=int, nargs="+", default=[4096, 0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="on a CPU")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.one:
        slots, chunk = args.one
        print(json.dumps(asdict(measured(args, slots, chunk or None))))
        return
    words = sys.argv[1:]
    found = {}
    for chunk in args.chunks:
        for slots in (0, *args.slots):
            found[slots, chunk] = in_a_process(words, slots, chunk)
            print(slots, chunk, found[slots, chunk], flush=True)
    first = next(iter(found.values()))
    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else f"CPU, {args.threads} thread(s)"
    text = (
        f"## `python {shlex.join(['benchmarks/contextual_step.py', *words])}`\n\n"
        f"{datetime.now(UTC):%Y-%m-%d}, {device}, {platform.machine()}, torch {torch.__version__}, "
        f"fp32; {args.model}, {first.pairs} pairs of {args.manifest} with {first.tokens:,.0f} "
        f"tokens,\nmedian of {args.steps} steps of forward, backward and Adam.\n\n{table(found)}\n"
    )
    before = RESULTS.read_text() if RESULTS.exists() else f"# {TITLE}\n"
    RESULTS.write_text(f"{before}\n{text}")


if __name__ == "__main__":
    main()
