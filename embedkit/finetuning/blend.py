"""Blends models of one architecture: the weighted mean of their weights.

A model fine-tuned on few data loses on other kinds of text what its starting point knew. Between
the two, in a straight line through the space of weights, lie models that keep most of both
(WiSE-FT, Wortsman et al. 2022, equation 1; LM-Cocktail, Xiao et al. 2023, for embedding models).
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import ModelCardData
from torch import Tensor

from embedkit.distributed.progress import say
from embedkit.errors import ArgumentError, UserError, some
from embedkit.evaluation.tables import as_code, as_prose
from embedkit.models import hub
from embedkit.models.backbones import shape_of
from embedkit.models.contextual.loading import is_contextual
from embedkit.models.embedder import Embedder
from embedkit.models.export import write_model
from embedkit.storage.folders import check_output
from embedkit.tokens.tokenizer import identity_of

_CARD = """\
---
{metadata}
---

# {name}

The weighted mean of the weights of models of one architecture, made by embedkit:

| model | share |
|---|---:|
{rows}

Prompts, limits and similarity are those of {first}.
"""


def blend(models: Mapping[str, float], output: str | Path, *, overwrite: bool = False) -> Path:
    """Write the weighted mean of the weights of several models as a sentence-transformers folder.

    Means are taken in fp64 and stored in fp32. Prompts, limits and similarity are those of the
    first model, and a line says which of them another model has otherwise.

    Args:
        models: share of each model, from 0 to 1 and 1 in all; a model is a folder, a hub id,
            ``package:<distribution>/<path>`` or an alias.
        output: folder to write.
        overwrite: whether to replace an earlier export in ``output`` whose files are unchanged.

    Returns:
        Path of the folder.

    Raises:
        UserError: shares are not as they should be, or the models differ in architecture,
            tokenizer, pooling or modules behind it.
    """
    _check_shares(models)
    folder = Path(output)
    check_output(folder, "a model", overwrite=overwrite)
    (first, share), *others = models.items()
    blended = _load(first)
    means = {name: share * _wide(part) for name, part in blended.state_dict().items()}
    for other, share in others:
        model = _load(other)
        _check_alike(first, blended, other, model)
        for name, part in model.state_dict().items():
            means[name] += share * _wide(part)
        if changed := _settings_that_differ(blended, model):
            say(f"note: {other} has another {changed} than {first}, whose are kept")
    blended.load_state_dict({name: mean.float() for name, mean in means.items()})
    write_model(blended, folder, card=_card(folder.resolve().name, models))
    return folder


def parse_shares(words: list[str]) -> dict[str, float]:
    """Return the share of each model in words such as ``starter:0.4``."""
    shares: dict[str, float] = {}
    for word in words:
        model, colon, share = word.rpartition(":")
        try:
            number = float(share)
        except ValueError:
            colon = ""
        if not (model and colon):
            raise UserError(f"{word}: give a model and its share, such as starter:0.4")
        if model in shares:
            raise UserError(f"{word}: {model} is given twice; add its shares up")
        shares[model] = number
    return shares


def _check_shares(models: Mapping[str, float]) -> None:
    if len(models) < 2:
        raise ArgumentError(("models", f"give two or more (got {some(list(models)) or 'none'})"))
    for model, share in models.items():
        if not 0 <= share <= 1:
            raise UserError(f"{model}:{share:g}: is no share; give one from 0 to 1")
    total = sum(models.values())
    if not math.isclose(total, 1, abs_tol=1e-6):
        raise UserError(f"the shares sum to {total:g}; give shares that sum to 1")


def _load(model: str) -> Embedder:
    if is_contextual(model):
        raise UserError(f"{model}: is a contextual model; blend takes models of one stage")
    return hub.load(model)


def _wide(part: Tensor) -> Tensor:
    return part.detach().to(torch.float64)


def _check_alike(first: str, model: Embedder, other: str, second: Embedder) -> None:
    """Raise UserError, which names the first difference, unless two models can be blended."""
    weights, theirs = model.state_dict(), second.state_dict()
    shapes, their_shapes = shape_of(model.backbone.model), shape_of(second.backbone.model)
    keys = sorted(shapes.keys() | their_shapes.keys())
    unlike = [key for key in keys if shapes.get(key) != their_shapes.get(key)]
    names = sorted(weights.keys() ^ theirs.keys()) or [
        name for name, part in weights.items() if part.shape != theirs[name].shape
    ]
    difference = ""
    if unlike:
        key = unlike[0]
        difference = f"{key} is {shapes.get(key)!r} and {their_shapes.get(key)!r}"
    elif names:
        difference = f"weights differ in name or shape: {some(names)}"
    elif identity_of(model.tokenizer) != identity_of(second.tokenizer):
        difference = "their tokenizers give other ids"
    elif (model.pooling, model.include_prompt) != (second.pooling, second.include_prompt):
        difference = f"pooling is {_pooling(model)} and {_pooling(second)}"
    elif model.head.described != second.head.described:
        difference = "the modules behind their pooling differ"
    if difference:
        raise UserError(
            f"{first} and {other} cannot be blended: {difference}; blend models that were trained "
            "from one starting point"
        )


def _pooling(model: Embedder) -> str:
    return model.pooling + ("" if model.include_prompt else " without the prompt")


def _settings_that_differ(model: Embedder, other: Embedder) -> str:
    settings = {
        "prompts": "prompts",
        "default_prompt_name": "default prompt",
        "max_tokens": "length limit",
        "similarity": "similarity",
        "truncate_dim": "truncate_dim",
    }
    changed = (said for key, said in settings.items() if getattr(model, key) != getattr(other, key))
    return ", ".join(changed)


def _card(name: str, models: Mapping[str, float]) -> str:
    metadata = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "embedkit", "merge"],
        model_name=name,
    )
    rows = "\n".join(f"| {as_prose(model)} | {share:g} |" for model, share in models.items())
    return _CARD.format(
        metadata=metadata.to_yaml(),
        name=as_prose(name),
        rows=rows,
        first=as_code(next(iter(models))),
    )
