"""How many parameters the models of the paper have, counted by hand from its Tables 1 and 2."""

from typing import Any

import pytest
import torch

from embedkit.models.neobert import NeoBERTConfig, NeoBERTForMaskedLM

BERT_SIZED: dict[str, Any] = {"num_hidden_layers": 12, "max_position_embeddings": 512}
M0 = {**BERT_SIZED, "hidden_act": "gelu", "norm": "layernorm", "position": "absolute"}
WIDE = {"num_hidden_layers": 16, "hidden_size": 1056, "intermediate_size": 4224}
WIDE_AS_RELEASED = {"num_hidden_layers": 16, "hidden_size": 1008, "intermediate_size": 4032}


@pytest.mark.parametrize(
    ("settings", "encoder", "with_decoder"),
    [
        pytest.param({}, 221_665_536, 245_136_954, id="M8, M9 and the release"),
        pytest.param(M0, 108_807_936, 132_279_354, id="M0"),
        pytest.param(BERT_SIZED, 108_394_752, 131_866_170, id="M1, M2, M4, M5 and M6"),
        pytest.param({**BERT_SIZED, "vocab_size": 32064}, 109_579_008, 134_236_224, id="M3"),
        pytest.param(WIDE, 246_372_192, 278_633_946, id="M7 as in the paper"),
        pytest.param(WIDE_AS_RELEASED, 225_883_728, 256_680_426, id="M7 as in the released code"),
    ],
)
def test_the_parameters_are_as_many_as_published(
    settings: dict[str, Any], encoder: int, with_decoder: int
) -> None:
    with torch.device("meta"):
        model = NeoBERTForMaskedLM(NeoBERTConfig(**settings))
    assert sum(each.numel() for each in model.model.parameters()) == encoder
    assert sum(each.numel() for each in model.parameters()) == with_decoder


def test_the_full_model_has_the_tensors_of_the_release() -> None:
    with torch.device("meta"):
        model = NeoBERTForMaskedLM(NeoBERTConfig())
    shapes = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    expected = {
        "model.encoder.weight": (30522, 768),
        "model.layer_norm.weight": (768,),
        "decoder.weight": (30522, 768),
        "decoder.bias": (30522,),
    }
    for layer in range(28):
        block = f"model.transformer_encoder.{layer}"
        expected |= {
            f"{block}.qkv.weight": (2304, 768),
            f"{block}.wo.weight": (768, 768),
            f"{block}.ffn.w12.weight": (4096, 768),
            f"{block}.ffn.w3.weight": (768, 2048),
            f"{block}.attention_norm.weight": (768,),
            f"{block}.ffn_norm.weight": (768,),
        }
    assert shapes == expected
    assert len(shapes) == 172
