"""Pretraining throughput at 28 x 768: tokens a second, model flops utilisation and memory.

Beside embedkit, a peer does the same work the usual way: transformers' ``EuroBertForMaskedLM``,
which has the same matrices, on padded rows with sdpa attention and logits for every token. Both
make a forward and a backward of the same sequences with the same masked tokens, in turns. Sequences
are all full (1,024 and 4,096), and of mixed lengths, uniform on a logarithmic scale from 32 to
1,024, where the peer pads to the longest. Ids are random: what they are changes no speed.

Usage::

    python benchmarks/pretrain_throughput.py [--tokens N] [--rounds 3] [--layers 28] [--compile]
    python benchmarks/pretrain_throughput.py --memory [--tokens N]

The result goes to ``benchmarks/results/``, as JSON and as rows of ``pretrain.md``. On a GPU it has
the memory too. On a CPU ``--memory`` measures that, each step in a process of its own, and adds
to ``pretrain_memory.md``; what it counts is memory beyond model, gradients and batch.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import resident
import torch
from torch import Tensor, nn
from transformers import EuroBertConfig, EuroBertForMaskedLM

from embedkit.models.neobert import NeoBERTConfig, NeoBERTForMaskedLM
from embedkit.models.precision import autocast_dtype
from embedkit.pretraining.language_model import LanguageModel
from embedkit.tokens.batch import TokenBatch
from embedkit.training import flops

RATE = 0.2
VOCABULARY = 30_522
RESULTS = Path(__file__).parent / "results"
_VERSIONS = ("torch", "transformers")


def lengths_of(workload: str, tokens: int) -> list[int]:
    """Sequences of about ``tokens`` tokens in all: ``mixed``, or all of one length."""
    if workload != "mixed":
        return [int(workload)] * max(1, tokens // int(workload))
    rng = np.random.default_rng(0)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(int(2 ** rng.uniform(5, 10)))
    return lengths


def inputs(lengths: list[int], device: torch.device) -> tuple[TokenBatch, Tensor, Tensor]:
    """Random sequences, the positions of their masked tokens, and these tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, VOCABULARY, (sum(lengths),), generator=generator)
    positions = (torch.rand(len(ids), generator=generator) < RATE).nonzero().squeeze(1)
    targets = ids[positions]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    batch = TokenBatch(ids, offsets, torch.zeros(len(lengths), dtype=torch.int64))
    return batch.to(device), positions.to(device), targets.to(device)


def embedkit_step(
    model: LanguageModel, batch: TokenBatch, positions: Tensor, targets: Tensor
) -> float:
    """One forward and backward; the mean loss."""
    loss, _ = model(batch, positions, targets)
    (loss / len(positions)).backward()
    return loss.item() / len(positions)


def peer_step(
    model: EuroBertForMaskedLM,
    autocast: torch.dtype | None,
    batch: TokenBatch,
    positions: Tensor,
    targets: Tensor,
) -> float:
    """The same on padded rows, with logits for every token."""
    ids, mask = batch.padded(0)
    flat = torch.full_like(batch.ids, -100)
    flat[positions] = targets
    labels = torch.full_like(ids, -100).masked_scatter(mask.bool(), flat)
    with torch.autocast(ids.device.type, dtype=autocast, enabled=autocast is not None):
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    return loss.item()


def models(
    layers: int, device: torch.device, autocast: torch.dtype | None
) -> tuple[LanguageModel, EuroBertForMaskedLM]:
    """NeoBERT and its peer, random."""
    torch.manual_seed(0)
    own = NeoBERTForMaskedLM(NeoBERTConfig(num_hidden_layers=layers))
    config = EuroBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=12,
        max_position_embeddings=4096,
        pad_token_id=0,
        bos_token_id=101,
        eos_token_id=102,
    )
    peer = EuroBertForMaskedLM(config)
    nn.Module.to(peer, device)
    return LanguageModel(own, autocast).to(device), peer


def timed(step: Callable[[], float], model: nn.Module, device: torch.device) -> tuple[float, int]:
    """Seconds of one step, and the bytes that it had on the device at most."""
    model.zero_grad()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    flops.wait(device)
    began = time.perf_counter()
    step()
    flops.wait(device)
    seconds = time.perf_counter() - began
    return seconds, torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def measure(workload: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Medians over the rounds, the two taking turns."""
    autocast = autocast_dtype("auto", device)
    lengths = lengths_of(workload, options.tokens)
    batch, positions, targets = inputs(lengths, device)
    own, peer = models(options.layers, device, autocast)
    if options.compile:
        for layer in own.network.model.transformer_encoder:
            layer.compile()
    steps = {
        "embedkit": (partial(embedkit_step, own, batch, positions, targets), own),
        "peer": (partial(peer_step, peer, autocast, batch, positions, targets), peer),
    }
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in steps}
    # The first round warms up.
    for number in range(options.rounds + 1):
        for name, (step, model) in steps.items():
            result = timed(step, model, device)
            if number:
                found[name].append(result)
    seconds = {name: statistics.median(each[0] for each in runs) for name, runs in found.items()}
    encoder = own.network.model.transformer_encoder
    operations = flops.training_flops(
        torch.tensor(lengths),
        len(positions),
        matrices=sum(each.numel() for each in encoder.parameters() if each.ndim > 1),
        decoder=own.network.decoder.weight.numel(),
        layers=len(encoder),
        width=768,
    )
    peak = flops.matmul_peak(device, autocast or torch.float32)
    return {
        "workload": workload,
        "tokens": sum(lengths),
        "padded_tokens": len(lengths) * max(lengths),
        "precision": "bf16 autocast" if autocast else "fp32",
        "tokens_a_second": {name: sum(lengths) / each for name, each in seconds.items()},
        "ratio": seconds["peer"] / seconds["embedkit"],
        "mfu": operations / seconds["embedkit"] / peak,
        "peak_tflops": peak / 1e12,
        "memory_gb": {name: max(each[1] for each in runs) / 1e9 for name, runs in found.items()},
    }


def memory_in_a_process(name: str, workload: str, options: argparse.Namespace) -> float:
    """GB that one step takes beyond model, gradients and batch, in a process of its own."""
    words = [sys.executable, __file__, "--tokens", str(options.tokens)]
    words += ["--layers", str(options.layers), "--one", name, "--workloads", workload]
    environment = os.environ | resident.RETURNED
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return float(done.stdout.splitlines()[-1]) / 1e9


def memory_of_a_step(name: str, workload: str, options: argparse.Namespace) -> int:
    """Bytes resident at most during one step, less those before it."""
    device = torch.device("cpu")
    autocast = autocast_dtype("auto", device)
    batch, positions, targets = inputs(lengths_of(workload, options.tokens), device)
    own, peer = models(options.layers, device, autocast)
    model: nn.Module = own if name == "embedkit" else peer
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = resident.bytes_now()
    resident.forget()
    if name == "embedkit":
        embedkit_step(own, batch, positions, targets)
    else:
        peer_step(peer, autocast, batch, positions, targets)
    return resident.bytes_at_most() - before


def keep_memory(options: argparse.Namespace, date: str) -> None:
    """Measure both on every workload, print, and add to ``pretrain_memory.md``."""
    table = RESULTS / "pretrain_memory.md"
    columns = ("date", "layers", "length", "tokens", "embedkit GB", "peer GB", "torch")
    if not table.exists():
        table.write_text(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n")
    for workload in options.workloads:
        found = [memory_in_a_process(name, workload, options) for name in ("embedkit", "peer")]
        cells = [
            date,
            str(options.layers),
            workload,
            str(sum(lengths_of(workload, options.tokens))),
        ]
        cells += [*(f"{each:.2f}" for each in found), version("torch")]
        with table.open("a") as file:
            file.write(line := f"| {' | '.join(cells)} |\n")
        print(line, end="", flush=True)


def row(result: dict[str, Any], date: str, processor: str) -> str:
    """A line of ``pretrain.md``."""
    speeds, memory = result["tokens_a_second"], result["memory_gb"]
    cells = [
        *(date, processor, result["precision"], result["workload"], f"{result['tokens']}"),
        *(f"{speeds[name]:,.0f}" for name in ("embedkit", "peer")),
        *(f"{result['ratio']:.2f}", f"{result['mfu']:.1%}", f"{result['peak_tflops']:.2f}"),
        *(f"{memory[name]:.1f}" if memory[name] else "-" for name in ("embedkit", "peer")),
        *(version(name) for name in _VERSIONS),
    ]
    return f"| {' | '.join(cells)} |\n"


_COLUMNS = (
    *("date", "processor", "precision", "length", "tokens"),
    *("embedkit tokens/s", "peer tokens/s", "ratio", "MFU", "peak TFLOP/s"),
    *("embedkit GB", "peer GB", *_VERSIONS),
)


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, help="Of a step. Default: 4,096; 65,536 on a GPU.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--workloads", nargs="+", default=["mixed", "1024", "4096"])
    parser.add_argument("--memory", action="store_true", help="On a CPU: memory instead of speed.")
    parser.add_argument("--one", choices=["embedkit", "peer"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.tokens = options.tokens or (65_536 if device.type == "cuda" else 4_096)
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    cores = f"CPU, {torch.get_num_threads()} threads"
    processor = torch.cuda.get_device_name(device) if device.type == "cuda" else cores
    if options.one:
        print(memory_of_a_step(options.one, options.workloads[0], options))
        return
    RESULTS.mkdir(exist_ok=True)
    if options.memory:
        keep_memory(options, date)
        return
    table = RESULTS / "pretrain.md"
    if not table.exists():
        table.write_text(f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}\n")
    results = []
    for workload in options.workloads:
        results.append(measure(workload, options, device))
        with table.open("a") as file:
            file.write(line := row(results[-1], date, processor))
        print(line, end="", flush=True)
        assert math.isfinite(results[-1]["ratio"])
    record = {"date": date, "processor": processor, "layers": options.layers, "results": results}
    (RESULTS / f"pretrain_{date}_{device.type}.json").write_text(
        json.dumps(record, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
