import sys

import pytest
import torch
from support.tiny_bert import tiny_bert
from support.tiny_neobert import tiny_neobert
from torch import nn
from transformers import PreTrainedModel

from embedkit.errors import UserError
from embedkit.models import lora
from embedkit.models.neobert import NeoBERTModel
from embedkit.recipe import Lora

BLOCK = {"qkv", "wo", "ffn.w12", "ffn.w3"}
LAYER = {
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
}
IDS = torch.tensor([[2, 3, 4, 5], [6, 7, 8, 9]])


def network(name: str) -> PreTrainedModel:
    model: PreTrainedModel = tiny_neobert() if name == "neobert" else tiny_bert(dropout=0.0)
    return model.double().eval()


def states(model: nn.Module) -> torch.Tensor:
    hidden: torch.Tensor = model(IDS).last_hidden_state.detach()
    return hidden


def adapted(model: nn.Module) -> set[str]:
    """The layers that have an adapter, without the number of the block they stand in."""
    trained = [name for name, each in model.named_parameters() if each.requires_grad]
    layers = {name.partition(".lora_")[0] for name in trained}
    return {name.split(".0.", 1)[1] for name in layers if ".0." in name}


@pytest.mark.parametrize(("name", "expected"), [("bert", LAYER), ("neobert", BLOCK)])
def test_every_linear_layer_gets_an_adapter_and_nothing_else_trains(
    name: str, expected: set[str]
) -> None:
    model = network(name)
    before = states(model)
    lora.attach(model, Lora(rank=2), seed=1)
    assert adapted(model) == expected
    trained = [each for each, p in model.named_parameters() if p.requires_grad]
    assert all(".lora_" in each for each in trained)
    assert not [each for each in trained if "pooler" in each]
    # It starts as what it was.
    assert torch.equal(states(model), before)


@pytest.mark.parametrize("name", ["bert", "neobert"])
def test_merged_weights_compute_what_the_adapters_did(name: str) -> None:
    model = network(name)
    names = model.state_dict().keys()
    before = states(model)
    lora.attach(model, Lora(rank=2, alpha=5.0), seed=1)
    shake(model)
    with_adapters = states(model)
    assert (with_adapters - before).abs().max() > 0.1
    lora.merge(model)
    torch.testing.assert_close(states(model), with_adapters)
    assert model.state_dict().keys() == names
    assert isinstance(model, NeoBERTModel) == (name == "neobert")


def shake(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)


def test_an_adapter_is_scaled_by_alpha_over_rank() -> None:
    layer = nn.Linear(2, 2, bias=False).double()
    nn.init.zeros_(layer.weight)
    model = nn.Sequential(layer)
    lora.attach(model, Lora(rank=2, alpha=6.0), seed=1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.eye_(parameter)
    lora.merge(model)
    torch.testing.assert_close(layer.weight.detach(), 3 * torch.eye(2, dtype=torch.float64))


def test_the_seed_alone_says_how_adapters_begin() -> None:
    found = []
    for noise, seed in ((1, 5), (2, 5), (1, 6)):
        model = network("bert")
        torch.manual_seed(noise)
        drawn = torch.random.get_rng_state()
        lora.attach(model, Lora(rank=2), seed=seed)
        assert torch.equal(torch.random.get_rng_state(), drawn)
        found.append(model.get_parameter("encoder.layer.0.output.dense.lora_A.default.weight"))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("name", "targets", "expected"),
    [
        ("neobert", ("qkv", "w3"), {"qkv", "ffn.w3"}),
        ("bert", ("value",), {"attention.self.value"}),
        ("bert", ("attention.output.dense",), {"attention.output.dense"}),
    ],
)
def test_targets_are_meant_by_the_last_parts_of_their_names(
    name: str, targets: tuple[str, ...], expected: set[str]
) -> None:
    model = network(name)
    lora.attach(model, Lora(rank=2, target_modules=targets), seed=1)
    assert adapted(model) == expected


# A norm has a weight, but peft has no adapter for it; a part of a word is no part of a name.
@pytest.mark.parametrize("target", ["q_proj", "attention_norm", "kv"])
def test_a_target_that_is_no_linear_layer_is_refused_by_name(target: str) -> None:
    model = network("neobert")
    with pytest.raises(UserError, match=f"no linear layer {target}; it has qkv, wo, w12, w3$"):
        lora.attach(model, Lora(target_modules=("qkv", target)), seed=1)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_without_peft_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    model = network("bert")
    with pytest.raises(UserError, match=r"peft is not installed: pip install .*\[lora\]"):
        lora.check(model, Lora())
    # Who does not ask for adapters does without it.
    before = states(model)
    lora.merge(model)
    assert torch.equal(states(model), before)
