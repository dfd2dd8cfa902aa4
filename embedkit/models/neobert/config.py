"""``NeoBERTConfig``: the settings of the paper's encoder and of the ablations that led to it."""

from typing import Any

from transformers import PreTrainedConfig

from embedkit.errors import UserError

_CHOICES = {
    "hidden_act": ("swiglu", "gelu"),
    "norm": ("rmsnorm", "layernorm"),
    "position": ("rope", "absolute"),
}
_UNUSED = "auto_map dim_head head_dim kwargs pretrained_model_name_or_path trust_remote_code"
"""Keys of a released config.json that are ignored, as they follow from others or concern code."""


class NeoBERTConfig(PreTrainedConfig):
    """Configuration of a NeoBERT; the defaults are the released model's.

    ``max_length`` of the released config.json is read as ``max_position_embeddings``, and a plain
    ``rope_theta`` goes into ``rope_parameters``, whose ``rope_type`` is ``default`` or ``yarn``.
    """

    model_type = "neobert"

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 28
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "swiglu"
    norm: str = "rmsnorm"
    norm_eps: float = 1e-5
    position: str = "rope"
    max_position_embeddings: int = 4096
    rope_parameters: dict[str, Any] | None = None
    pad_token_id: int | None = 0
    embedding_init_range: float = 0.02
    decoder_init_range: float = 0.02
    classifier_init_range: float = 0.02
    classifier_dropout: float = 0.1
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        for name in _UNUSED.split():
            kwargs.pop(name, None)
        limit = kwargs.pop("max_length", None)
        if limit and self.max_position_embeddings == type(self).max_position_embeddings:
            self.max_position_embeddings = limit
        # The base class completes the table in place, which may be the caller's.
        self.rope_parameters = dict(self.rope_parameters or {})
        super().__post_init__(**kwargs)
        self._check()

    @property
    def head_dim(self) -> int:
        """Number of features of an attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def ffn_width(self) -> int:
        """Inner width of a feed-forward block.

        SwiGLU, with three matrices where GELU has two, takes two thirds of ``intermediate_size``,
        rounded up to a multiple of 8.
        """
        if self.hidden_act == "gelu":
            return self.intermediate_size
        return -(-int(2 * self.intermediate_size / 3) // 8) * 8

    def _check(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UserError(f"{name} {getattr(self, name)}: choose {' or '.join(choices)}")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size}: is not a multiple of num_attention_heads = "
                f"{self.num_attention_heads}"
            )
        if self.position == "rope" and self.head_dim % 2:
            raise UserError(
                f"hidden_size {self.hidden_size}: RoPE needs heads of an even width, and "
                f"{self.num_attention_heads} of them have {self.head_dim}"
            )
        kind = (self.rope_parameters or {}).get("rope_type")
        if kind not in ("default", "yarn"):
            raise UserError(f"rope_type {kind}: choose default or yarn")
        if self.tie_word_embeddings:
            raise UserError("tie_word_embeddings true: a NeoBERT's decoder is a matrix of its own")
