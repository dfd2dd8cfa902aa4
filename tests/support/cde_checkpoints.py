"""Folders in the layout of cde-small-v1 and v2, with random weights, and what they should compute.

``reference`` is written from the published description with nothing but torch, NomicBERT included.
ModernBERT has one implementation, that of transformers, which the release calls too.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from support.tiny_bert import real_tokenizer
from torch import Tensor
from transformers import ModernBertConfig, ModernBertModel

WIDTH, INNER, LAYERS, HEADS, VOCABULARY, SLOTS, PROMPTS = 128, 48, 3, 2, 120, 4, 8
FIRST, SECOND = "first_stage_model", "second_stage_model"
Weights = dict[str, Tensor]

COMMON = {
    "architecture": "transductive",
    "disable_transductive_rotary_embedding": True,
    "embedding_output_dim": None,
    "logit_scale": 50,
    "max_seq_length": 40,
    "transductive_corpus_size": SLOTS,
    "transductive_tokens_per_document": 1,
    "transductive_sequence_dropout_prob": 0.0,
    "transductive_tie_token_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "v1": COMMON | {"architectures": ["DatasetTransformer"]},
    "v2": COMMON
    | {
        "architectures": ["ContextualDocumentEmbeddingTransformer"],
        "autoregressive_backbone": False,
        "pool_ignore_contextual_tokens": True,
        "pool_ignore_instruction_tokens": True,
    },
}


def write(folder: Path, version: str, **changes: Any) -> Weights:
    """Fill ``folder``; return its weights, in double precision."""
    torch.manual_seed(len(version))
    backbone = _nomic() if version == "v1" else _modernbert()
    weights: Weights = {}
    for stage in (f"{FIRST}.embedder", f"{SECOND}.backbone"):
        weights |= {f"{stage}.{name}": _random(*shape) for name, shape in backbone.items()}
    for name, outputs in (
        (f"{FIRST}.mlp", WIDTH),
        (f"{SECOND}.prompt_projection", WIDTH * PROMPTS),
        (f"{SECOND}.output_projection", WIDTH),
    ):
        weights |= {f"{name}.0.weight": _random(WIDTH, WIDTH), f"{name}.0.bias": _random(WIDTH)}
        weights |= {f"{name}.2.weight": _random(outputs, WIDTH), f"{name}.2.bias": _random(outputs)}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIGS[version] | changes))
    prompts = {"query": "search_query: ", "document": "search_document: "}
    settings = {"prompts": prompts, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    real_tokenizer().save_pretrained(folder)
    return {name: each.double() for name, each in weights.items()}


def _random(*shape: int) -> Tensor:
    # Matrices keep the scale of what they are given, norms and biases are near none.
    return torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3) + (len(shape) == 1)


def _nomic() -> dict[str, tuple[int, ...]]:
    names: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCABULARY, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "emb_ln.weight": (WIDTH,),
        "emb_ln.bias": (WIDTH,),
    }
    for number in range(LAYERS):
        layer = f"encoder.layers.{number}"
        names |= {
            f"{layer}.attn.Wqkv.weight": (3 * WIDTH, WIDTH),
            f"{layer}.attn.out_proj.weight": (WIDTH, WIDTH),
            f"{layer}.mlp.fc11.weight": (INNER, WIDTH),
            f"{layer}.mlp.fc12.weight": (INNER, WIDTH),
            f"{layer}.mlp.fc2.weight": (WIDTH, INNER),
        }
        names |= {
            f"{layer}.{norm}.{kind}": (WIDTH,)
            for norm in ("norm1", "norm2")
            for kind in ("weight", "bias")
        }
    return names


def modernbert() -> ModernBertModel:
    config = ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    )
    return ModernBertModel(config).double().eval()


def _modernbert() -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in modernbert().state_dict().items()}


def reference(
    version: str, weights: Weights, documents: list[list[int]], text: list[int]
) -> Tensor:
    """The vector of ``text`` in the context of ``documents``; a prompt of 2 tokens in v2."""
    first, second = _under(weights, FIRST), _under(weights, SECOND)
    context = torch.stack([_document(version, first, document) for document in documents])
    prompts = _two_layers(second, "prompt_projection", torch.ones(WIDTH).double(), F.relu)
    before = torch.cat([context, prompts.view(PROMPTS, WIDTH)])
    backbone = _under(second, "backbone")
    if version == "v1":
        states = _nomic_states(backbone, torch.cat([before, _nomic_words(backbone, text)]), SLOTS)
    else:
        model = modernbert()
        model.load_state_dict(backbone)
        words = model.embeddings(torch.tensor([text]))
        joined = torch.cat([before[None], words], dim=1)
        states = model(inputs_embeds=joined).last_hidden_state[0]
    mean = states[SLOTS + PROMPTS + (2 if version == "v2" else 0) :].mean(0)
    projected = _two_layers(second, "output_projection", mean, F.relu)
    # Neither is scaled to unit norm: the release leaves it to its users.
    return projected + mean if version == "v2" else projected


def _document(version: str, first: Weights, document: list[int]) -> Tensor:
    backbone = _under(first, "embedder")
    if version == "v1":
        states = _nomic_states(backbone, _nomic_words(backbone, document), 0)
    else:
        model = modernbert()
        model.load_state_dict(backbone)
        states = model(torch.tensor([document])).last_hidden_state[0]
    return _two_layers(first, "mlp", states.mean(0), F.gelu)


def _nomic_words(weights: Weights, text: list[int]) -> Tensor:
    types = weights["embeddings.token_type_embeddings.weight"][0]
    return weights["embeddings.word_embeddings.weight"][text] + types


def _nomic_states(weights: Weights, x: Tensor, unrotated: int) -> Tensor:
    x = _norm(weights, "emb_ln", x)
    for number in range(LAYERS):
        layer = _under(weights, f"encoder.layers.{number}")
        q, k, v = (layer["attn.Wqkv.weight"] @ x.T).T.view(len(x), 3, HEADS, -1).unbind(1)
        q, k = _rotated(q, unrotated), _rotated(k, unrotated)
        shares = torch.einsum("qhd,khd->hqk", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", shares, v).flatten(1)
        x = _norm(layer, "norm1", x + attended @ layer["attn.out_proj.weight"].T)
        gated = (x @ layer["mlp.fc11.weight"].T) * F.silu(x @ layer["mlp.fc12.weight"].T)
        x = _norm(layer, "norm2", x + gated @ layer["mlp.fc2.weight"].T)
    return x


def _rotated(x: Tensor, unrotated: int) -> Tensor:
    """Every row turned by its place, but for the first ``unrotated``; angles in fp32 as they do."""
    half = x.shape[-1] // 2
    rates = 1000.0 ** -(torch.arange(half) / half)
    angles = (torch.arange(len(x))[:, None] * rates).double()[:, None]
    one, other = x[..., :half], x[..., half:]
    turned = torch.cat(
        [one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()], -1
    )
    return torch.cat([x[:unrotated], turned[unrotated:]])


def _norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return F.layer_norm(x, (WIDTH,), weight, bias, eps=1e-12)


def _two_layers(weights: Weights, name: str, x: Tensor, activation: Any) -> Tensor:
    inner = activation(weights[f"{name}.0.weight"] @ x + weights[f"{name}.0.bias"])
    outer: Tensor = weights[f"{name}.2.weight"] @ inner + weights[f"{name}.2.bias"]
    return outer


def _under(weights: Weights, prefix: str) -> Weights:
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in weights.items() if k.startswith(start)}
