import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.neobert_reference import Shape, random_weights
from support.small_neobert import batch, padded, small_config, small_encoder, small_lm
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from embedkit.errors import UserError
from embedkit.models.neobert import (
    NeoBERTForMaskedLM,
    NeoBERTForSequenceClassification,
    NeoBERTForTokenClassification,
    NeoBERTModel,
)
from embedkit.models.neobert.state_dict import load_pretrained, save_hub_layout

Weights = dict[str, Tensor]
BLOCK = "model.transformer_encoder.0"


def folder_of(folder: Path, weights: Weights, **changes: Any) -> Path:
    """A folder with these weights and the config of ``Shape``."""
    folder.mkdir(exist_ok=True)
    small_config(**changes).save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def renamed(rename: Callable[[str], str]) -> Weights:
    return {rename(name): weight for name, weight in random_weights(Shape()).items()}


def unpacked() -> Weights:
    weights = random_weights(Shape())
    for name in [name for name in weights if ".w12." in name]:
        gate, up = weights.pop(name).chunk(2)
        weights[name.replace("w12", "w1")] = gate.contiguous()
        weights[name.replace("w12", "w2")] = up.contiguous()
    return weights


DIALECTS = {
    "the release": renamed(str),
    "a bare encoder": renamed(lambda name: name.removeprefix("model.")),
    "DistributedDataParallel": renamed(lambda name: f"module.{name}"),
    "torch.compile": renamed(lambda name: f"_orig_mod.{name}"),
    "both": renamed(lambda name: f"module._orig_mod.{name}"),
    "a compiled part": renamed(lambda name: name.replace("model.", "model._orig_mod.")),
    "SwiGLU in three": unpacked(),
}


@pytest.mark.parametrize("kind", [NeoBERTForMaskedLM, NeoBERTModel])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_is_the_same_model(dialect: str, kind: Any, tmp_path: Path) -> None:
    loaded = load_pretrained(kind, folder_of(tmp_path / "model", DIALECTS[dialect]))
    expected = random_weights(Shape())
    assert not loaded.training
    for name, weight in loaded.state_dict().items():
        full = name if kind is NeoBERTForMaskedLM else f"model.{name}"
        assert torch.equal(weight, expected[full])
    assert loaded.encode_tokens(batch()).isfinite().all() if kind is NeoBERTModel else True


def test_a_classifier_is_loaded_with_its_head_or_without(tmp_path: Path) -> None:
    model = NeoBERTForSequenceClassification(small_config(num_labels=3)).eval()
    model.save_pretrained(tmp_path)
    again = load_pretrained(NeoBERTForSequenceClassification, tmp_path).state_dict()
    assert all(torch.equal(again[name], each) for name, each in model.state_dict().items())
    encoder = load_pretrained(NeoBERTModel, tmp_path)
    torch.testing.assert_close(encoder.encode_tokens(batch()), model.model.encode_tokens(batch()))


def test_weights_in_several_files_are_read(tmp_path: Path) -> None:
    model = small_lm()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    again = load_pretrained(NeoBERTForMaskedLM, tmp_path).state_dict()
    assert all(torch.equal(again[name], each) for name, each in model.state_dict().items())


def test_a_real_width_is_told_from_one_before_the_two_thirds(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "real", random_weights(Shape()), intermediate_size=Shape().inner)
    assert load_pretrained(NeoBERTModel, folder).config.ffn_width == Shape().inner


def without(*names: str) -> Weights:
    return {name: each for name, each in random_weights(Shape()).items() if name not in names}


WRONG: list[tuple[Any, Weights, str]] = [
    (
        NeoBERTModel,
        without(f"{BLOCK}.wo.weight"),
        r'Missing .*: "transformer_encoder.0.wo.weight"',
    ),
    (NeoBERTForMaskedLM, without("decoder.bias"), r'Missing key.*: "decoder.bias"'),
    (
        NeoBERTForSequenceClassification,
        without(),
        r'Missing key.*: "classifier.weight", "classifier.bias", "dense.weight", "dense.bias"',
    ),
    (NeoBERTModel, without() | {"freqs": torch.ones(1)}, r'Unexpected key.*: "model.freqs"'),
    (
        NeoBERTModel,
        without() | {f"{BLOCK}.wo.weight": torch.ones(3, 32)},
        r"size mismatch for .*wo.weight: .*\[3, 32\].*\[32, 32\]",
    ),
    (NeoBERTModel, renamed(lambda name: f"net.{name}"), "Missing key.* Unexpected key"),
]


@pytest.mark.parametrize(("kind", "weights", "message"), WRONG)
def test_weights_that_do_not_fit_are_listed(
    kind: Any, weights: Weights, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_pretrained(kind, folder_of(tmp_path / "wrong", weights))
    assert "\n" not in str(caught.value)


def test_a_weight_that_comes_twice_is_refused(tmp_path: Path) -> None:
    twice = without() | {"layer_norm.weight": torch.ones(32)}
    with pytest.raises(UserError, match=r"model.layer_norm.weight: the checkpoint has it twice"):
        load_pretrained(NeoBERTModel, folder_of(tmp_path / "twice", twice))


def test_folders_that_are_no_neobert_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no config.json"):
        load_pretrained(NeoBERTModel, tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        load_pretrained(NeoBERTModel, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="its model_type is bert, not neobert"):
        load_pretrained(NeoBERTModel, tmp_path)
    small_config().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"holds no model.safetensors"):
        load_pretrained(NeoBERTModel, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no such thing")
    with pytest.raises(UserError, match="cannot be read"):
        load_pretrained(NeoBERTModel, tmp_path)
    with pytest.raises(UserError, match="no-such/model: is no folder here, and the hub does not"):
        load_pretrained(NeoBERTModel, "no-such/model")


def test_the_authors_layout_goes_round_byte_for_byte(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "source", random_weights(Shape()))
    save_hub_layout(load_pretrained(NeoBERTForMaskedLM, source), tmp_path / "written")
    read, written = (
        load_file(folder / "model.safetensors") for folder in (source, tmp_path / "written")
    )
    assert written.keys() == read.keys()
    assert all(torch.equal(written[name], read[name]) for name in read)
    config = json.loads((tmp_path / "written" / "config.json").read_text())
    shared = {"model_type", "norm_eps", "intermediate_size", "num_hidden_layers", "pad_token_id"}
    assert shared <= config.keys()
    assert config["architectures"] == ["NeoBERTLMHead"]
    assert (config["max_length"], config["dim_head"]) == (4096, 16)
    assert config["torch_dtype"] == "float64"


@pytest.mark.parametrize("kind", [AutoModel, AutoModelForMaskedLM])
def test_transformers_reads_the_authors_layout(kind: Any, tmp_path: Path) -> None:
    model = small_lm()
    save_hub_layout(model, tmp_path)
    loaded = kind.from_pretrained(tmp_path)
    found, expected = loaded(**padded()), model(**padded(), output_hidden_states=True)
    if kind is AutoModel:
        assert torch.equal(found.last_hidden_state, expected.hidden_states[-1])
    else:
        assert torch.equal(found.logits, expected.logits)


def test_a_bare_encoder_is_written_as_the_encoder_of_the_release(tmp_path: Path) -> None:
    model = small_encoder()
    save_hub_layout(model, tmp_path)
    assert all(name.startswith("model.") for name in load_file(tmp_path / "model.safetensors"))
    loaded = load_pretrained(NeoBERTModel, tmp_path)
    torch.testing.assert_close(loaded.encode_tokens(batch()), model.encode_tokens(batch()))


@pytest.mark.parametrize(
    "kind",
    [
        NeoBERTModel,
        NeoBERTForMaskedLM,
        NeoBERTForSequenceClassification,
        NeoBERTForTokenClassification,
    ],
)
def test_saving_and_loading_changes_no_bit(kind: Any, tmp_path: Path) -> None:
    model = kind(small_config(num_labels=4)).eval()
    model.save_pretrained(tmp_path)
    loads = [kind.from_pretrained(tmp_path) for _ in range(2)]
    for loaded in loads:
        assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
        assert loaded.state_dict().keys() == model.state_dict().keys()
        for name, weight in loaded.state_dict().items():
            assert torch.equal(weight, model.state_dict()[name])
        for found, expected in zip(
            loaded(**padded()).values(), model(**padded()).values(), strict=True
        ):
            assert torch.equal(found, expected)


def test_a_head_on_a_bare_encoder_starts_anew_and_leaves_the_encoder_alone(tmp_path: Path) -> None:
    model = small_encoder().float()
    model.save_pretrained(tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    assert classifier.classifier.weight.shape == (5, 32)
    assert classifier.dense.weight.std().item() == pytest.approx(0.3, rel=0.1)
    assert not classifier.dense.bias.any()
    found = classifier.model.encode_tokens(batch())
    assert torch.equal(found, model.encode_tokens(batch()))


@pytest.mark.slow
def test_importing_neobert_makes_transformers_know_it() -> None:
    script = "import embedkit.models.neobert, transformers\n"
    script += "config = transformers.AutoConfig.for_model('neobert', num_hidden_layers=1)\n"
    script += "print(type(transformers.AutoModelForMaskedLM.from_config(config)).__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["NeoBERTForMaskedLM"], done.stderr
