"""Weights that exist only as pickles: refused, since reading one may run what is in it."""

from pathlib import Path

from huggingface_hub import HfApi

from embedkit.errors import UserError

_PICKLE = "pytorch_model.bin"
_ZERO_SCRIPT = "zero_to_fp32.py"
"""What DeepSpeed puts beside the shards of a checkpoint, to make weights of them."""


def refuse_pickle(encoder: str) -> None:
    """Refuse a folder or hub id that has a pickle where safetensors are wanted.

    Raises:
        UserError: says how to convert it.
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
    """The files of a folder or, where it can be asked, of the hub."""
    folder = Path(encoder)
    if folder.is_dir():
        return [path.name for path in folder.iterdir()]
    try:
        return list(HfApi().list_repo_files(encoder))
    # The hub's client raises errors of half a dozen libraries, and there is one to report already.
    except Exception:
        return []
