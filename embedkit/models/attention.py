"""Attention within each of many sequences that are concatenated without padding.

Shapes: T tokens of all sequences, H heads, D features of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import activate_flash_attention_impl, current_flash_attention_impl
from torch.nn.attention.varlen import varlen_attn

Kernel: TypeAlias = Callable[[Tensor, Tensor, Tensor, "Layout"], Tensor]
"""Softmax attention of every token over the tokens of its sequence, by one implementation.

Shapes: q, k and v ``(T, H, D)``, in the order of the layout -> ``(T, H, D)``.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """Boundaries of the sequences in a flat batch, computed once a forward pass for all layers.

    ``length_groups`` are pairs of a length and the number of successive sequences that have it.
    ``sort`` puts rows of tokens into the kernel's order of sequences, and ``unsort`` undoes it.
    """

    kernel: Kernel
    length_groups: tuple[tuple[int, int], ...]
    ends: Tensor
    order: Tensor | None
    back: Tensor | None

    @classmethod
    def of(cls, lengths: Tensor, kernel: Kernel, device: torch.device) -> Self:
        """Return the layout of sequences with these lengths.

        Shapes: ``lengths`` ``(B,)``, on the CPU; ``ends`` ``(B + 1,)`` int32, on ``device``.
        """
        lengths = lengths[lengths > 0]
        order = back = None
        if kernel is grouped and bool((lengths.diff() < 0).any()):
            order = lengths.repeat_interleave(lengths).argsort(stable=True)
            back = order.argsort().to(device)
            order, lengths = order.to(device), lengths.sort().values
        distinct, counts = torch.unique_consecutive(lengths, return_counts=True)
        groups = tuple(zip(distinct.tolist(), counts.tolist(), strict=True))
        ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return cls(kernel, groups, ends.to(device, torch.int32), order, back)

    @property
    def longest(self) -> int:
        """Longest length rounded up to 128, since kernels are recompiled for every new value."""
        longest = max(length for length, _ in self.length_groups)
        return -(-longest // 128) * 128

    def sort(self, x: Tensor) -> Tensor:
        return x if self.order is None else _Reorder.apply(x, self.order, self.back)

    def unsort(self, x: Tensor) -> Tensor:
        return x if self.order is None else _Reorder.apply(x, self.back, self.order)


class _Reorder(torch.autograd.Function):
    """Reordering of rows whose gradient is gathered, where torch would add it to zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(order, back)
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        order, back = ctx.saved_tensors
        return _Reorder.apply(gradient, back, order), None, None


def reference(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attend by the definition, one sequence at a time; the reference for the other kernels."""
    lengths = [length for length, count in layout.length_groups for _ in range(count)]
    states = []
    for one_q, one_k, one_v in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
        scores = torch.einsum("qhd,khd->hqk", one_q, one_k) * q.shape[-1] ** -0.5
        states.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), one_v))
    return torch.cat(states)


def grouped(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attend in groups of sequences of equal length, which are views without mask or copy."""
    sizes = [length * count for length, count in layout.length_groups]
    states = []
    parts = (x.split(sizes) for x in (q, k, v))
    for (length, count), *flat in zip(layout.length_groups, *parts, strict=True):
        group = (x.unflatten(0, (count, length)).transpose(1, 2) for x in flat)
        attended = F.scaled_dot_product_attention(*group)
        states.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(states)


def varlen(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attend with the FlashAttention kernels that come with torch."""
    ends, longest = layout.ends, layout.longest
    attended = varlen_attn(q, k, v, ends, ends, longest, longest)
    assert isinstance(attended, Tensor)
    return attended


def flash2(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attend with the kernels of the flash-attn package."""
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

    bounds = (layout.ends, layout.ends, layout.longest, layout.longest)
    deterministic = torch.are_deterministic_algorithms_enabled()
    return flash_attn_varlen_func(q, k, v, *bounds, deterministic=deterministic)


def choose_kernel(
    implementation: str | None, device: torch.device, dtype: torch.dtype, head_dim: int
) -> Kernel:
    """Return the kernel for an implementation of attention by its name in transformers.

    Without half precision on CUDA, which flash kernels need, any name but ``eager`` means
    ``grouped``. ``flash_attention_4`` activates FA4 in torch's kernel, for the whole process.
    """
    if implementation == "eager":
        return reference
    half = dtype in (torch.float16, torch.bfloat16)
    if device.type != "cuda" or not half or head_dim % 8 or head_dim > 256:
        return grouped
    if torch.cuda.get_device_capability(device) < (8, 0):
        return grouped
    if implementation == "flash_attention_2":
        return flash2
    if implementation == "flash_attention_4" and current_flash_attention_impl() != "FA4":
        activate_flash_attention_impl("FA4")
    return varlen
