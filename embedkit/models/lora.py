"""Low-rank adapters (Hu et al., 2021, "LoRA") beside the weights of an encoder, by peft."""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import nn

from embedkit.errors import UserError
from embedkit.recipe import Lora


def check(network: nn.Module, settings: Lora) -> None:
    """See whether ``attach`` can do its work; changes nothing.

    Raises:
        UserError: peft is missing, or a target is no linear layer of the network.
    """
    if find_spec("peft") is None:
        raise UserError('lora: peft is not installed: pip install "embedkit-neobert[lora]"')
    _targets(network, settings.target_modules)


def attach(network: nn.Module, settings: Lora, *, seed: int) -> None:
    """Freeze a network and put an adapter beside each of its target layers, in place.

    An adapter computes nothing at first: one of its two matrices is zero, and ``seed`` alone says
    what the other is. Raises as ``check`` does.
    """
    check(network, settings)
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=settings.rank,
        # peft divides it by the rank; its annotation alone wants a whole number.
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        lora_dropout=settings.dropout,
        target_modules=_targets(network, settings.target_modules),
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, network)


def merge(network: nn.Module) -> None:
    """Add what the adapters have learnt to the weights beside them, and take them away, in place.

    Does nothing to a network without adapters.
    """
    if find_spec("peft") is None:
        return
    from peft.tuners.lora import LoraLayer

    adapted = {name: each for name, each in network.named_modules() if isinstance(each, LoraLayer)}
    for name, layer in adapted.items():
        layer.merge()
        network.set_submodule(name, layer.get_base_layer())
    if adapted:
        del network.peft_config


def _targets(network: nn.Module, wanted: str | Sequence[str]) -> list[str]:
    """The full names of the layers that get an adapter."""
    # A pooler takes no part in mean and cls pooling, and would learn nothing.
    linear = [
        name
        for name, each in network.named_modules()
        if isinstance(each, nn.Linear) and "pooler" not in name.split(".")
    ]
    if isinstance(wanted, str):
        return linear
    found: list[str] = []
    for target in wanted:
        meant = [name for name in linear if f".{name}".endswith(f".{target}")]
        if not meant:
            known = dict.fromkeys(name.rpartition(".")[2] for name in linear)
            raise UserError(
                f"lora.target_modules: the backbone has no linear layer {target}; it has "
                f"{', '.join(known)}"
            )
        found += meant
    return found
