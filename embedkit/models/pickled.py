"""Refusal of weights that exist only as pickles, since reading a pickle may run code in it."""

from pathlib import Path

from huggingface_hub import HfApi

from embedkit.errors import UserError

_PICKLE = "pytorch_model.bin"
_ZERO_SCRIPT = "zero_to_fp32.py"
"""Script that DeepSpeed puts beside the shards of a checkpoint, to convert them to weights."""


def refuse_pickle(encoder: str) -> None:
    """Raise UserError if a folder or hub id has weights as a pickle, and none as safetensors.

    Raises:
        UserError: the weights are pickles; the message says how to convert them.
    """
    names = _names(encoder)
    if any(name.endswith(".safetensors") for name in names):
        return
    if _PICKLE in names or f"{_PICKLE}.index.json" in names:
        code = (
            "from transformers import AutoModel, AutoTokenizer; "
            f"[each.from_pretrained('{encoder}').save_pretrained('safe') "
            "for each in (AutoModel, AutoTokenizer)]"
        )
        raise UserError(
            f"{encoder}: its weights are a pickle ({_PICKLE}), which is not read; if you trust it, "
            f'convert it with: python -c "{code}" and pass the folder safe'
        )
    if _ZERO_SCRIPT in names:
        script = Path(encoder) / _ZERO_SCRIPT
        raise UserError(
            f"{encoder}: is a checkpoint of DeepSpeed, pickles that are not read; if you trust it, "
            f"convert it with: python {script} {encoder} safe --safe_serialization, put the "
            "model's config.json beside, and pass the folder safe"
        )


def _names(encoder: str) -> list[str]:
    """Return the names of the files of a folder or a hub id; none if the hub cannot be reached."""
    folder = Path(encoder)
    if folder.is_dir():
        return [path.name for path in folder.iterdir()]
    try:
        return list(HfApi().list_repo_files(encoder))
    # The hub's client raises errors of many libraries; the caller has an error to report already.
    except Exception:
        return []
