"""Loading of two-stage models by name, in embedkit's format or that of published checkpoints."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.contextual import cde_checkpoint
from embedkit.models.contextual.context import Context
from embedkit.models.contextual.model import Contextual, without_pooler
from embedkit.models.model_files import fetched, fill, located, read_json, read_weights, under
from embedkit.models.pretrained import quietly
from embedkit.models.st_config import describes_two_stages, similarity_of
from embedkit.models.trained_prompts import TrainedPrompts
from embedkit.recipe import ContextualConfig

_REMEDY = "take both files from the same export"


def is_contextual(model: str) -> bool:
    """Return whether ``model`` names a two-stage model: a hub id, a folder, or one in a package."""
    return describes_two_stages(read_json(Path(located(hub.resolve(model))) / "config.json"))


def load_contextual(
    model: str, *, autocast: torch.dtype | None = None, device: torch.device | None = None
) -> Contextual:
    """Load a two-stage model to encode or train: one that embedkit wrote, or a cde-small-v1 or v2.

    ``model`` is a folder, ``package:<distribution>/<path>`` or a hub id. Its code is never run.

    Raises:
        UserError: there is no such model, it has one stage or settings that embedkit does not
            compute, or other weights than its config.json describes.
    """
    folder = fetched(hub.resolve(model))
    config = read_json(folder / "config.json")
    if not describes_two_stages(config):
        raise UserError(
            f"{model}: has one stage; Contextual.around(embedkit.load(...), ContextualConfig()) "
            "makes two of it, to be trained"
        )
    weights = read_weights(folder)
    if "contextual" not in config:
        config, weights = cde_checkpoint.converted(folder, config, weights)
    frozen = None
    if origin := config["frozen"]:
        facts = (origin[name] for name in ("model", "corpus_size", "seed"))
        frozen = Context(weights.pop("frozen"), *facts)
    tokenizer = hub.load_tokenizer(str(folder))
    stages = [stage for stage in ("first", "second") if config[stage]]
    networks = {stage: _encoder(folder, stage, config[stage], weights) for stage in stages}
    encoders = {name: hub.backbone_of(network, tokenizer) for name, network in networks.items()}
    settings = read_json(folder / "config_sentence_transformers.json")
    prompts = settings.get("prompts") or config.get("prompts", {})
    loaded = Contextual(
        encoders.get("first"),
        encoders["second"],
        tokenizer,
        ContextualConfig(**config["contextual"]),
        prompts={name: prompt for name, prompt in prompts.items() if prompt is not None},
        max_tokens=config["max_seq_length"],
        position_limit=config["position_limit"],
        name=hub.display_name(model),
        autocast=autocast,
        frozen=frozen,
        normalize=config["normalize"],
        similarity=similarity_of(str(folder)),
        trained_prompts=TrainedPrompts.read(folder),
    )
    of_encoders = tuple(f"{stage}." for stage in encoders)
    heads = {name: head for name, head in weights.items() if not name.startswith(of_encoders)}
    own = loaded.head_weights()
    encoded = {name: each for name, each in loaded.state_dict().items() if name not in own}
    fill(loaded, encoded | heads, f"{folder}: its weights do not fit its config.json", _REMEDY)
    return loaded.float().to(device or torch.device("cpu")).eval()


def _encoder(
    folder: Path, stage: str, config: dict[str, Any], weights: dict[str, Tensor]
) -> PreTrainedModel:
    # The initial weights are replaced below; drawing them must not change the random state.
    with torch.random.fork_rng(devices=()), quietly():
        network = without_pooler(AutoModel.from_config(AutoConfig.for_model(**config)))
    mismatch = f"{folder}: the weights of its {stage} encoder do not fit its config.json"
    fill(network, under(weights, f"{stage}."), mismatch, _REMEDY)
    return network
