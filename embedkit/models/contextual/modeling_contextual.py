"""A two-stage embedding model as a module of sentence-transformers, complete in this one file.

The vector of a text depends on documents of the corpus that the text belongs to::

    model = SentenceTransformer(folder, trust_remote_code=True)
    context = model[0].build_context(documents)
    model.encode(queries, prompt_name="query", dataset_embeddings=context)
    model.encode(documents, prompt_name="document", dataset_embeddings=context)

Vectors of different contexts cannot be compared. If the folder holds a frozen context,
``dataset_embeddings`` may be left out.

Shapes: J slots for documents, B texts of L columns, D features.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Self

import torch
import torch.nn.functional as F
from sentence_transformers.base.modules import InputModule
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
)


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
        self.second = _network(config["second"])
        self.first = _network(config["first"]) if config["first"] else None
        width = self.second.config.hidden_size
        self.slots = Slots(shape, width)
        self.context_projection = self.output_projection = None
        if shape["context_projection"]:
            self.context_projection = _two_layers(width, nn.GELU())
        if shape["output_projection"]:
            self.output_projection = _two_layers(width, nn.ReLU())
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
        """Add ``sentence_embedding`` ``(B, D)``, unit-norm; ``dataset_embeddings`` ``(n, D)``."""
        context = self.frozen if dataset_embeddings is None else dataset_embeddings
        if context is None:
            raise ValueError(
                "a text's vector depends on its corpus: pass "
                "dataset_embeddings=model[0].build_context(documents)"
            )
        input_ids, mask = features["input_ids"], features["attention_mask"]
        words = self.second.get_input_embeddings().weight
        prefix = self.slots(torch.as_tensor(context).to(words), len(input_ids))
        states = self._read(input_ids, mask, prefix)
        kept = mask
        if not self.config["contextual"]["include_prompt"]:
            columns = torch.arange(mask.shape[1], device=mask.device)
            kept = mask * (columns >= features["prompt_length"])
        vectors = _mean(states, kept)
        if self.output_projection is not None:
            projected = self.output_projection(vectors)
            residual = self.config["contextual"]["output_residual"]
            vectors = projected + vectors if residual else projected
        return features | {"sentence_embedding": F.normalize(vectors, dim=-1)}

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
        self.save_config(output_path)
        self.save_torch_weights(output_path)
        self.save_tokenizer(output_path)

    def get_config_dict(self) -> dict[str, Any]:
        return self.config | {"max_seq_length": self.max_seq_length}

    def _prompt_length(self, prompt: str | None) -> int:
        """Return the number of tokens before the text, an opening special token included, or 0."""
        if not prompt:
            return 0
        ids = self.tokenizer(prompt)["input_ids"]
        return len(ids) - int(ids[-1] in set(self.tokenizer.all_special_ids))

    def _read(self, input_ids: Tensor, mask: Tensor, prefix: Tensor) -> Tensor:
        """Return the second encoder's hidden states of the text alone, ``(B, L, D)``."""
        shape, network = self.config["contextual"], self.second
        kind, width = network.config.model_type, prefix.shape[1]
        words = network.get_input_embeddings()(input_ids)
        if shape["entry"] == "published" and kind == "modernbert":
            words = network.embeddings(input_ids)
        elif shape["entry"] == "published" and kind == "nomic_bert":
            prefix = prefix - network.embeddings.token_type_embeddings.weight[0]
        embeddings = torch.cat([prefix, words], dim=1)
        whole = torch.cat([mask.new_ones(prefix.shape[:2]), mask], dim=1)
        inputs: dict[str, Any] = {"inputs_embeds": embeddings, "attention_mask": whole}
        if shape["entry"] == "token" and kind == "modernbert":
            inputs["attention_mask"] = self._masks(embeddings, whole, width)
        positions = self._positions(input_ids.shape[1]).to(mask.device).expand(whole.shape)
        return network(position_ids=positions, **inputs).last_hidden_state[:, width:]

    def _positions(self, columns: int) -> Tensor:
        """Return positions of context, soft prompts and text, ``(J + soft prompts + L,)``."""
        shape, config = self.config["contextual"], self.second.config
        slots, first = shape["num_context"], shape["first_position"]
        if first is None:
            first = 0 if shape["position_free"] else slots
        of_slots = torch.arange(slots) * (not shape["position_free"])
        of_rest = first + torch.arange(shape["soft_prompts"] + columns)
        roberta = config.model_type in ("roberta", "xlm-roberta")
        return torch.cat([of_slots, of_rest]) + (config.pad_token_id + 1 if roberta else 0)

    def _masks(self, embeddings: Tensor, mask: Tensor, width: int) -> dict[str, Any]:
        """Return ModernBERT's masks; local ones do not hide the first ``width`` columns."""

        def through_prefix(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query < width) | (key < width)

        given = {"config": self.second.config, "inputs_embeds": embeddings, "attention_mask": mask}
        return {
            "full_attention": create_bidirectional_mask(**given),
            "sliding_attention": create_bidirectional_sliding_window_mask(
                **given, or_mask_function=through_prefix
            ),
        }


class Slots(nn.Module):
    """Module that puts context vectors, null vectors and soft prompts in front of each text."""

    def __init__(self, shape: dict[str, Any], width: int) -> None:
        super().__init__()
        self.count = int(shape["num_context"])
        prompts = shape["soft_prompts"]
        self.norm = nn.RMSNorm(width, eps=1e-6) if shape["context_norm"] else None
        self.null = nn.Parameter(torch.zeros(width)) if shape["null_vector"] else None
        self.soft_prompts = nn.Parameter(torch.zeros(prompts, width)) if prompts else None

    def check(self, documents: int) -> None:
        """Raise ValueError if a context of so many documents does not fit the slots."""
        if documents > self.count or (documents < self.count and self.null is None):
            which = "exactly" if self.null is None else "at most"
            raise ValueError(
                f"a context of {documents} documents: this model reads {which} {self.count}"
            )

    def forward(self, context: Tensor, texts: int) -> Tensor:
        """Return the vectors before each text: ``(n, D)`` -> ``(B, J + soft prompts, D)``."""
        self.check(len(context))
        vectors = context if self.norm is None else self.norm(context)
        if self.null is not None:
            missing = self.count - len(context)
            vectors = torch.cat([vectors, self.null.expand(missing, -1)])
        if self.soft_prompts is not None:
            vectors = torch.cat([vectors, self.soft_prompts])
        return vectors.expand(texts, -1, -1)


def _network(config: dict[str, Any]) -> Any:
    """Return an encoder without weights or pooler; flash kernels would take no mask."""
    described = AutoConfig.for_model(**deepcopy(config))
    network = AutoModel.from_config(described, attn_implementation="sdpa")
    if hasattr(network, "pooler"):
        network.pooler = None
    return network


def _two_layers(width: int, activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), activation, nn.Linear(width, width))


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    kept = mask[..., None].to(states.dtype)
    return (states * kept).sum(1) / kept.sum(1).clamp(min=1)
