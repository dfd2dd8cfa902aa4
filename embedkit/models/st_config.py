"""Reads and writes the settings of a model in the format of sentence-transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from embedkit.errors import UserError
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.model_files import check_weight_files, located, read_json, refuse_pickle
from embedkit.models.pooling import STOCK_MODES
from embedkit.models.settings import Similarity
from embedkit.models.trained_prompts import TrainedPrompts
from embedkit.storage.atomic import write_json
from embedkit.tokens.tokenizer import save_tokenizer

_NO_LIMIT = 10**6
"""Value of a tokenizer's ``model_max_length`` from which it means that there is no limit."""
_FIRST = ["Transformer", "Pooling"]
"""Kinds of the first two modules of every folder."""
_HEAD = {"Dense", "Normalize"}
"""Kinds of the modules that may follow."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Settings of a model; the defaults are for a bare encoder."""

    folder: str
    """Folder or hub id of the model."""
    encoder: str
    """Folder or hub id of its encoder."""
    pooling: str = "mean"
    include_prompt: bool = True
    head: tuple[tuple[str, str], ...] = ()
    """Kind and folder of each module behind the pooling, in their order."""
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    max_tokens: int | None = None
    similarity: Similarity = "cosine"
    truncate_dim: int | None = None
    trained_prompts: TrainedPrompts | None = None


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
        return Stored(folder=folder, encoder=folder)
    if describes_two_stages(config):
        raise UserError(
            f"{folder}: is a contextual model, whose vectors depend on a corpus; pass a model of "
            "one stage here (embedkit eval-mteb takes both)"
        )
    (_, own), (_, pooled), *head = _modules(folder)
    encoder = root / own
    pooling = read_json(root / pooled / "config.json")
    if not pooling:
        raise UserError(
            f"{folder}: {pooled}/config.json, which says how to pool, is missing or empty; copy it "
            "from where the model comes from"
        )
    limit = read_json(encoder / "sentence_bert_config.json").get("max_seq_length")
    # sentence-transformers stores the limit in tokenizer_config.json from 6.2 on.
    of_tokenizer = read_json(encoder / "tokenizer_config.json").get("model_max_length")
    if not limit and of_tokenizer and of_tokenizer < _NO_LIMIT:
        limit = of_tokenizer
    settings = _settings(folder)
    return Stored(
        folder=folder,
        encoder=str(encoder),
        pooling=_pooling(folder, pooling),
        include_prompt=bool(pooling.get("include_prompt", True)),
        head=tuple(head),
        prompts=settings["prompts"],
        default_prompt_name=settings.get("default_prompt_name"),
        max_tokens=int(limit) if limit else None,
        similarity=similarity_of(folder),
        truncate_dim=settings.get("truncate_dim"),
        trained_prompts=TrainedPrompts.read(root),
    )


def _settings(folder: str) -> dict[str, Any]:
    """Return the values of ``config_sentence_transformers.json``, with the prompts as texts."""
    settings = read_json(Path(folder) / "config_sentence_transformers.json")
    prompts, width = settings.get("prompts") or {}, settings.get("truncate_dim")
    default, wrong = settings.get("default_prompt_name"), None
    if not isinstance(prompts, dict) or not all(
        isinstance(p, str | None) for p in prompts.values()
    ):
        wrong = "prompts is no table of texts"
    elif default is not None and default not in prompts:
        wrong = f"default_prompt_name is {default!r}, and prompts has none of that name"
    elif width is not None and not (type(width) is int and width > 0):
        wrong = f"truncate_dim is {width!r}, not a number of dimensions"
    if wrong:
        raise UserError(f"{folder}: config_sentence_transformers.json: {wrong}; correct the file")
    # A prompt that is not set may be null in the file.
    return settings | {"prompts": {name: prompt or "" for name, prompt in prompts.items()}}


def write_stored(model: EmbeddingModel, modules: list[dict[str, Any]], folder: Path) -> None:
    """Write ``modules.json`` of these entries, a model's prompts and similarity, its tokenizer."""
    settings: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "prompts": model.prompts,
        "default_prompt_name": model.default_prompt_name,
        "similarity_fn_name": model.similarity,
    }
    if model.truncate_dim is not None:
        settings["truncate_dim"] = model.truncate_dim
    write_json(folder / "modules.json", modules)
    write_json(folder / "config_sentence_transformers.json", settings)
    if model.trained_prompts is not None:
        model.trained_prompts.write(folder)
    save_tokenizer(model.tokenizer, folder)


def describes_two_stages(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is that of a two-stage model, embedkit's or a published one."""
    return "contextual" in config or config.get("architecture") == "transductive"


def _modules(folder: str) -> list[tuple[str, str]]:
    """Return kind and path of each module: Transformer, Pooling, and any Dense and Normalize."""
    listed = read_json(Path(folder) / "modules.json", list)
    try:
        modules = [(str(module["type"]).split(".")[-1], str(module["path"])) for module in listed]
    except (KeyError, TypeError):
        raise UserError(
            f"{folder}: modules.json is not a list of modules, each with a type and a path; copy "
            "it anew from where the model comes from"
        ) from None
    for path in (Path(path) for _, path in modules):
        if path.is_absolute() or ".." in path.parts:
            raise UserError(
                f"{folder}: modules.json names {path}, and only folders inside are read; copy it "
                "there, and name it by its relative path"
            )
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != _FIRST or not set(kinds[2:]) <= _HEAD:
        raise UserError(
            f"{folder}: modules.json has {', '.join(kinds) or 'none'}, and embedkit reads "
            "Transformer, Pooling, and behind them Dense and Normalize; pass the folder of its "
            "encoder alone"
        )
    return modules


def similarity_of(folder: str) -> Similarity:
    """Return the measure by which a folder says that its vectors are compared."""
    settings = read_json(Path(folder) / "config_sentence_transformers.json")
    named: Any = settings.get("similarity_fn_name") or "cosine"
    if named not in get_args(Similarity):
        raise UserError(
            f"{folder}: config_sentence_transformers.json has similarity_fn_name = {named!r}; "
            f"embedkit knows {', '.join(get_args(Similarity))}"
        )
    return named


def _pooling(folder: str, config: Mapping[str, Any]) -> str:
    # sentence-transformers writes a name from 5.4 on, and before a switch for each pooling.
    named = config.get("pooling_mode")
    switched = [mode for mode, key in STOCK_MODES.items() if config.get(key)]
    # A list of names is concatenated.
    modes = list(named) if isinstance(named, list) else [named] if named else switched or ["mean"]
    if len(modes) > 1 or modes[0] not in STOCK_MODES:
        raise UserError(
            f"{folder}: pools by {' + '.join(map(str, modes))}; embedkit pools by one of "
            f"{', '.join(STOCK_MODES)}"
        )
    return str(modes[0])
