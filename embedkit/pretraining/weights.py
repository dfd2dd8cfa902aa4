"""Builds the network that pretraining begins with: random weights, or those of another run."""

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
"""Settings of a network on which the shapes of its weights do not depend."""


def random_network(
    recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerBase
) -> NeoBERTForMaskedLM:
    """Return the recipe's architecture with random weights, the same at every call.

    Raises:
        UserError: ``model.vocab_size`` is less than the tokenizer needs.
    """
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
    """Return the config of the network that a recipe's ``[model]`` describes."""
    named = model.model_dump(
        exclude={"tokenizer", "vocab_size", "yarn_factor", "rope_theta", "gradient_checkpointing"}
    )
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": model.rope_theta}
    if model.yarn_factor is not None:
        longest = model.max_position_embeddings
        yarn = {"factor": model.yarn_factor, "original_max_position_embeddings": longest}
        rope |= {"rope_type": "yarn", **yarn}
    return NeoBERTConfig(**named, vocab_size=vocabulary, pad_token_id=pad_id, rope_parameters=rope)


def stored_weights(recipe: PretrainRecipe) -> Mapping[str, Tensor] | None:
    """Return the weights that ``init_from`` names; of a run, those of its newest checkpoint.

    Raises:
        UserError: there are none, they are damaged, or they belong to another network.
    """
    if recipe.init_from is None:
        return None
    folder = Path(hub.folder_of(recipe.init_from))
    newest = None
    if (folder / "run.json").is_file():
        newest, broken = checkpoint.newest(folder / "checkpoints")
        folder = folder / "model"
        if broken:
            raise UserError(
                f"init_from = {recipe.init_from}: its newest checkpoint is damaged ({broken[0]}): "
                f"restore it from a backup, or pass {folder}"
            )
    if newest is not None:
        steps = newest.facts["recipe"]["steps"]
        _check_settings(recipe, newest.facts["recipe"]["model"])
        if newest.step < steps and distributed.is_main():
            warnings.warn(
                f"init_from = {recipe.init_from}: its run has come to step {newest.step} of "
                f"{steps}, and these are the weights that are taken",
                stacklevel=2,
            )
        weights = checkpoint.read_weights(newest)
        return {name.removeprefix("network."): tensor for name, tensor in weights.items()}
    loaded = load_pretrained(NeoBERTForMaskedLM, folder)
    _check_settings(recipe, loaded.config.to_dict())
    return loaded.state_dict()


def _check_settings(recipe: PretrainRecipe, theirs: Mapping[str, object]) -> None:
    """Verify that weights were trained with the settings that their shapes do not show."""
    for name in _UNSEEN:
        if theirs[name] != (ours := getattr(recipe.model, name)):
            raise UserError(
                f"init_from = {recipe.init_from}: was trained with {name} = {theirs[name]}, and "
                f"model.{name} = {ours}; set what it has"
            )


def fill(network: NeoBERTForMaskedLM, weights: Mapping[str, Tensor], origin: str) -> None:
    """Load the weights of ``init_from = origin`` into ``network``.

    Raises:
        UserError: names or shapes differ from the network's.
    """
    ours = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if differing := [name for name in ours | theirs if ours.get(name) != theirs.get(name)]:
        there, here = theirs.get(differing[0], "missing"), ours.get(differing[0], "none")
        raise UserError(
            f"init_from = {origin}: {len(differing)} of its weights are not this model's "
            f"({differing[0]}: {there} there, {here} here); give [model] the sizes that it has"
        )
    network.load_state_dict(dict(weights))


@torch.no_grad()
def start_decoder(
    network: NeoBERTForMaskedLM, recipe: PretrainRecipe, mixture: TextMixture
) -> None:
    """Initialize the decoder as the recipe's ``[start]`` says."""
    decoder = network.decoder
    if recipe.start.decoder == "embedding":
        decoder.weight.copy_(network.model.encoder.weight)
    if recipe.start.bias == "frequencies":
        decoder.bias.copy_(mixture.word_frequencies(len(decoder.bias)).log())
