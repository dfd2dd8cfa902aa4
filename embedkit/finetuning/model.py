"""Loads and checks the model that a fine-tuning run starts from, of one stage or two."""

import difflib
from collections.abc import Sequence

import torch

from embedkit import rng
from embedkit.config import differences
from embedkit.data.pairs.lengths import limits_of
from embedkit.data.pairs.records import Records
from embedkit.errors import UserError
from embedkit.models import hub, lora
from embedkit.models.backbones import PaddedBackbone
from embedkit.models.contextual.loading import is_contextual, load_contextual
from embedkit.models.contextual.model import KERNELS, Contextual
from embedkit.models.embedder import Embedder
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.head import UnitNorm
from embedkit.models.pooling import stock_mode
from embedkit.models.trained_prompts import TrainedPrompts
from embedkit.recipe import Recipe
from embedkit.tokens.prompts import SEARCH, SIDES, benchmark_prompts
from embedkit.tokens.tokenizer import Tokenize


def load(
    recipe: Recipe, *, autocast: torch.dtype | None, device: torch.device
) -> Embedder | Contextual:
    """Load the recipe's model on its device, with the weights of before the first step.

    With a ``[context]`` it has two copies of an encoder, or the two encoders of a model that an
    earlier run exported.

    Raises:
        UserError: there is no such model, or it cannot be trained as the recipe says.
    """
    model: Embedder | Contextual
    if recipe.context is not None and is_contextual(recipe.model):
        model = load_contextual(recipe.model, autocast=autocast, device=device)
        _check_stages(recipe, model)
    else:
        model = hub.load(recipe.model, settings=recipe.embedder, autocast=autocast, device=device)
    backbone = model.second if isinstance(model, Contextual) else model.backbone
    if (widest := max(recipe.objective.needs.widths, default=1)) > model.width:
        raise UserError(
            f"objective: a width of {widest} is more than the {model.width} dimensions of "
            f"{recipe.model}; begin with {model.width}"
        )
    attention = recipe.embedder.attention
    masked = recipe.context is not None and isinstance(backbone, PaddedBackbone)
    if masked and attention not in (None, *KERNELS):
        raise UserError(
            f'embedder.attention = "{attention}": which context a text of {recipe.model} reads is '
            f"said by a mask, and this kernel takes none; set one of {', '.join(KERNELS)}"
        )
    if isinstance(model, Contextual):
        if attention:
            for encoder in {model.first, model.second}:
                assert encoder is not None
                encoder.model.set_attn_implementation(attention)
        return model
    if recipe.lora:
        lora.check(model, recipe.lora)
    if recipe.context is not None:
        return Contextual.around(model, recipe.context)
    # This raises for a pooling with which the trained model could not be exported.
    stock_mode(model.pooling)
    return model


def scale_to_unit_norm(model: Embedder | Contextual) -> str | None:
    """Make a model's vectors whole unit vectors compared by cosine; return what changed, or None.

    Losses compare unit vectors, so that nothing else of a vector is trained.
    """
    changed = [] if model.similarity == "cosine" else [f"similarity {model.similarity}"]
    if model.truncate_dim is not None:
        changed.append(f"vectors cut to {model.truncate_dim} dimensions")
    model.similarity, model.truncate_dim = "cosine", None
    if not model.is_unit_norm:
        changed.append("vectors of any norm")
        if isinstance(model, Contextual):
            model.normalize = True
        else:
            model.head.append(UnitNorm())
    if not changed:
        return None
    return (
        f"{model.name} has {' and '.join(changed)}; this run trains, scores and exports "
        "whole unit vectors, compared by cosine"
    )


def choose_trained_weights(recipe: Recipe, model: Embedder | Contextual) -> None:
    """Add the adapters of ``[lora]``, and freeze what the recipe keeps as it is."""
    if recipe.lora:
        lora.attach(model, recipe.lora, seed=rng.fold_in(recipe.seed, "lora"))
    if isinstance(model, Embedder) and not recipe.embedder.train_dense:
        model.head.requires_grad_(False)


def check_lengths(recipe: Recipe, records: Sequence[Records], model: EmbeddingModel) -> None:
    """Verify the lengths to which the run will truncate texts.

    Raises:
        UserError: the model reads shorter texts alone, or a prompt leaves no room for a text.
    """
    sources = [(f"{source.name}: ", source.description) for source in records]
    for prefix, limits in [("data.", recipe.data), *sources]:
        for side in ("max_query_tokens", "max_document_tokens"):
            limit = getattr(limits, side)
            if limit and limit > model.position_limit:
                raise UserError(
                    f"{prefix}{side} = {limit}: {recipe.model} reads at most "
                    f"{model.position_limit} tokens; set it to that or less"
                )
    tokenize = Tokenize(model.tokenizer)
    for source in records:
        for side, limit in zip(SIDES, limits_of(source, recipe.data), strict=True):
            prompt = getattr(source.prompts, side)
            tokenize.check_room(prompt, limit, f"{source.name}: max_{side}_tokens")


def set_prompts(recipe: Recipe, records: Sequence[Records], model: EmbeddingModel) -> str | None:
    """Give a model the prompts that it is trained with, and none for a side trained without.

    A default prompt that stands before no text of the training goes; a remark on it is returned.

    Raises:
        UserError: a default prompt is none that the model stores.
    """
    default, trained = model.default_prompt_name, _prompts_of(records)
    others = {name: prompt for name, prompt in model.prompts.items() if name not in SEARCH}
    model.prompts = others | stored_prompts(records)
    stored = model.prompts.get(default or "")
    if stored is None or not trained.has("text", stored):
        model.default_prompt_name = None
    if recipe.embedder.benchmark_prompts:
        model.prompts |= benchmark_prompts()
    for side, name in recipe.embedder.default_prompts.model_dump(exclude_none=True).items():
        if name not in model.prompts:
            near = difflib.get_close_matches(name, model.prompts, n=3, cutoff=0.3)
            raise UserError(
                f'embedder.default_prompts.{side} = "{name}": the model will store no such prompt; '
                f"choose one of {', '.join(near or model.prompts)}, or leave the key out"
            )
        model.prompts[side] = model.prompts[name]
    model.trained_prompts = trained.joined(model.trained_prompts)
    if default == model.default_prompt_name:
        return None
    return (
        f"the exported model has no default prompt: {default!r}, that of {recipe.model}, stands "
        "before no text of the training"
    )


def undecided_sides(model: EmbeddingModel, records: Sequence[Records]) -> dict[str, str]:
    """Return the sides of a search that a run had prompts for and the model stores none for.

    Each comes with the name of a stored prompt that the run put before its texts.
    """
    run = _prompts_of(records)
    undecided = {}
    for side in SIDES:
        named = [name for name in model.prompts if name.endswith(f"-{side}")]
        had = [name for name in named if run.has(side, model.prompts[name])]
        if side not in model.prompts and not run.has(side, "") and had:
            undecided[side] = had[0]
    return undecided


def _prompts_of(records: Sequence[Records]) -> TrainedPrompts:
    used = {side: [getattr(source.prompts, side) for source in records] for side in SIDES}
    return TrainedPrompts(used)


def stored_prompts(records: Sequence[Records]) -> dict[str, str]:
    """Return the prompts of training as a model stores them, under sentence-transformers' names.

    ``query`` and ``document`` where all sources agree, and ``<source>-query``,
    ``<source>-document`` where they do not. Where sources differ and some have the prefix of a
    search, ``query`` and ``document`` are those of a search too.
    """
    prompts: dict[str, str] = {}
    for side, search_prompt in SEARCH.items():
        by_source = {source.name: str(getattr(source.prompts, side)) for source in records}
        distinct = set(by_source.values())
        if len(distinct) == 1:
            prompts[side] = distinct.pop()
            continue
        prompts |= {f"{name}-{side}": prompt for name, prompt in by_source.items()}
        # Without it, a text would be read without any prefix, as none was in training.
        if search_prompt in distinct:
            prompts[side] = search_prompt
    return prompts


def _check_stages(recipe: Recipe, model: Contextual) -> None:
    """Verify that a model that has two stages already can be trained as the recipe says."""
    assert recipe.context is not None
    if changes := differences(model.config.model_dump(), recipe.context.model_dump(), "context"):
        raise UserError(
            f"{recipe.model}: its two stages are joined otherwise than the recipe says: "
            f"{'; '.join(changes)}; set what it has"
        )
    if model.frozen is not None:
        raise UserError(
            f"{recipe.model}: has a frozen context and no first encoder to train; pass the folder "
            "that it was frozen from"
        )
