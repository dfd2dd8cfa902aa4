from typing import Any

import pytest
import torch
from support.tiny_neobert import ABLATIONS, YARN, tiny_config, tiny_neobert
from torch import Tensor, nn

from embedkit.models import eurobert
from embedkit.models.eurobert import ORIGIN, from_eurobert, obstacle, to_eurobert
from embedkit.models.neobert import NeoBERTModel

LENGTHS = [9, 1, 40, 23]
SHAPES: dict[str, dict[str, Any]] = {
    "base": {},
    "yarn": {"rope_parameters": YARN},
    "theta-and-eps": {"rope_theta": 500.0, "norm_eps": 0.1},
    "odd-width": {"intermediate_size": 70},
}


def padded(lengths: list[int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, 30522, mask.shape, generator=generator) * mask
    return ids, mask.long()


class DoubleNorm(nn.Module):
    """EuroBERT's norm without its cast to single precision."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self._weight: Tensor = norm.weight
        self._eps: float = norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self._eps).rsqrt() * self._weight


class DoubleRotation(nn.Module):
    """EuroBERT's angles in the precision of the model."""

    def __init__(self, rotation: Any, theta: float) -> None:
        super().__init__()
        self._frequencies: Tensor = rotation.inv_freq.double()
        if rotation.rope_type == "default":
            pairs = len(rotation.inv_freq)
            self._frequencies = theta ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
        self._scale: float = rotation.attention_scaling

    def forward(self, _x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None] * self._frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos() * self._scale, angles.sin() * self._scale


def in_double(model: Any) -> Any:
    """The stock model without the places where it always computes in single precision."""
    model = model.double()
    for layer in model.layers:
        layer.input_layernorm = DoubleNorm(layer.input_layernorm)
        layer.post_attention_layernorm = DoubleNorm(layer.post_attention_layernorm)
    model.norm = DoubleNorm(model.norm)
    model.rotary_emb = DoubleRotation(model.rotary_emb, model.config.rope_parameters["rope_theta"])
    return model


@torch.no_grad()
def difference(ours: NeoBERTModel, theirs: nn.Module) -> float:
    """The greatest one of hidden states, padding left out."""
    ids, mask = padded(LENGTHS)
    states = [m(input_ids=ids, attention_mask=mask).last_hidden_state for m in (ours, theirs)]
    return float((states[0] - states[1])[mask.bool()].abs().max())


@pytest.mark.parametrize("shape", SHAPES)
def test_neobert_is_eurobert(shape: str) -> None:
    model = tiny_neobert(**SHAPES[shape]).double()
    assert difference(model, in_double(to_eurobert(model))) < 1e-10


@pytest.mark.parametrize("shape", SHAPES)
def test_the_stock_model_agrees_in_single_precision(shape: str) -> None:
    model = tiny_neobert(**SHAPES[shape])
    assert difference(model, to_eurobert(model)) < 1e-4


@pytest.mark.parametrize("wrong", ["pairs stay pairs", "gate and up are swapped"])
def test_weights_in_another_order_are_another_model(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_neobert().double()
    if wrong == "pairs stay pairs":
        monkeypatch.setattr(eurobert, "_halved", lambda rows: rows)
    twin: Any = to_eurobert(model)
    if wrong == "gate and up are swapped":
        for layer in twin.layers:
            layer.mlp.gate_proj, layer.mlp.up_proj = layer.mlp.up_proj, layer.mlp.gate_proj
    assert difference(model, in_double(twin)) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_bit_survives_the_way_there_and_back(shape: str, dtype: torch.dtype) -> None:
    model: Any = tiny_neobert(**SHAPES[shape])
    model = model.to(dtype)
    again = from_eurobert(to_eurobert(model))
    expected, found = model.state_dict(), again.state_dict()
    assert expected.keys() == found.keys()
    for name, weight in expected.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], weight), name
    for key in ("norm_eps", "rope_parameters", "max_position_embeddings", "ffn_width"):
        assert getattr(again.config, key) == getattr(model.config, key)


@pytest.mark.parametrize("key", ABLATIONS)
def test_what_is_no_eurobert_says_why(key: str) -> None:
    reason = obstacle(tiny_config(**ABLATIONS[key]))
    assert reason is not None
    assert reason.startswith(f"its {key} is {ABLATIONS[key][key]}, where EuroBERT has")
    assert obstacle(tiny_config()) is None


def test_a_twin_knows_where_it_came_from() -> None:
    assert getattr(to_eurobert(tiny_neobert()).config, ORIGIN) == "neobert"


def test_a_twin_draws_nothing_from_the_global_generator() -> None:
    model, before = tiny_neobert(), torch.get_rng_state()
    from_eurobert(to_eurobert(model))
    assert torch.equal(torch.get_rng_state(), before)
