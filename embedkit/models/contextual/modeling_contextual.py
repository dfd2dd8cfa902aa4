"""A two-stage embedding model as a module of sentence-transformers.

Its folder needs this file and ``prefix.py``, and embedkit need not be installed.

The vector of a text depends on documents of the corpus that the text belongs to::

    model = SentenceTransformer(folder, trust_remote_code=True)
    context = model[0].build_context(documents)
    model.encode(queries, prompt_name="query", dataset_embeddings=context)
    model.encode(documents, prompt_name="document", dataset_embeddings=context)

Vectors of different contexts cannot be compared. If the folder holds a frozen context,
``dataset_embeddings`` may be left out.

Shapes: J slots for documents, B texts of L columns, D features.
"""

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import torch
import torch.nn.functional as F
from sentence_transformers.base.modules import InputModule
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer

# Relative, since this file and its neighbour are copied into folders that hold no package.
from .prefix import Slots, prefixed_inputs, two_layers


class ContextualModule(InputModule):
    """Module of two encoders: the first reads context documents, the second reads texts.

    ``config`` is the folder's config.json: ``contextual`` has the fields of embedkit's
    ``ContextualConfig``, ``first`` and ``second`` are configs of transformers, and ``frozen``
    describes the context that the folder holds, if there is one.
    """

    tokenizer: Any
    forward_kwargs = {"dataset_embeddings"}  # noqa: RUF012

    def __init__(self, config: dict[str, Any], tokenizer: Any) -> None:
        super().__init__()
        self.config, self.tokenizer = config, tokenizer
        self.max_seq_length = int(config["max_seq_length"])
        shape = config["contextual"]
        # Slots are dropped in embedkit's training alone.
        settings = shape | {"text_start": config["text_start"], "context_dropout": 0.0}
        self.second = _network(config["second"])
        self.first = _network(config["first"]) if config["first"] else None
        width = self.second.config.hidden_size
        self.slots = Slots(SimpleNamespace(**settings), width)
        self.context_projection = self.output_projection = None
        if shape["context_projection"]:
            self.context_projection = two_layers(width, nn.GELU())
        if shape["output_projection"]:
            self.output_projection = two_layers(width, nn.ReLU())
        self.frozen: Tensor | None
        frozen = config["frozen"]
        self.register_buffer("frozen", torch.zeros(frozen["documents"], width) if frozen else None)

    @torch.inference_mode()
    def build_context(
        self, documents: Sequence[str], prompt: str | None = None, batch_size: int = 32
    ) -> Tensor:
        """Return vectors ``(n, D)`` of n <= J documents, to be passed as ``dataset_embeddings``.

        Each document is read after ``prompt``, by default the model's prompt for documents.
        """
        if isinstance(documents, str):
            raise ValueError("the corpus is a single str: pass a list of documents")
        shape = self.config["contextual"]
        first = self.second if shape["tied"] else self.first
        if first is None:
            raise ValueError("this model has a frozen context and no encoder for another")
        prefix = self.config["document_prompt"] if prompt is None else prompt
        was_training = self.training
        self.eval()
        words = self.second.get_input_embeddings().weight
        vectors = [words[:0]]
        for start in range(0, len(documents), batch_size):
            batch = self.preprocess(list(documents[start : start + batch_size]), prefix)
            ids, mask = (batch[key].to(words.device) for key in ("input_ids", "attention_mask"))
            states = first(input_ids=ids, attention_mask=mask).last_hidden_state
            vectors.append(_mean(states, mask))
        self.train(was_training)
        joined = torch.cat(vectors)
        self.slots.check(len(joined))
        return joined if self.context_projection is None else self.context_projection(joined)

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return token ids of texts after ``prompt``, padded on the right, and its length."""
        inputs = [inputs] if isinstance(inputs, str) else inputs
        for row, text in enumerate(inputs):
            if not isinstance(text, str):
                raise ValueError(f"texts[{row}] = {text!r}: every text must be a str")
        batch = self.tokenizer(
            [(prompt or "") + text for text in inputs],
            truncation=True,
            max_length=self.max_seq_length,
            padding=True,
            padding_side="right",
            return_token_type_ids=False,
            return_tensors="pt",
        )
        return {**batch, "prompt_length": self._prompt_length(prompt)}

    def forward(
        self, features: dict[str, Any], dataset_embeddings: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Add ``sentence_embedding`` ``(B, D)``; ``dataset_embeddings`` ``(n, D)``."""
        context = self.frozen if dataset_embeddings is None else dataset_embeddings
        if context is None:
            raise ValueError(
                "a text's vector depends on its corpus: pass "
                "dataset_embeddings=model[0].build_context(documents)"
            )
        input_ids, mask = features["input_ids"], features["attention_mask"]
        words = self.second.get_input_embeddings().weight
        prefix = self.slots(torch.as_tensor(context).to(words), len(input_ids))
        inputs = prefixed_inputs(self.second, input_ids, mask, prefix)
        states = self.second(**inputs).last_hidden_state[:, prefix.length :]
        kept = mask
        if not self.config["contextual"]["include_prompt"]:
            columns = torch.arange(mask.shape[1], device=mask.device)
            kept = mask * (columns >= features["prompt_length"])
        vectors = _mean(states, kept)
        if self.output_projection is not None:
            projected = self.output_projection(vectors)
            residual = self.config["contextual"]["output_residual"]
            vectors = projected + vectors if residual else projected
        if self.config["normalize"]:
            vectors = F.normalize(vectors, dim=-1)
        return features | {"sentence_embedding": vectors}

    def get_embedding_dimension(self) -> int:
        return int(self.second.config.hidden_size)

    @classmethod
    def load(cls, model_name_or_path: str, **kwargs: Any) -> Self:  # type: ignore[override]
        """Load the module of a folder or hub id, with the options of sentence-transformers."""
        names = ("token", "cache_folder", "revision", "local_files_only")
        options: dict[str, Any] = {name: kwargs.get(name) for name in names}
        config = cls.load_config(model_name_or_path, **options)
        of_tokenizer = {"cache_dir" if k == "cache_folder" else k: v for k, v in options.items()}
        of_tokenizer |= kwargs.get("processor_kwargs") or {}
        tokenizer = AutoTokenizer.from_pretrained(model_name_or_path, **of_tokenizer)
        module = cls(config, tokenizer)
        cls.load_torch_weights(model_name_or_path, model=module, **options)
        return module.eval()

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write config, weights and tokenizer; sentence-transformers adds the file of this code."""
        config = self.config | {"max_seq_length": self.max_seq_length}
        text = json.dumps(config, indent=2) + "\n"
        (Path(output_path) / "config.json").write_text(text, encoding="utf-8")
        self.save_torch_weights(output_path)
        self.save_tokenizer(output_path)

    def _prompt_length(self, prompt: str | None) -> int:
        """Return the number of tokens before the text, an opening special token included, or 0."""
        if not prompt:
            return 0
        ids = self.tokenizer(prompt)["input_ids"]
        return len(ids) - int(ids[-1] in set(self.tokenizer.all_special_ids))


def _network(config: dict[str, Any]) -> Any:
    """Return an encoder without weights or pooler; flash kernels would take no mask."""
    described = AutoConfig.for_model(**deepcopy(config))
    network = AutoModel.from_config(described, attn_implementation="sdpa")
    if hasattr(network, "pooler"):
        network.pooler = None
    return network


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    kept = mask[..., None].to(states.dtype)
    return (states * kept).sum(1) / kept.sum(1).clamp(min=1)
