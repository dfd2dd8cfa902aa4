"""Other names of keys: those of earlier versions, and those of sentence-transformers.

Each is read as the key that it stands for, with a remark; what has no counterpart is refused.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from embedkit.errors import UserError
from embedkit.recipe.extensions import names
from embedkit.recipe.pair_objectives import OBJECTIVES

RENAMED = {
    "optim.final_lr_share": "optim.min_lr_ratio",
    "optim.clip": "optim.max_grad_norm",
    "optim.accumulation": "optim.gradient_accumulation_steps",
    "data.micro_tokens": "data.micro_batch_tokens",
    "objective.chunk_tokens": "objective.micro_batch_tokens",
}
"""Old names of keys."""

SAME = {
    "learning_rate": "optim.lr",
    "weight_decay": "optim.weight_decay",
    "adam_epsilon": "optim.eps",
    "max_grad_norm": "optim.max_grad_norm",
    "warmup_steps": "optim.warmup_steps",
    "lr_scheduler_type": "optim.schedule",
    "gradient_accumulation_steps": "optim.gradient_accumulation_steps",
    "logging_steps": "logging.every",
    "save_steps": "checkpoints.every",
    "save_total_limit": "checkpoints.keep",
    "dataloader_num_workers": "data.workers",
    "model_name_or_path": "model",
}
"""Training arguments of sentence-transformers, and the keys that mean the same."""

_NO_COUNTERPART = {
    "output_dir": "the folder of a run is the option --output",
    "resume_from_checkpoint": "a run is continued by the option --resume",
    "batch_sampler": "data.batches says what a batch is made of",
    "multi_dataset_batch_sampler": "data.alpha and the weights of data.mix say it",
    "deepspeed": "a pretraining run is split over ranks by shard = true",
    "fsdp": "a pretraining run is split over ranks by shard = true",
}
"""Training arguments of sentence-transformers without a key, and what comes nearest."""

_LOSSES: Mapping[str, dict[str, Any]] = {
    "MultipleNegativesRankingLoss": {"kind": "contrastive", "temperature": 0.05},
    "MultipleNegativesSymmetricRankingLoss": {
        "kind": "contrastive",
        "temperature": 0.05,
        "symmetric": True,
    },
    "CoSENTLoss": {"kind": "cosent"},
    "AnglELoss": {"kind": "angle"},
}
"""Losses of sentence-transformers, and their keys under ``objective``; its scale of 20 is a
temperature of 0.05."""
_CACHED_TOKENS = 16_384
"""Tokens encoded at a time for a loss called Cached, whose unit is 32 texts instead."""
_NEAREST = {
    "MatryoshkaLoss": "objective.matryoshka_dims",
    "GISTEmbedLoss": 'objective.false_negatives = "absolute" with a data.batch_table',
    "TripletLoss": 'kind = "contrastive", which reads triplets too',
}
"""Losses of sentence-transformers that are no kind here, and what comes nearest."""

Values = dict[str, Any]
"""Values by dotted key; ``None`` unsets a key."""


def meaning(key: str, value: Any, recipe: Mapping[str, Any]) -> tuple[Values, str] | None:
    """Return the keys that another name of one stands for, with a remark, or None for any other.

    Args:
        key: dotted name, at the top of a recipe or in the table of what it stands for.
        value: its value.
        recipe: the tables of the recipe, on which some meanings depend.

    Raises:
        UserError: the name is known, and has no counterpart.
    """
    if key in RENAMED:
        return {RENAMED[key]: value}, f"{key} was renamed {RENAMED[key]}"
    table, _, word = key.rpartition(".")
    if key in ("objective.kind", "loss", "objective.loss"):
        values = _loss(value, key, recipe)
    elif key in ("objective.scale", "scale") and isinstance(value, float | int) and value > 0:
        values = {"objective.temperature": 1 / value}
    elif word in SAME and table in ("", SAME[word].rpartition(".")[0]):
        values = {SAME[word]: value}
    elif table in ("", "data", "optim") and word in _DEPENDENT:
        values = _DEPENDENT[word](value, recipe)
    elif key in _NO_COUNTERPART:
        raise UserError(f"{key}: no key of recipes; {_NO_COUNTERPART[key]}")
    else:
        return None
    if not values or values == {key: value}:
        return None
    here = ", ".join(_written(name, each) for name, each in values.items())
    return values, f"{_written(key, value)} is {here}"


def _written(key: str, value: Any) -> str:
    return f"{key} unset" if value is None else f"{key} = {_text(value)}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _pretrains(recipe: Mapping[str, Any]) -> bool:
    objective = recipe.get("objective")
    return isinstance(objective, dict) and objective.get("kind") == "masked_lm"


def _epochs(value: Any, recipe: Mapping[str, Any]) -> Values:
    if _pretrains(recipe):
        raise UserError("num_train_epochs: a pretraining run is as long as steps says; set that")
    return {"epochs": value, "steps": None}


def _steps(value: Any, recipe: Mapping[str, Any]) -> Values:
    return {"steps": value} if _pretrains(recipe) else {"steps": value, "epochs": None}


def _batch_size(value: Any, recipe: Mapping[str, Any]) -> Values:
    if _pretrains(recipe):
        raise UserError(
            "per_device_train_batch_size: a pretraining batch is counted in tokens; set "
            "data.batch_tokens, which is over all ranks"
        )
    if (ranks := int(os.environ.get("WORLD_SIZE", "1"))) > 1 and isinstance(value, int):
        raise UserError(
            f"per_device_train_batch_size = {value}: data.batch_size counts the pairs of all "
            f"ranks; set data.batch_size={value * ranks}"
        )
    return {"data.batch_size": value}


def _length(value: Any, recipe: Mapping[str, Any]) -> Values:
    if _pretrains(recipe):
        return {"data.max_tokens": value}
    return {"data.max_query_tokens": value, "data.max_document_tokens": value}


def _warmup(value: Any, recipe: Mapping[str, Any]) -> Values:
    steps = recipe.get("steps")
    if not isinstance(steps, int) or not isinstance(value, float | int):
        raise UserError(
            f"warmup_ratio = {_text(value)}: the number of steps is not known where epochs is "
            "set; set optim.warmup_steps"
        )
    return {"optim.warmup_steps": math.ceil(value * steps)}


def _bf16(value: Any, recipe: Mapping[str, Any]) -> Values:
    if not isinstance(value, bool):
        raise UserError(f"bf16 = {_text(value)}: write true, or set precision = 'bf16'")
    return {"precision": "bf16" if value else "fp32"}


def _fp16(value: Any, recipe: Mapping[str, Any]) -> Values:
    if value is False:
        return {"precision": "fp32"}
    raise UserError(
        f'fp16 = {_text(value)}: training has no fp16; precision = "auto" is bf16 where the device '
        "has it, else fp32"
    )


def _gradient_checkpointing(value: Any, recipe: Mapping[str, Any]) -> Values:
    if _pretrains(recipe):
        return {"model.gradient_checkpointing": value}
    raise UserError(
        "gradient_checkpointing: no key of fine-tuning; objective.micro_batch_tokens = "
        f"{_CACHED_TOKENS} saves memory by gradient caching, and changes no gradient"
    )


def _loss(value: Any, key: str, recipe: Mapping[str, Any]) -> Values:
    """Return the meaning of a loss of sentence-transformers, and nothing for other values.

    Settings that come with a loss give way to those that the recipe has.
    """
    known = {*OBJECTIVES.built_in, *names(OBJECTIVES.group)}
    of_embedkit = key == "objective.kind" and (value in known or not str(value).endswith("Loss"))
    if of_embedkit or not isinstance(value, str):
        return {}
    name = value.removeprefix("Cached")
    found = _LOSSES.get(name)
    if found is None or found["kind"] not in known:
        near = _NEAREST.get(name, f"the kinds are {', '.join(sorted(known))}")
        raise UserError(f"{key} = {_text(value)}: no loss of embedkit; nearest: {near}")
    cached = {"micro_batch_tokens": _CACHED_TOKENS} if name != value else {}
    table = recipe.get("objective")
    present = set(table) - {"kind"} if isinstance(table, dict) else set()
    implied = {**found, **cached}
    return {f"objective.{name}": implied[name] for name in implied if name not in present}


_DEPENDENT: Mapping[str, Callable[[Any, Mapping[str, Any]], Values]] = {
    "num_train_epochs": _epochs,
    "max_steps": _steps,
    "per_device_train_batch_size": _batch_size,
    "max_seq_length": _length,
    "warmup_ratio": _warmup,
    "bf16": _bf16,
    "fp16": _fp16,
    "gradient_checkpointing": _gradient_checkpointing,
}
"""Training arguments whose meaning depends on their value or on the recipe."""
