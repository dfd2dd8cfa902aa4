"""The weights that pretraining begins with: random ones, or another run's."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from embedkit import distributed, rng
from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.neobert import NeoBERTConfig, NeoBERTForMaskedLM
from embedkit.models.neobert.state_dict import load_pretrained
from embedkit.pretraining.mixture import TextMixture
from embedkit.recipe import Architecture, PretrainRecipe
from embedkit.training import checkpoint

_UNSEEN = ("num_attention_heads", "norm", "norm_eps")
"""Settings of a network that its weights fit whatever they are."""


def random_network(
    recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerBase
) -> NeoBERTForMaskedLM:
    """The recipe's architecture with random weights, the same at every call."""
    vocabulary = recipe.model.vocab_size or len(tokenizer)
    if vocabulary < len(tokenizer):
        raise UserError(
            f"model.vocab_size = {vocabulary}: {recipe.model.tokenizer} has {len(tokenizer)} ids; "
            "leave it out, or set it to that or more"
        )
    config = architecture(recipe.model, vocabulary, tokenizer.pad_token_id or 0)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(rng.fold_in(recipe.seed, "weights"))
        network = NeoBERTForMaskedLM(config)
    if recipe.model.gradient_checkpointing:
        network.gradient_checkpointing_enable()
    return network.train()


def architecture(model: Architecture, vocabulary: int, pad_id: int = 0) -> NeoBERTConfig:
    """The config of the network that a recipe's ``[model]`` describes."""
    named = model.model_dump(
        exclude={"tokenizer", "vocab_size", "yarn_factor", "rope_theta", "gradient_checkpointing"}
    )
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": model.rope_theta}
    if model.yarn_factor is not None:
        rope |= {
            "rope_type": "yarn",
            "factor": model.yarn_factor,
            "original_max_position_embeddings": model.max_position_embeddings,
        }
    return NeoBERTConfig(**named, vocab_size=vocabulary, pad_token_id=pad_id, rope_parameters=rope)


def stored_weights(recipe: PretrainRecipe) -> Mapping[str, Tensor] | None:
    """The weights that ``init_from`` names: of a run, those that it has come to.

    Raises:
        UserError: there are none, they are damaged, or they belong to another network.
    """
    if recipe.init_from is None:
        return None
    folder = Path(hub.resolve(recipe.init_from))
    if (folder / "run.json").is_file():
        found, broken = checkpoint.newest(folder / "checkpoints")
        if broken:
            raise UserError(
                f"init_from = {recipe.init_from}: its newest checkpoint is damaged ({broken[0]}): "
                f"restore it from a backup, or pass {folder / 'model'}"
            )
        if found is not None:
            ran = found.facts["recipe"]
            _check_settings(recipe, ran["model"])
            if found.step < ran["steps"] and distributed.is_main():
                warnings.warn(
                    f"init_from = {recipe.init_from}: its run has come to step {found.step} of "
                    f"{ran['steps']}, and these are the weights that are taken",
                    stacklevel=2,
                )
            weights = checkpoint.read_weights(found)
            return {name.removeprefix("network."): each for name, each in weights.items()}
        folder = folder / "model"
    loaded = load_pretrained(NeoBERTForMaskedLM, folder)
    _check_settings(recipe, loaded.config.to_dict())
    return loaded.state_dict()


def _check_settings(recipe: PretrainRecipe, theirs: Mapping[str, object]) -> None:
    """See that weights were trained with the settings that no shape of a weight shows."""
    for name in _UNSEEN:
        own = getattr(recipe.model, name)
        if theirs[name] != own:
            raise UserError(
                f"init_from = {recipe.init_from}: was trained with {name} = {theirs[name]}, and "
                f"model.{name} = {own}; set what it has"
            )


def fill(network: NeoBERTForMaskedLM, weights: Mapping[str, Tensor], origin: str) -> None:
    """Give ``network`` the weights that ``init_from = origin`` has.

    Raises:
        UserError: they are not exactly this network's.
    """
    own = {name: tuple(each.shape) for name, each in network.state_dict().items()}
    theirs = {name: tuple(each.shape) for name, each in weights.items()}
    differing = [name for name in {**own, **theirs} if own.get(name) != theirs.get(name)]
    if differing:
        name = differing[0]
        raise UserError(
            f"init_from = {origin}: {len(differing)} of its weights are not this model's ({name}: "
            f"{theirs.get(name, 'missing')} there, {own.get(name, 'none')} here); give [model] the "
            "sizes that it has"
        )
    network.load_state_dict(dict(weights))


@torch.no_grad()
def start_decoder(
    network: NeoBERTForMaskedLM, recipe: PretrainRecipe, mixture: TextMixture
) -> None:
    """Give the decoder the start that the recipe asks for."""
    decoder = network.decoder
    if recipe.start.decoder == "embedding":
        decoder.weight.copy_(network.model.encoder.weight)
    if recipe.start.bias == "frequencies":
        decoder.bias.copy_(mixture.word_frequencies(len(decoder.bias)).log())
