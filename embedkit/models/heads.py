"""Names of head weights, which a checkpoint may hold besides its encoder and which are ignored."""

from collections.abc import Iterable

from transformers import PreTrainedModel

_HEADS = {
    # Heads that predict masked, next or replaced tokens, or the order of sentences.
    "cls",
    "decoder",
    "discriminator_predictions",
    "entity_predictions",
    "final_logits_bias",
    "generator_lm_head",
    "generator_predictions",
    "head",
    "lm_head",
    "lm_loss",
    "lm_predictions",
    "mask_predictions",
    "pred_layer",
    "predictions",
    "sop_classifier",
    "vocab_layer_norm",
    "vocab_projector",
    "vocab_transform",
    # Heads of sequence and token classification, multiple choice, and question answering.
    "answer_class",
    "classification_head",
    "classifier",
    "dense",
    "end_logits",
    "logits_proj",
    "pooler",
    "pre_classifier",
    "qa_classifier",
    "qa_outputs",
    "score",
    "sequence_summary",
    "start_logits",
}
"""Names that transformers gives to head modules on top of an encoder."""
_COMPUTED = {"inv_freq", "position_ids", "token_type_ids"}
"""Names of buffers that older releases of transformers stored and that are computed now."""


def without_place(network: PreTrainedModel, unexpected: Iterable[str]) -> list[str]:
    """Return the names among ``unexpected`` that belong to the encoder and not to a head.

    ``unexpected`` are the names of stored weights that transformers did not load.
    """
    encoder = network.base_model
    children = {name for name, _ in encoder.named_children()} - {"pooler"}
    heads = _HEADS - children
    prefix = f"{encoder.base_model_prefix}."
    return sorted(
        name
        for name in unexpected
        if name.removeprefix(prefix).split(".")[0] not in heads
        and name.split(".")[-1] not in _COMPUTED
    )
