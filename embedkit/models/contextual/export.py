"""Export of two-stage models: a sentence-transformers folder with the code that it needs."""

import shutil
from filecmp import cmpfiles
from pathlib import Path

from safetensors.torch import save_file
from transformers import PreTrainedModel

from embedkit.errors import UserError
from embedkit.models.backbones import Backbone
from embedkit.models.contextual.context import Context
from embedkit.models.contextual.model import Contextual
from embedkit.models.eurobert import obstacle, to_eurobert
from embedkit.models.neobert import NeoBERTModel
from embedkit.models.st_config import write_stored
from embedkit.storage.atomic import write_json
from embedkit.storage.folders import whole_folder

_HERE = Path(__file__).parent
_CODE = ["modeling_contextual.py", "prefix.py"]
"""Modules of this package that a folder gets a copy of, since they run without embedkit."""


def write_contextual(
    model: Contextual, folder: Path, *, context: Context | None = None, card: str = ""
) -> None:
    """Write a folder that ``SentenceTransformer(folder, trust_remote_code=True)`` opens.

    The opened model's ``encode`` takes ``dataset_embeddings``. If ``context`` is given, it is
    frozen in the folder, which then has no first encoder and needs no ``dataset_embeddings``. A
    crash leaves no partial folder.

    Raises:
        UserError: the context was made by another model, a NeoBERT ablation has no stock form, or
            ``folder`` holds something that embedkit did not write.
    """
    if context is not None:
        model.check_made(context)
    context = context or model.frozen
    frozen, contextual, weights = None, model.config, model.head_weights()
    encoders = {"second": _stock(model.second, model.name)}
    if context is not None:
        frozen = {"documents": len(context.vectors), **context.origin}
        # Nothing of the first stage is left.
        contextual = contextual.model_copy(update={"tied": False, "context_projection": False})
        weights = {k: v for k, v in weights.items() if not k.startswith("context_projection.")}
        weights["frozen"] = context.vectors
    elif model.first is not None and not model.config.tied:
        encoders["first"] = _stock(model.first, model.name)
    for stage, network in encoders.items():
        weights |= {f"{stage}.{name}": part for name, part in network.state_dict().items()}
    weights = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    config = {
        "architectures": ["ContextualModule"],
        "contextual": contextual.model_dump(),
        "normalize": model.normalize,
        "max_seq_length": model.max_tokens,
        "position_limit": model.position_limit + model.config.text_start,
        "text_start": model.config.text_start,
        "document_prompt": model.prompts.get("document", ""),
        "frozen": frozen,
        "first": encoders["first"].config.to_dict() if "first" in encoders else None,
        "second": encoders["second"].config.to_dict(),
    }
    module = {"idx": 0, "name": "0", "path": "", "type": "modeling_contextual.ContextualModule"}
    with whole_folder(folder, "a model") as aside:
        write_json(aside / "config.json", config)
        save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
        for code in _CODE:
            shutil.copyfile(_HERE / code, aside / code)
        write_stored(model, [{**module, "kwargs": ["dataset_embeddings"]}], aside)
        (aside / "README.md").write_text(card, encoding="utf-8")


def is_own_code(folder: Path) -> bool:
    """Return whether the code in a folder is the one that this version of embedkit writes."""
    same, _, _ = cmpfiles(_HERE, folder, _CODE, shallow=False)
    return same == _CODE


def _stock(backbone: Backbone, name: str) -> PreTrainedModel:
    """Return the encoder as a class of transformers; a NeoBERT is converted to a EuroBERT."""
    network = backbone.model
    if not isinstance(network, NeoBERTModel):
        return network
    if reason := obstacle(network.config):
        raise UserError(f"{name}: {reason}, and there is no other stock form to export to")
    return to_eurobert(network)
