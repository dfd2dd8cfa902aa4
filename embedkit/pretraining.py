"""A pretraining run: what its recipe names, opened and checked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from embedkit import checkpoint, distributed, hashing, keyed, precision, sharding, speed
from embedkit.data.loading import stream
from embedkit.data.text_batches import MaskedBatch
from embedkit.data.texts import Texts
from embedkit.errors import UserError
from embedkit.held_out_loss import HeldOutLosses
from embedkit.metrics import check_trackers
from embedkit.models import hub
from embedkit.models.export import whole_folder
from embedkit.models.language_model import LanguageModel
from embedkit.models.neobert import NeoBERTConfig, NeoBERTForMaskedLM
from embedkit.models.neobert.keys import load_pretrained
from embedkit.models.quiet import quietly
from embedkit.objectives.masked_lm import MaskedLMObjective
from embedkit.recipe import Architecture, PretrainRecipe
from embedkit.run_folder import RunFolder
from embedkit.text_mixture import TextMixture, open_text_mixture


@dataclass(frozen=True, slots=True)
class Pretraining:
    """A pretraining run, before it touches its folder."""

    recipe: PretrainRecipe
    mixture: TextMixture
    model: LanguageModel
    tokenizer: PreTrainedTokenizerBase
    facts: Mapping[str, object]
    console: Console
    peak: float

    @property
    def objective(self) -> MaskedLMObjective:
        data = self.recipe.data
        flops = partial(_flops, self.model)
        return MaskedLMObjective(data.micro_tokens, data.max_tokens, flops)

    def batches(self, numbers: range) -> Iterator[MaskedBatch]:
        return stream(self.mixture.batches, numbers, self.recipe.data.workers)

    def measuring(self, folder: RunFolder) -> HeldOutLosses:
        path = folder.path / "held_out.jsonl"
        return HeldOutLosses(self.recipe, self.mixture, self.model, path, self.console)

    def finish(self, folder: RunFolder, measuring: HeldOutLosses) -> None:
        weights = checkpoint.whole_weights(self.model.network)
        distributed.on_main(partial(self._export, folder.model, weights))
        measuring.after()

    def _export(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        with whole_folder(folder) as aside, quietly():
            self.model.network.save_pretrained(aside, state_dict=dict(weights))
            self.tokenizer.save_pretrained(aside)
        self.console.print(f"model: {folder}", highlight=False, markup=False, soft_wrap=True)


def prepare(
    recipe: PretrainRecipe,
    sources: Mapping[str, Texts] | None,
    device: torch.device,
    console: Console,
) -> Pretraining:
    """Open and check everything that a run reads, and say what it will do."""
    recipe, chosen = precision.resolve(recipe, device)
    check_trackers(recipe.logging.trackers)
    tokenizer = hub.load_tokenizer(recipe.model.tokenizer)
    start = _start(recipe)
    network = _network(recipe, tokenizer)
    if start is not None:
        _fill(network, start, str(recipe.init_from))
    mixture = open_text_mixture(recipe, tokenizer, sources)
    autocast = precision.autocast_dtype(recipe.precision, device)
    model = LanguageModel(network, autocast).to(device)
    facts = {
        "recipe": recipe.model_dump(mode="json"),
        "sources": mixture.fingerprints,
        "model": {"weights": hashing.sha256_of(start) if start else "random"},
        "world_size": distributed.world_size(),
        "threads": torch.get_num_threads(),
    }
    if recipe.compile:
        for layer in network.model.transformer_encoder:
            layer.compile()
    if recipe.shard:
        sharding.shard(model, network.model.transformer_encoder)
    peak = speed.matmul_peak(device, autocast or torch.float32) * distributed.world_size()
    parameters = sum(each.numel() for each in network.parameters())
    table = mixture.table()
    table.title = (
        f"{parameters / 1e6:.1f} M parameters, {device}, {chosen}, peak {peak / 1e9:,.0f} GFLOP/s; "
        f"{recipe.steps} steps of at most {recipe.data.batch_tokens:,} tokens"
    )
    console.print(table)
    return Pretraining(recipe, mixture, model, tokenizer, facts, console, peak)


def _network(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerBase) -> NeoBERTForMaskedLM:
    """The recipe's architecture with random weights, the same at every call."""
    vocabulary = recipe.model.vocab_size or len(tokenizer)
    if vocabulary < len(tokenizer):
        raise UserError(
            f"model.vocab_size = {vocabulary}: {recipe.model.tokenizer} has {len(tokenizer)} ids; "
            "leave it out, or set it to that or more"
        )
    config = architecture(recipe.model, vocabulary, tokenizer.pad_token_id or 0)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(keyed.key(recipe.seed, "weights"))
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


def _start(recipe: PretrainRecipe) -> Mapping[str, Tensor] | None:
    """The weights that ``init_from`` names."""
    if recipe.init_from is None:
        return None
    folder = Path(hub.resolve(recipe.init_from))
    if (folder / "run.json").is_file():
        found, _ = checkpoint.newest(folder / "checkpoints")
        if found is not None:
            weights = checkpoint.read_weights(found)
            return {name.removeprefix("network."): each for name, each in weights.items()}
        folder = folder / "model"
    loaded = load_pretrained(NeoBERTForMaskedLM, folder)
    return loaded.state_dict()


def _fill(network: NeoBERTForMaskedLM, weights: Mapping[str, Tensor], origin: str) -> None:
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


def _flops(model: LanguageModel, lengths: Tensor, masked: int) -> float:
    network = model.network
    layers = network.model.transformer_encoder
    return speed.training_flops(
        lengths,
        masked,
        matrices=sum(each.numel() for each in layers.parameters() if each.ndim > 1),
        decoder=network.decoder.weight.numel(),
        layers=len(layers),
        width=network.config.hidden_size,
    )
