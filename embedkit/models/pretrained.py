"""Loading with transformers, which must find exactly the weights of a model's class."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from embedkit.errors import UserError, some
from embedkit.models.model_files import PINNED, check_weight_files, refuse_pickle
from embedkit.storage.offline import settle_network

_PREDICTION_HEADS = """
    cls decoder discriminator_predictions entity_predictions final_logits_bias generator_lm_head
    generator_predictions head lm_head lm_loss lm_predictions mask_predictions pred_layer
    predictions sop_classifier vocab_layer_norm vocab_projector vocab_transform
"""
"""Names in transformers of heads for masked, next or replaced tokens, or the order of sentences."""
_TASK_HEADS = """
    answer_class classification_head classifier dense end_logits logits_proj pooler pre_classifier
    qa_classifier qa_outputs score sequence_summary start_logits
"""
"""Names in transformers of heads for classification, multiple choice and question answering."""
_ERRORS = (OSError, ValueError, RuntimeError, ImportError, SafetensorError, StrictDataclassError)
"""Errors of transformers; the last is of a config.json with values that do not go together."""
_COMPUTED = {"inv_freq", "position_ids", "token_type_ids"}
"""Names of buffers that older releases of transformers stored and that are computed now."""


@contextmanager
def quietly() -> Iterator[None]:
    """Disable progress bars and loading reports of transformers; embedkit reports errors itself."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def from_pretrained(kind: Any, path: str, model: str, **options: Any) -> Any:
    """Call ``kind.from_pretrained(path)``; its errors become a UserError of one line."""
    if not Path(path).is_dir():
        settle_network()
    try:
        with quietly():
            revision = PINNED.get(path, "main")
            return kind.from_pretrained(path, revision=revision, trust_remote_code=False, **options)
    except _ERRORS as error:
        if options.get("use_safetensors"):
            refuse_pickle(path)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        # What the hub says of an id is beside the point if it is the path of a folder, misspelt.
        no_folder = "there is no such folder, and as an id of the hub it "
        raise UserError(
            f"{model}: {'' if Path(path).is_dir() else no_folder}cannot be loaded: "
            f"{reason.rstrip('.')}. Pass a folder with config.json and model.safetensors, the id "
            "of a model on the hub, or starter (embedkit finetune --backbone starter); offline, "
            "copy $HF_HOME from where the hub can be reached"
        ) from None


def load_whole(
    kind: Any, path: str, model: str, config: PreTrainedConfig, *, attention: str | None = None
) -> Any:
    """Load a ``kind`` in fp32 from a file with exactly its weights; other heads are ignored.

    ``kind`` is a class or ``Auto`` class of transformers, ``path`` a folder or hub id, and
    ``attention`` the name of an implementation in transformers. Errors name ``model``.

    Raises:
        UserError: there is no such model, or its file lacks weights, has extra ones, or others.
    """
    check_weight_files(path, named=getattr(config, "transformers_weights", None))
    # A pooler has no effect on mean and cls pooling, and many releases leave it out. It is then
    # initialized with a fixed seed, so that the model's identity is the same at every load.
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        loaded, report = from_pretrained(
            kind,
            path,
            model,
            dtype=torch.float32,
            attn_implementation=attention,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        raise UserError(
            f"{model}: its file lacks {len(missing)} weights ({some(missing)}), "
            "which would start at random; pass a complete checkpoint"
        )
    if unfit := sorted(report["mismatched_keys"]):
        name, stored, expected = unfit[0]
        raise UserError(
            f"{model}: {len(unfit)} weights do not fit its config.json ({name} is "
            f"{tuple(stored)}, expected {tuple(expected)}, ...)"
        )
    if surplus := _not_of_heads(loaded, report["unexpected_keys"]):
        raise UserError(
            f"{model}: its file holds {len(surplus)} weights that its config.json has no place for "
            f"({some(surplus)}), and without them it is another model; correct "
            "config.json, or, to do without them, save the encoder with transformers' AutoModel "
            "and pass that folder"
        )
    return loaded


def _not_of_heads(network: PreTrainedModel, unexpected: Iterable[str]) -> list[str]:
    """Return the names of stored, unloaded weights that belong to the encoder and to no head."""
    encoder = network.base_model
    children = {name for name, _ in encoder.named_children()} - {"pooler"}
    heads = {*_PREDICTION_HEADS.split(), *_TASK_HEADS.split()} - children
    prefix = f"{encoder.base_model_prefix}."
    return sorted(
        name
        for name in unexpected
        if name.removeprefix(prefix).split(".")[0] not in heads
        and name.split(".")[-1] not in _COMPUTED
    )
