"""NeoBERT by its published equations: one sequence and one head at a time, in plain torch.

Shares nothing with the package. Its switches are the three mistakes that ports make: each must
change the result, or the comparison would not notice it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

THETA, EPS = 10_000.0, 1e-5


@dataclass(frozen=True)
class Shape:
    vocabulary: int = 97
    width: int = 32
    layers: int = 2
    heads: int = 2
    inner: int = 40


def random_weights(shape: Shape, seed: int = 0) -> dict[str, Tensor]:
    """Weights under the names of the release, in double precision, that keep states near one."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        drawn = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
        return drawn * columns**-0.5

    def gains() -> Tensor:
        return 0.5 + torch.rand(shape.width, dtype=torch.float64, generator=generator)

    width, inner = shape.width, shape.inner
    weights = {"model.encoder.weight": matrix(shape.vocabulary, width) * width**0.5}
    for layer in range(shape.layers):
        block = f"model.transformer_encoder.{layer}"
        weights[f"{block}.qkv.weight"] = matrix(3 * width, width) * 1.5
        weights[f"{block}.wo.weight"] = matrix(width, width)
        weights[f"{block}.ffn.w12.weight"] = matrix(2 * inner, width)
        weights[f"{block}.ffn.w3.weight"] = matrix(width, inner)
        weights[f"{block}.attention_norm.weight"] = gains()
        weights[f"{block}.ffn_norm.weight"] = gains()
    weights["model.layer_norm.weight"] = gains()
    weights["decoder.weight"] = matrix(shape.vocabulary, width)
    weights["decoder.bias"] = matrix(1, shape.vocabulary)[0]
    return weights


def hidden_states(
    weights: dict[str, Tensor],
    shape: Shape,
    ids: list[int],
    *,
    half_rotation: bool = False,
    rows_by_kind: bool = False,
    gate_last: bool = False,
) -> Tensor:
    """The final states of one sequence, ``(len(ids), width)``."""
    x = weights["model.encoder.weight"][ids]
    for layer in range(shape.layers):
        block = f"model.transformer_encoder.{layer}"
        normed = rms_norm(x, weights[f"{block}.attention_norm.weight"])
        projection = weights[f"{block}.qkv.weight"]
        attended = attention(normed, projection, shape.heads, half_rotation, rows_by_kind)
        x = x + attended @ weights[f"{block}.wo.weight"].T
        normed = rms_norm(x, weights[f"{block}.ffn_norm.weight"])
        first, second = (normed @ weights[f"{block}.ffn.w12.weight"].T).split(shape.inner, dim=1)
        gate, up = (second, first) if gate_last else (first, second)
        x = x + (gate * torch.sigmoid(gate) * up) @ weights[f"{block}.ffn.w3.weight"].T
    return rms_norm(x, weights["model.layer_norm.weight"])


def logits(weights: dict[str, Tensor], states: Tensor) -> Tensor:
    return states @ weights["decoder.weight"].T + weights["decoder.bias"]


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean(dim=1, keepdim=True) + EPS).sqrt() * gain


def attention(
    x: Tensor, projection: Tensor, heads: int, half_rotation: bool, rows_by_kind: bool
) -> Tensor:
    size = x.shape[1] // heads
    results = []
    for head in range(heads):
        if rows_by_kind:
            starts = [kind * heads * size + head * size for kind in range(3)]
        else:
            starts = [3 * size * head + kind * size for kind in range(3)]
        q, k, v = (x @ projection[start : start + size].T for start in starts)
        q, k = rotated(q, half_rotation), rotated(k, half_rotation)
        results.append((q @ k.T / size**0.5).softmax(dim=1) @ v)
    return torch.cat(results, dim=1)


def rotated(x: Tensor, half_rotation: bool) -> Tensor:
    """Each pair as a complex number, multiplied by exp(i m theta^(-2j / size))."""
    length, size = x.shape
    pairs = (
        torch.stack(x.split(size // 2, dim=1), dim=2) if half_rotation else x.view(length, -1, 2)
    )
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    angles = torch.arange(length, dtype=torch.float64)[:, None] * THETA**-exponents
    turned = torch.complex(pairs[..., 0], pairs[..., 1]) * torch.polar(
        torch.ones_like(angles), angles
    )
    if half_rotation:
        return torch.cat([turned.real, turned.imag], dim=1)
    return torch.view_as_real(turned).reshape(length, size)
