"""A pretraining run: what its recipe names, opened and checked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from embedkit import distributed
from embedkit.data.loading import stream
from embedkit.data.text.masked_batches import MaskedBatch
from embedkit.data.text.texts import Texts
from embedkit.distributed import sharding
from embedkit.models import hub, precision
from embedkit.models.quiet import quietly
from embedkit.objectives.masked_lm import MaskedLMObjective
from embedkit.pretraining import weights as initial_weights
from embedkit.pretraining.held_out_loss import HeldOutLosses
from embedkit.pretraining.language_model import LanguageModel
from embedkit.pretraining.mixture import TextMixture, open_text_mixture
from embedkit.recipe import PretrainRecipe
from embedkit.storage import hashing
from embedkit.storage.folders import whole_folder
from embedkit.training import checkpoint, flops
from embedkit.training.metrics import check_trackers
from embedkit.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Pretraining:
    """A pretraining run, before it touches its folder."""

    recipe: PretrainRecipe
    mixture: TextMixture
    model: LanguageModel
    tokenizer: PreTrainedTokenizerBase
    facts: Mapping[str, object]
    console: Console
    peak_flops: float

    @property
    def objective(self) -> MaskedLMObjective:
        data = self.recipe.data
        flops = partial(_flops, self.model)
        return MaskedLMObjective(data.micro_batch_tokens, data.max_tokens, flops)

    def batches(self, numbers: range) -> Iterator[MaskedBatch]:
        return stream(self.mixture.batches, numbers, self.recipe.data.workers)

    def evaluator(self, folder: RunFolder) -> HeldOutLosses:
        path = folder.path / "held_out.jsonl"
        return HeldOutLosses(self.recipe, self.mixture, self.model, path, self.console)

    def finish(self, folder: RunFolder, evaluator: HeldOutLosses) -> None:
        weights = checkpoint.whole_weights(self.model.network)
        distributed.on_main(partial(self._export, folder.model, weights))
        evaluator.after()

    def _export(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        with whole_folder(folder, "a model") as aside, quietly():
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
    stored = initial_weights.stored_weights(recipe)
    network = initial_weights.random_network(recipe, tokenizer)
    if stored is not None:
        initial_weights.fill(network, stored, str(recipe.init_from))
    mixture = open_text_mixture(recipe, tokenizer, sources)
    initial_weights.start_decoder(network, recipe, mixture)
    autocast = precision.autocast_dtype(recipe.precision, device)
    model = LanguageModel(network, autocast).to(device)
    facts = {
        "recipe": recipe.model_dump(mode="json"),
        "sources": mixture.fingerprints,
        "model": {"weights": hashing.sha256_of(stored) if stored else "random"},
        "world_size": distributed.world_size(),
        "threads": torch.get_num_threads(),
    }
    if recipe.compile:
        for layer in network.model.transformer_encoder:
            layer.compile()
    if recipe.shard:
        sharding.shard(model, network.model.transformer_encoder)
    peak_flops = flops.matmul_peak(device, autocast or torch.float32) * distributed.world_size()
    parameters = sum(each.numel() for each in network.parameters())
    table = mixture.table()
    table.title = (
        f"{parameters / 1e6:.1f} M parameters, {device}, {chosen}, "
        f"peak {peak_flops / 1e9:,.0f} GFLOP/s; "
        f"{recipe.steps} steps of at most {recipe.data.batch_tokens:,} tokens"
    )
    console.print(table)
    return Pretraining(recipe, mixture, model, tokenizer, facts, console, peak_flops)


def _flops(model: LanguageModel, lengths: Tensor, masked: int) -> float:
    network = model.network
    layers = network.model.transformer_encoder
    return flops.training_flops(
        lengths,
        masked,
        matrices=sum(each.numel() for each in layers.parameters() if each.ndim > 1),
        decoder=network.decoder.weight.numel(),
        layers=len(layers),
        width=network.config.hidden_size,
    )
