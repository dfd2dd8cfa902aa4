"""Export of models to folders that other libraries open."""

import warnings
from pathlib import Path
from typing import get_args

from embedkit.errors import ArgumentError, UserError
from embedkit.models import hub
from embedkit.models.contextual.loading import is_contextual, load_contextual
from embedkit.models.embedder import Embedder
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.eurobert import obstacle, to_eurobert
from embedkit.models.head import write_head
from embedkit.models.neobert import NeoBERTModel
from embedkit.models.neobert.state_dict import save_hub_layout
from embedkit.models.onnx import check_installed, write_onnx
from embedkit.models.pooling import STOCK_MODES, stock_mode
from embedkit.models.pretrained import quietly
from embedkit.models.settings import ExportTarget
from embedkit.models.st_config import write_stored
from embedkit.storage.atomic import write_json
from embedkit.storage.folders import check_output, whole_folder


def export(
    model: str | Path | EmbeddingModel,
    output: str | Path,
    *,
    to: ExportTarget = "eurobert",
    overwrite: bool = False,
) -> Path:
    """Write a model in a format that other libraries read; a crash leaves no partial folder.

    Args:
        model: a hub id, a folder, ``package:<distribution>/<path>``, an alias, or a loaded model.
        output: folder to write.
        to: ``eurobert``, a NeoBERT as a stock sentence-transformers folder; ``neobert``, its
            authors' layout, with the decoder if ``model`` has one; ``onnx``, any encoder as a graph
            that sentence-transformers' ONNX backend opens; ``sentence-transformers``, any model of
            one stage or two.
        overwrite: whether to replace an earlier export in ``output`` whose files are unchanged.

    Returns:
        Path of the folder.

    Raises:
        UserError: there is no such model, it cannot be written in that format, or ``output`` is
            not empty.
    """
    if to not in get_args(ExportTarget):
        choices = ", ".join(get_args(ExportTarget))
        raise ArgumentError(("to", f"choose one of {choices} (got {to!r})"))
    folder = Path(output)
    check_output(folder, "a model", overwrite=overwrite)
    if to == "onnx":
        check_installed()
    source = str(model) if isinstance(model, str | Path) else None
    if isinstance(model, str | Path):
        model = load_contextual(str(model)) if is_contextual(str(model)) else hub.load(str(model))
    if to == "sentence-transformers":
        model.save(folder)
        return folder
    if not isinstance(model, Embedder):
        raise UserError(
            f"{model.name}: is a contextual model of two stages, which {to} cannot hold; --to "
            "sentence-transformers writes both"
        )
    with whole_folder(folder, "a model") as aside:
        if to == "onnx":
            write_onnx(model, aside)
        else:
            _write_neobert(model, source, to, aside)
        _write_settings(model, aside)
    return folder


def write_model(embedder: Embedder, folder: Path, *, card: str = "") -> None:
    """Write a sentence-transformers folder that opens without embedkit and without remote code.

    A crash leaves no partial folder, and an older export of the same name is replaced. An ablation
    of NeoBERT that has no EuroBERT form is written in NeoBERT's layout, with a warning.

    Raises:
        UserError: ``folder`` holds files that embedkit did not write.
    """
    network = embedder.backbone.model
    with whole_folder(folder, "a model") as aside:
        if not isinstance(network, NeoBERTModel):
            with quietly():
                network.save_pretrained(aside)
        elif reason := obstacle(network.config):
            warnings.warn(
                f"{folder}: opens only where embedkit.models.neobert is imported: {reason}",
                stacklevel=2,
            )
            save_hub_layout(network, aside)
        else:
            _write_eurobert(network, embedder, aside)
        _write_settings(embedder, aside)
        (aside / "README.md").write_text(card, encoding="utf-8")


def _write_neobert(embedder: Embedder, source: str | None, to: str, folder: Path) -> None:
    network = embedder.backbone.model
    if not isinstance(network, NeoBERTModel):
        raise UserError(
            f"{embedder.name}: is a {network.config.model_type}, not a NeoBERT; --to onnx takes "
            "any encoder"
        )
    if to == "neobert":
        save_hub_layout(hub.load_neobert(source) if source else network, folder)
    elif reason := obstacle(network.config):
        raise UserError(f"{embedder.name}: {reason}; --to neobert keeps it as it is")
    else:
        _write_eurobert(network, embedder, folder)


def _write_eurobert(network: NeoBERTModel, embedder: Embedder, folder: Path) -> None:
    twin, tokenizer = to_eurobert(network), embedder.tokenizer
    twin.config.mask_token_id = tokenizer.mask_token_id
    twin.config.bos_token_id = tokenizer.cls_token_id
    twin.config.eos_token_id = tokenizer.sep_token_id
    with quietly():
        twin.save_pretrained(folder)


def _write_settings(embedder: Embedder, folder: Path) -> None:
    """Write all that sentence-transformers reads besides the encoder."""
    # The names of classes that every release of sentence-transformers reads, old and new.
    package = "sentence_transformers.models"
    first = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{package}.{kind}"}
        for number, (kind, path) in enumerate([*first, *write_head(embedder.head, folder)])
    ]
    mode = stock_mode(embedder.pooling)
    usual = ("cls", "mean", "max", "mean_sqrt_len_tokens")
    pooling = {
        "word_embedding_dimension": embedder.backbone.width,
        **{STOCK_MODES[name]: name == mode for name in usual},
        STOCK_MODES[mode]: True,
        "include_prompt": embedder.include_prompt,
    }
    (folder / "1_Pooling").mkdir()
    limits = {"max_seq_length": embedder.max_tokens, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", limits)
    write_json(folder / "1_Pooling/config.json", pooling)
    write_stored(embedder, modules, folder)
