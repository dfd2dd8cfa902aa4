"""Reads the settings that a model's folder stores in the format of sentence-transformers."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedkit.errors import UserError
from embedkit.models.model_files import check_weight_files, located, read_json, refuse_pickle
from embedkit.models.pooling import STOCK_MODES, pooling_with_stock_mode

_NO_LIMIT = 10**6
"""Value of a tokenizer's ``model_max_length`` from which it means that there is no limit."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Folder or hub id of an encoder and its settings; the defaults are for a bare encoder."""

    encoder: str
    pooling: str = "mean"
    include_prompt: bool = True
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    max_tokens: int | None = None


def read_stored(folder: str) -> Stored:
    """Read ``modules.json`` and the settings of its modules, from a folder or a hub id.

    A bare encoder without ``modules.json`` has the default settings.

    Raises:
        UserError: the folder holds no model, or one with parts that embedkit does not know.
    """
    folder = located(folder)
    root = Path(folder)
    if root.is_dir():
        check_weight_files(folder)
    config = read_json(root / "config.json")
    if not (root / "modules.json").is_file():
        if root.is_dir() and not (root / "config.json").is_file():
            refuse_pickle(folder)
            raise UserError(f"{folder}: holds neither modules.json nor config.json")
        return Stored(encoder=folder)
    if describes_two_stages(config):
        raise UserError(
            f"{folder}: is a contextual model, whose vectors depend on a corpus; pass a model of "
            "one stage here (embedkit eval-mteb takes both)"
        )
    modules = _modules(folder)
    encoder = root / modules["Transformer"]
    pooling = read_json(root / modules["Pooling"] / "config.json")
    limit = read_json(encoder / "sentence_bert_config.json").get("max_seq_length")
    # sentence-transformers stores the limit in tokenizer_config.json from 6.2 on.
    of_tokenizer = read_json(encoder / "tokenizer_config.json").get("model_max_length")
    if not limit and of_tokenizer and of_tokenizer < _NO_LIMIT:
        limit = of_tokenizer
    settings = read_json(root / "config_sentence_transformers.json")
    if kept := settings.get("truncate_dim"):
        raise UserError(
            f"{folder}: cuts its vectors to {kept} features, which embedkit does not do; take "
            "truncate_dim out of config_sentence_transformers.json to use whole vectors"
        )
    measure = settings.get("similarity_fn_name") or "cosine"
    if measure != "cosine" and "Normalize" not in modules:
        warnings.warn(
            f"{folder}: compares vectors of any length by {measure}; embedkit's have unit length, "
            "so that its scores may differ from those of sentence-transformers",
            stacklevel=2,
        )
    return Stored(
        encoder=str(encoder),
        pooling=_pooling(folder, pooling),
        include_prompt=bool(pooling.get("include_prompt", True)),
        # A prompt that is not set may be null in the file.
        prompts={k: v or "" for k, v in (settings.get("prompts") or {}).items()},
        default_prompt_name=settings.get("default_prompt_name"),
        max_tokens=int(limit) if limit else None,
    )


def describes_two_stages(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is that of a two-stage model, embedkit's or a published one."""
    return "contextual" in config or config.get("architecture") == "transductive"


def _modules(folder: str) -> dict[str, str]:
    """Return the path of each module by the last part of its type."""
    listed = read_json(Path(folder) / "modules.json", list)
    try:
        modules = {str(module["type"]).split(".")[-1]: str(module["path"]) for module in listed}
    except (KeyError, TypeError):
        raise UserError(
            f"{folder}: modules.json is not a list of modules, each with a type and a path; copy "
            "it anew from where the model comes from"
        ) from None
    for path in map(Path, modules.values()):
        if path.is_absolute() or ".." in path.parts:
            raise UserError(
                f"{folder}: modules.json names {path}, and only folders inside are read; copy it "
                "there, and name it by its relative path"
            )
    if unknown := sorted(set(modules) - {"Transformer", "Pooling", "Normalize"}):
        raise UserError(
            f"{folder}: modules.json has {', '.join(unknown)}, which embedkit cannot train; "
            "pass the folder of its encoder alone"
        )
    if lacking := sorted({"Transformer", "Pooling"} - set(modules)):
        raise UserError(
            f"{folder}: modules.json has no {' and no '.join(lacking)}; "
            "pass the folder of its encoder alone"
        )
    return modules


def _pooling(folder: str, config: Mapping[str, Any]) -> str:
    # sentence-transformers writes a name from 5.4 on, and before a switch for each pooling.
    named = config.get("pooling_mode")
    switched = [mode for mode, key in STOCK_MODES.items() if config.get(key)]
    # A list of names is concatenated.
    modes = list(named) if isinstance(named, list) else [named] if named else switched
    pooling = pooling_with_stock_mode(modes[0]) if len(modes) == 1 else None
    if pooling is None:
        raise UserError(
            f"{folder}: pools by {' + '.join(map(str, modes)) or 'nothing'}; embedkit knows mean "
            "and cls, and what a distribution registers in embedkit.poolings"
        )
    return pooling
