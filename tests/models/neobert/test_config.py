import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from embedkit.errors import UserError
from embedkit.models.neobert import NeoBERTConfig
from embedkit.recipe import Architecture

# The release's config.json; what is in "kwargs" there varies.
RELEASED: dict[str, Any] = {
    "architectures": ["NeoBERTLMHead"],
    "auto_map": {
        "AutoConfig": "model.NeoBERTConfig",
        "AutoModel": "model.NeoBERT",
        "AutoModelForMaskedLM": "model.NeoBERTLMHead",
        "AutoModelForSequenceClassification": "model.NeoBERTForSequenceClassification",
    },
    "classifier_init_range": 0.02,
    "decoder_init_range": 0.02,
    "dim_head": 64,
    "embedding_init_range": 0.02,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "kwargs": {"pretrained_model_name_or_path": "google-bert/bert-base-uncased", "flash": True},
    "max_length": 4096,
    "model_type": "neobert",
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "pad_token_id": 0,
    "pretrained_model_name_or_path": "google-bert/bert-base-uncased",
    "torch_dtype": "float32",
    "transformers_version": "4.48.2",
    "trust_remote_code": True,
    "vocab_size": 30522,
}


def written(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(RELEASED | changes))
    return folder


def test_the_released_config_is_the_default_one(tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(written(tmp_path))
    assert isinstance(config, NeoBERTConfig)
    for name in ("hidden_size", "ffn_width", "norm_eps", "max_position_embeddings", "head_dim"):
        assert getattr(config, name) == getattr(NeoBERTConfig(), name)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10_000.0}
    assert config.ffn_width == 2048


def test_the_released_config_is_saved_without_what_leaked_into_it(tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(written(tmp_path, max_length=1024))
    assert config.max_position_embeddings == 1024
    config.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert not saved.keys() & {"max_length", "dim_head", "kwargs", "trust_remote_code", "auto_map"}
    again = AutoConfig.from_pretrained(tmp_path / "saved")
    assert again.max_position_embeddings == 1024
    assert again.to_diff_dict() == config.to_diff_dict()


def test_transformers_knows_the_model_by_its_name() -> None:
    assert AutoConfig.for_model("neobert").num_hidden_layers == 28


def test_a_recipe_and_the_config_have_the_same_defaults() -> None:
    architecture = Architecture(tokenizer="any").model_dump()
    config = NeoBERTConfig()
    shared = {name: value for name, value in architecture.items() if hasattr(config, name)}
    del shared["vocab_size"]
    assert len(shared) == 10
    assert shared == {name: getattr(config, name) for name in shared}


def test_rope_theta_may_be_given_by_itself() -> None:
    config = AutoConfig.for_model("neobert", rope_theta=500.0)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 500.0}


def test_the_callers_table_of_rope_parameters_is_left_alone() -> None:
    given = {"rope_type": "yarn", "factor": 2.0}
    config = NeoBERTConfig(rope_parameters=given)
    assert given == {"rope_type": "yarn", "factor": 2.0}
    assert config.rope_parameters == {
        **given,
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": 4096,
    }


@pytest.mark.parametrize(
    ("intermediate_size", "width"), [(3072, 2048), (4032, 2688), (4224, 2816), (100, 72)]
)
def test_swiglu_is_two_thirds_as_wide_in_steps_of_eight(intermediate_size: int, width: int) -> None:
    assert NeoBERTConfig(intermediate_size=intermediate_size).ffn_width == width
    gelu = NeoBERTConfig(intermediate_size=intermediate_size, hidden_act="gelu")
    assert gelu.ffn_width == intermediate_size


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act relu: choose swiglu or gelu"),
        ({"norm": "none"}, "norm none: choose rmsnorm or layernorm"),
        ({"position": "alibi"}, "position alibi: choose rope or absolute"),
        ({"hidden_size": 100}, "hidden_size 100: is not a multiple of num_attention_heads = 12"),
        ({"hidden_size": 36}, "hidden_size 36: RoPE needs heads of an even width, and 12 .* 3"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type dynamic: choose"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings true: .* a matrix of its own"),
    ],
)
def test_a_config_that_no_neobert_has_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        NeoBERTConfig(**settings)
