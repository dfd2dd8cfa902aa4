import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from embedkit.models import rope
from embedkit.models.neobert.config import NeoBERTConfig

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def config(**settings: Any) -> NeoBERTConfig:
    return NeoBERTConfig(**({"hidden_size": 32, "num_attention_heads": 2} | settings))


def test_each_pair_turns_more_slowly_than_the_one_before() -> None:
    four_wide = config(hidden_size=8, rope_theta=100.0)
    radians, scale = rope.frequencies(four_wide, torch.float64)
    torch.testing.assert_close(radians, torch.tensor([1.0, 0.1], dtype=torch.float64))
    assert scale == 1.0


def test_neighbours_are_a_pair_and_turn_by_position_times_frequency() -> None:
    four_wide = config(hidden_size=8, rope_theta=100.0)
    rotations = rope.rotations(four_wide, torch.tensor([0, 3]), torch.float64)
    x = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64).expand(2, 1, 4)
    turned = rope.rotate(x, rotations)[:, 0]
    expected = [[1, 0, 0, 1], [math.cos(3), math.sin(3), -math.sin(0.3), math.cos(0.3)]]
    torch.testing.assert_close(turned, torch.tensor(expected, dtype=torch.float64))


def test_products_depend_on_the_distance_alone_also_far_out() -> None:
    q, k = torch.randn(2, 1, 1, 16, dtype=torch.float64)

    def product(position: int, other: int) -> float:
        turned = [
            rope.rotate(x, rope.rotations(config(), torch.tensor([place]), torch.float64))
            for x, place in ((q, position), (k, other))
        ]
        return float((turned[0] * turned[1]).sum())

    assert product(5, 2) == pytest.approx(product(100_003, 100_000), abs=1e-9)
    assert product(5, 2) != pytest.approx(product(6, 2), abs=1e-3)


def test_half_precision_is_turned_in_single_precision() -> None:
    x = torch.randn(3, 2, 16).bfloat16()
    rotations = rope.rotations(config(), torch.tensor([0, 1000, 4000]), torch.float32)
    turned = rope.rotate(x, rotations)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rope.rotate(x.float(), rotations).bfloat16())


@pytest.mark.parametrize("parameters", [{"rope_type": "default"}, YARN], ids=["default", "yarn"])
def test_angles_are_those_of_transformers_bit_for_bit(parameters: dict[str, Any]) -> None:
    positions = torch.tensor([0, 1, 63, 64, 255, 4096, 10_000])
    limit: dict[str, Any] = {"max_position_embeddings": 256, "rope_parameters": parameters}
    theirs = LlamaRotaryEmbedding(LlamaConfig(hidden_size=32, num_attention_heads=2, **limit))
    rotations = rope.rotations(config(**limit), positions, torch.float32)
    cos, sin = theirs(torch.zeros(1), positions[None])
    assert torch.equal(rotations[:, 0].real, cos[0, :, :8])
    assert torch.equal(rotations[:, 0].imag, sin[0, :, :8])


def test_yarn_turns_slow_pairs_less_and_fast_pairs_as_before() -> None:
    stretched, scale = rope.frequencies(config(rope_parameters=YARN), torch.float32)
    plain, _ = rope.frequencies(config(), torch.float32)
    assert stretched[0] == plain[0]
    assert stretched[-1] == pytest.approx(float(plain[-1]) / 4)
    assert scale == pytest.approx(0.1 * math.log(4) + 1)
