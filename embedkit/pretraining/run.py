"""A pretraining run: opens and checks everything that its recipe names."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from embedkit import distributed
from embedkit.data.loading import stream
from embedkit.data.text.masked_batches import MaskedBatch
from embedkit.data.text.texts import Texts
from embedkit.distributed import sharding
from embedkit.distributed.progress import show
from embedkit.models import hub, precision
from embedkit.models.neobert import NeoBERTForMaskedLM
from embedkit.models.pretrained import quietly
from embedkit.objectives.masked_lm import MaskedLMObjective
from embedkit.pretraining import weights as initial_weights
from embedkit.pretraining.held_out_loss import HeldOutLosses
from embedkit.pretraining.language_model import LanguageModel
from embedkit.pretraining.mixture import open_text_mixture
from embedkit.recipe import PretrainRecipe
from embedkit.storage import hashing
from embedkit.storage.folders import whole_folder
from embedkit.tokens.tokenizer import save_tokenizer
from embedkit.training import checkpoint, flops
from embedkit.training.interfaces import Stop
from embedkit.training.metrics import check_trackers
from embedkit.training.trainer import TrainingJob


def prepare(
    recipe: PretrainRecipe,
    sources: Mapping[str, Texts] | None,
    folder: Path,
    device: torch.device,
) -> TrainingJob[MaskedBatch]:
    """Open and check everything that a run reads, and print what it will do."""
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
    weights_hash = hashing.sha256_of(stored) if stored else "random"
    layers = network.model.transformer_encoder
    if recipe.compile:
        for layer in layers:
            layer.compile()
    if recipe.shard:
        sharding.shard(model, layers)
    peak_flops = flops.matmul_peak(device, autocast or torch.float32) * distributed.world_size()
    parameters = sum(parameter.numel() for parameter in network.parameters())
    table = mixture.table()
    table.title = (
        f"{parameters / 1e6:.1f} M parameters, {device}, {chosen}, "
        f"peak {peak_flops / 1e9:,.0f} GFLOP/s; "
        f"{recipe.steps} steps of at most {recipe.data.batch_tokens:,} tokens"
    )
    show(table)
    evaluator = HeldOutLosses(recipe, mixture, model, folder / "held_out.jsonl")
    data = recipe.data
    flops_of_step = partial(
        flops.training_flops,
        matrices=sum(weight.numel() for weight in layers.parameters() if weight.ndim > 1),
        decoder=network.decoder.weight.numel(),
        layers=len(layers),
        width=network.config.hidden_size,
    )
    return TrainingJob(
        recipe=recipe,
        facts={"sources": mixture.fingerprints, "model": {"weights": weights_hash}},
        model=model,
        objective=MaskedLMObjective(data.micro_batch_tokens, data.max_tokens, flops_of_step),
        batches=lambda numbers: stream(mixture.batches, numbers, data.workers),
        evaluator=evaluator,
        finish=partial(_finish, network, tokenizer, folder / "model", evaluator),
        peak_flops=peak_flops,
    )


def _finish(
    network: NeoBERTForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    evaluator: HeldOutLosses,
    _stop: Stop,
) -> bool:
    weights = checkpoint.whole_weights(network)

    def export() -> None:
        with whole_folder(folder, "a model") as aside, quietly():
            network.save_pretrained(aside, state_dict=weights)
            save_tokenizer(tokenizer, aside)
        show(f"model: {folder}")

    distributed.on_main(export)
    evaluator.after()
    return True
