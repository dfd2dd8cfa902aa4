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
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import harness
import numpy as np
import torch
from torch import Tensor, nn
from transformers import EuroBertConfig, EuroBertForMaskedLM

from embedkit.distributed import local_device
from embedkit.models.neobert import NeoBERTConfig, NeoBERTForMaskedLM
from embedkit.models.precision import autocast_dtype
from embedkit.pretraining.language_model import LanguageModel
from embedkit.tokens.batch import TokenBatch
from embedkit.training import flops

RATE = 0.2
VOCABULARY = 30_522
VERSIONS = ("torch", "transformers")
COLUMNS = (
    *("date", "processor", "precision", "length", "tokens"),
    *("embedkit tokens/s", "peer tokens/s", "ratio", "MFU", "peak TFLOP/s"),
    *("embedkit GB", "peer GB", *VERSIONS),
)
MEMORY_COLUMNS = ("date", "layers", "length", "tokens", "embedkit GB", "peer GB", "torch")


def lengths_of(workload: str, tokens: int) -> list[int]:
    """Return lengths of about ``tokens`` tokens in all: ``mixed``, or all the same."""
    if workload != "mixed":
        return [int(workload)] * max(1, tokens // int(workload))
    rng = np.random.default_rng(0)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(int(2 ** rng.uniform(5, 10)))
    return lengths


def inputs(lengths: list[int], device: torch.device) -> tuple[TokenBatch, Tensor, Tensor]:
    """Draw sequences, the positions of their masked tokens, and these tokens."""
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
    """Make one forward and backward; the mean loss."""
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
    """Make the same step on padded rows, with logits for every token."""
    ids, mask = batch.padded(0)
    flat = torch.full_like(batch.ids, -100)
    flat[positions] = targets
    labels = torch.full_like(ids, -100).masked_scatter(mask.bool(), flat)
    with torch.autocast(ids.device.type, dtype=autocast, enabled=autocast is not None):
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    return loss.item()


@dataclass(frozen=True)
class Contenders:
    """NeoBERT and its peer, random, and a step of each on the same inputs."""

    neobert: LanguageModel
    peer: EuroBertForMaskedLM
    steps: dict[str, Callable[[], float]]

    @property
    def models(self) -> dict[str, nn.Module]:
        return {"embedkit": self.neobert, "peer": self.peer}


def make_contenders(lengths: list[int], layers: int, device: torch.device) -> Contenders:
    """Make both models and their steps on sequences of these lengths."""
    autocast = autocast_dtype("auto", device)
    batch = inputs(lengths, device)
    torch.manual_seed(0)
    network = NeoBERTForMaskedLM(NeoBERTConfig(num_hidden_layers=layers))
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
    neobert = LanguageModel(network, autocast).to(device)
    steps: dict[str, Callable[[], float]] = {
        "embedkit": partial(embedkit_step, neobert, *batch),
        "peer": partial(peer_step, peer, autocast, *batch),
    }
    return Contenders(neobert, peer, steps)


@dataclass(frozen=True)
class Timing:
    """Time and peak memory of one step."""

    seconds: float
    peak: int
    """Bytes that the step had on a GPU at most."""


def timed(step: Callable[[], float], model: nn.Module, device: torch.device) -> Timing:
    """Make one step, and time it."""
    model.zero_grad()
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    flops.wait(device)
    began = time.perf_counter()
    step()
    flops.wait(device)
    return Timing(time.perf_counter() - began, harness.peak_bytes(device) if on_gpu else 0)


def measure(workload: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Measure both models in turns, on sequences of one workload."""
    autocast = autocast_dtype("auto", device)
    lengths = lengths_of(workload, options.tokens)
    contenders = make_contenders(lengths, options.layers, device)
    if options.compile:
        for layer in contenders.neobert.network.model.transformer_encoder:
            layer.compile()
    runs = {
        name: partial(timed, contenders.steps[name], model, device)
        for name, model in contenders.models.items()
    }
    timings = harness.in_turns(runs, options.rounds, warm_up=1)
    seconds = {
        name: harness.Spread.of(timing.seconds for timing in rounds)
        for name, rounds in timings.items()
    }
    ours, peer = seconds["embedkit"].median, seconds["peer"].median
    attainable = flops.matmul_peak(device, autocast or torch.float32)
    return {
        "workload": workload,
        "tokens": sum(lengths),
        "padded_tokens": len(lengths) * max(lengths),
        "precision": ("bf16 autocast" if autocast else "fp32")
        + (", compiled" if options.compile else ""),
        "seconds_a_step": {name: asdict(spread) for name, spread in seconds.items()},
        "tokens_a_second": {"embedkit": sum(lengths) / ours, "peer": sum(lengths) / peer},
        "ratio": peer / ours,
        "mfu": operations_of(contenders.neobert, lengths) / ours / attainable,
        "peak_tflops": attainable / 1e12,
        "memory_gb": {
            name: max(timing.peak for timing in rounds) / 1e9 for name, rounds in timings.items()
        },
    }


def operations_of(model: LanguageModel, lengths: list[int]) -> float:
    """Return the floating point operations of a step of NeoBERT."""
    _, masked, _ = inputs(lengths, torch.device("cpu"))
    encoder = model.network.model.transformer_encoder
    return flops.training_flops(
        torch.tensor(lengths),
        len(masked),
        matrices=sum(weight.numel() for weight in encoder.parameters() if weight.ndim > 1),
        decoder=model.network.decoder.weight.numel(),
        layers=len(encoder),
        width=768,
    )


def bytes_of_a_step(name: str, workload: str, tokens: int, layers: int) -> int:
    """Make one step on the CPU; the bytes that it takes beyond model, gradients and batch."""
    contenders = make_contenders(lengths_of(workload, tokens), layers, torch.device("cpu"))
    for parameter in contenders.models[name].parameters():
        parameter.grad = torch.zeros_like(parameter)
    return harness.peak_beyond(contenders.steps[name])[1]


def keep_memory(options: argparse.Namespace) -> None:
    """Measure the memory of both on every workload, and add to the table of memory."""
    for workload in options.workloads:
        peaks = [
            harness.in_a_process(
                partial(bytes_of_a_step, name, workload, options.tokens, options.layers),
                **harness.FREED_BLOCKS_RETURNED,
            )
            for name in ("embedkit", "peer")
        ]
        row = [
            *(harness.today(), str(options.layers), workload),
            str(sum(lengths_of(workload, options.tokens))),
            *(f"{peak / 1e9:.2f}" for peak in peaks),
            version("torch"),
        ]
        harness.append_row(options.results.with_stem("pretrain_memory"), MEMORY_COLUMNS, row)


def keep_speed(options: argparse.Namespace, device: torch.device) -> None:
    """Measure the speed of both on every workload, and add to the table of speeds."""
    results = []
    for workload in options.workloads:
        results.append(result := measure(workload, options, device))
        assert math.isfinite(result["ratio"])
        speeds, memory = result["tokens_a_second"], result["memory_gb"]
        row = [
            *(harness.today(), harness.machine(device), result["precision"], workload),
            f"{result['tokens']}",
            *(f"{speeds[name]:,.0f}" for name in ("embedkit", "peer")),
            *(f"{result['ratio']:.2f}", f"{result['mfu']:.1%}", f"{result['peak_tflops']:.2f}"),
            *(f"{memory[name]:.1f}" if memory[name] else "-" for name in ("embedkit", "peer")),
            *(version(name) for name in VERSIONS),
        ]
        harness.append_row(options.results, COLUMNS, row)
    record = {
        "date": harness.today(),
        "processor": harness.machine(device),
        "layers": options.layers,
        "results": results,
    }
    labels = (device.type, "compiled") if options.compile else (device.type,)
    harness.write_record(options.results, record, *labels)


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = harness.make_parser(__doc__, "pretrain.md")
    parser.add_argument(
        "--tokens", type=int, help="Tokens of a step. Default: 4,096, on a GPU 65,536."
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--compile", action="store_true", help="Compile embedkit's layers.")
    parser.add_argument("--workloads", nargs="+", default=["mixed", "1024", "4096"])
    parser.add_argument("--memory", action="store_true", help="On a CPU: memory instead of speed.")
    return parser.parse_args(words)


def main() -> None:
    """Measure, and add to the results."""
    options, device = read_options(), local_device()
    options.tokens = options.tokens or (65_536 if device.type == "cuda" else 4_096)
    if options.memory:
        keep_memory(options)
    else:
        keep_speed(options, device)


if __name__ == "__main__":
    main()
