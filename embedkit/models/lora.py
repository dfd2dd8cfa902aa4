"""Low-rank adapters (Hu et al., 2021, "LoRA") beside the weights of an encoder, by peft."""

from importlib.util import find_spec

import torch
from torch import nn

from embedkit.errors import UserError
from embedkit.recipe import Lora


def check(network: nn.Module, settings: Lora) -> list[str]:
    """Return the full names of the layers that get an adapter.

    Raises:
        UserError: peft is missing, or a target is not a linear layer of the network.
    """
    if find_spec("peft") is None:
        raise UserError('lora: peft is not installed: pip install "embedkit-neobert[lora]"')
    # A pooler has no effect on mean and cls pooling, so that its adapter would learn nothing.
    linear = [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and "pooler" not in name.split(".")
    ]
    if isinstance(settings.target_modules, str):
        return linear
    targets: list[str] = []
    for target in settings.target_modules:
        matches = [name for name in linear if f".{name}".endswith(f".{target}")]
        if not matches:
            known = dict.fromkeys(name.rpartition(".")[2] for name in linear)
            raise UserError(
                f"lora.target_modules: the backbone has no linear layer {target}; it has "
                f"{', '.join(known)}"
            )
        targets += matches
    return targets


def attach(network: nn.Module, settings: Lora, *, seed: int) -> None:
    """Freeze a network and add an adapter to each of its target layers, in place.

    An adapter has no effect at first: one of its two matrices is zero, and the other is drawn from
    ``seed`` alone. Errors are those of ``check``.
    """
    targets = check(network, settings)
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=settings.rank,
        # peft divides alpha by the rank, so that it may be a float despite peft's annotation.
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        lora_dropout=settings.dropout,
        target_modules=targets,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, network)


def merge(network: nn.Module) -> None:
    """Merge the adapters of a network, if any, into its weights and remove them, in place."""
    if find_spec("peft") is None:
        return
    from peft.tuners.lora import LoraLayer

    modules = network.named_modules()
    adapted = {name: module for name, module in modules if isinstance(module, LoraLayer)}
    for name, layer in adapted.items():
        layer.merge()
        network.set_submodule(name, layer.get_base_layer())
    if adapted:
        del network.peft_config
