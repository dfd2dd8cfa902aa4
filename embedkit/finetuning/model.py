"""The model that a fine-tuning run starts from: one encoder, or two that are read in turn."""

import torch

from embedkit.config import differences
from embedkit.errors import UserError
from embedkit.models import hub, lora
from embedkit.models.backbones import Backbone, PaddedBackbone
from embedkit.models.contextual.loading import is_contextual, load_contextual
from embedkit.models.contextual.model import Contextual
from embedkit.models.contextual.prefix import KERNELS
from embedkit.models.embedder import Embedder
from embedkit.models.export import stock_mode
from embedkit.recipe import Recipe


def load(
    recipe: Recipe, *, autocast: torch.dtype | None, device: torch.device
) -> Embedder | Contextual:
    """The recipe's model on its device, every weight as it is before the first step.

    With a ``[context]`` that is two copies of an encoder, or the two of a model that an earlier run
    exported.

    Raises:
        UserError: there is no such model, or it cannot be trained as the recipe says.
    """
    if recipe.context is not None and is_contextual(recipe.model):
        return _two_stages(recipe, autocast, device)
    embedder = hub.load(recipe.model, settings=recipe.embedder, autocast=autocast, device=device)
    _check_dims(recipe, embedder.backbone.width)
    if recipe.lora:
        lora.check(embedder, recipe.lora)
    if recipe.context is None:
        # Or training would end with a model that cannot be exported.
        stock_mode(embedder)
        return embedder
    _check_attention(recipe, embedder.backbone)
    return Contextual.around(embedder, recipe.context)


def check_lengths(recipe: Recipe, limits: dict[str, int], model: Embedder | Contextual) -> None:
    """See that the model reads texts as long as the run will cut them.

    Args:
        recipe: has limits of its own.
        limits: further ones, by what a user knows them by.
        model: what is to be trained.

    Raises:
        UserError: names a limit that is too high.
    """
    limits = {
        "data.max_query_tokens": recipe.data.max_query_tokens,
        "data.max_document_tokens": recipe.data.max_document_tokens,
        **limits,
    }
    for key, limit in limits.items():
        if limit > model.position_limit:
            raise UserError(
                f"{key} = {limit}: {recipe.model} reads at most {model.position_limit} tokens; "
                "set it to that or less"
            )


def _two_stages(recipe: Recipe, autocast: torch.dtype | None, device: torch.device) -> Contextual:
    model = load_contextual(recipe.model, autocast=autocast, device=device)
    assert recipe.context is not None
    own, wanted = model.config.model_dump(), recipe.context.model_dump()
    if changes := differences(own, wanted, "context"):
        raise UserError(
            f"{recipe.model}: its two stages are joined otherwise than the recipe says: "
            f"{'; '.join(changes)}; set what it has"
        )
    if model.frozen is not None:
        raise UserError(
            f"{recipe.model}: has a frozen context and no first encoder to train; pass the folder "
            "that it was frozen from"
        )
    _check_dims(recipe, model.second.width)
    _check_attention(recipe, model.second)
    if recipe.embedder.attention:
        for encoder in {model.first, model.second}:
            assert encoder is not None
            encoder.model.set_attn_implementation(recipe.embedder.attention)
    return model


def _check_attention(recipe: Recipe, second: Backbone) -> None:
    wanted = recipe.embedder.attention
    if isinstance(second, PaddedBackbone) and wanted not in (None, *KERNELS):
        raise UserError(
            f'embedder.attention = "{wanted}": which context a text of {recipe.model} reads is '
            f"said by a mask, and this kernel takes none; set one of {', '.join(KERNELS)}"
        )


def _check_dims(recipe: Recipe, width: int) -> None:
    widest = max(recipe.objective.needs.widths, default=1)
    if widest > width:
        raise UserError(
            f"objective: a width of {widest} is more than the {width} dimensions of "
            f"{recipe.model}; begin with {width}"
        )
