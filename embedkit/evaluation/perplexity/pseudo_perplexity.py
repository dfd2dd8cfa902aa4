"""Measures pseudo-perplexity against length (paper, section 5.3 and appendix E).

Every token of a document that is not special is masked in turn; the pseudo-perplexity is the
exponential of the mean of their cross-entropies.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from embedkit import distributed, rng
from embedkit.config import from_arguments
from embedkit.data.text.texts import Texts
from embedkit.errors import ArgumentError, UserError
from embedkit.evaluation.perplexity.masked_token_scorer import MaskedTokenScorer
from embedkit.evaluation.perplexity.results import (
    Point,
    ResultFile,
    Scored,
    plot,
    summarise,
    write_csv,
)
from embedkit.evaluation.progress import print_line, progress_of
from embedkit.evaluation.settings import PerplexityOptions, PerplexitySettings
from embedkit.models import hub, precision
from embedkit.models.backbones import absolute_positions
from embedkit.tokens.tokenizer import Tokenize

_TEXTS = 64
"""Number of documents tokenized at a time."""


def evaluate_perplexity(
    models: Sequence[str],
    data: str | Path,
    output: str | Path,
    **options: Unpack[PerplexityOptions],
) -> list[Point]:
    """Measure models at several lengths; keep every document's loss under ``output``.

    For each length the documents are the first in ``data`` that have as many tokens, truncated to
    it. Losses that ``output`` has already are not computed again, and an interruption loses only
    the document at hand. Writes ``perplexity.csv`` and a plot of it.

    Args:
        models: masked language models: folders, hub ids, ``package:<distribution>/<path>``.
        data: a file with a column ``text``, a document a row; or a manifest of text, by name or
            path. Only held-out documents of a manifest are used, if it holds any out.
        output: a folder; ``documents.jsonl`` in it may hold the losses of many models.
        options: the fields of ``embedkit.PerplexitySettings``, with the defaults they have there;
            ``lengths`` has none.

    Raises:
        UserError: a model lacks its head or cannot read so many tokens, no document is as long, or
            an option is not as it should be.
    """
    settings = from_arguments(PerplexitySettings, options)
    device = distributed.local_device()
    autocast = precision.autocast_dtype(settings.dtype, device)
    # All is opened and checked before anything is scored, which may take hours.
    subjects = [_open(name, data, settings) for name in models]
    results = ResultFile(Path(output) / "documents.jsonl")
    points = []
    total = sum(len(documents) for *_, lengths in subjects for documents in lengths.values())
    with progress_of(total) as progress:
        for name, (model, mask_id, lengths) in zip(_names(models), subjects, strict=True):
            nn.Module.to(model, device)
            scorer = MaskedTokenScorer(model, mask_id, autocast=autocast)
            identity = scorer.identity
            for length, documents in lengths.items():
                progress.update(progress.task_ids[0], description=f"{name}, {length} tokens")
                scored = []
                for document in documents:
                    key = document.key(identity)
                    if key not in results:
                        results.add(document.scored(scorer, key, name))
                    # The same weights may have been scored under another name.
                    scored.append(replace(results[key], model=name))
                    progress.advance(progress.task_ids[0])
                points.append(summarise(scored))
                print_line(progress.console, str(points[-1]))
            model.cpu()
    write_csv(points, Path(output) / "perplexity.csv")
    if remark := plot(points, Path(output) / "perplexity"):
        print_line(progress.console, remark)
    return points


def _names(models: Sequence[str]) -> list[str]:
    """Return the names of models in the results: as the user typed them if display names clash."""
    displayed = [hub.display_name(typed) for typed in models]
    return [
        typed if displayed.count(shown) > 1 else shown
        for typed, shown in zip(models, displayed, strict=True)
    ]


class _Document(NamedTuple):
    number: int
    ids: Tensor
    maskable: int
    positions: Tensor

    def key(self, identity: str) -> str:
        """Return a hash of all that the loss depends on, given that of the model."""
        content = self.ids.numpy().tobytes() + self.positions.numpy().tobytes()
        return hashlib.sha256(identity.encode() + content).hexdigest()

    def scored(self, scorer: MaskedTokenScorer, key: str, model: str) -> Scored:
        losses = scorer.losses(self.ids, self.positions)
        return Scored(
            key=key,
            model=model,
            length=len(self.ids),
            document=self.number,
            maskable=self.maskable,
            positions=len(losses),
            loss=float(losses.mean()),
            variance=float(losses.var()) if len(losses) > 1 else 0.0,
        )


def _open(
    model: str, data: str | Path, settings: PerplexitySettings
) -> tuple[PreTrainedModel, int, dict[int, list[_Document]]]:
    """Return a model, the id of its mask, and the documents of each length."""
    tokenizer = hub.load_tokenizer(model)
    if tokenizer.mask_token_id is None:
        raise UserError(f"{model}: its tokenizer has no mask token; pass a masked language model")
    network = hub.load_masked_lm(model)
    limit, longest = absolute_positions(network), max(settings.lengths)
    if limit is not None and longest > limit:
        remedy = f"leave out the lengths beyond {limit} (got {longest})"
        raise ArgumentError(("lengths", f"{model} has a table of {limit} positions; {remedy}"))
    return network, tokenizer.mask_token_id, _documents(tokenizer, data, settings)


def _documents(
    tokenizer: PreTrainedTokenizerBase, data: str | Path, settings: PerplexitySettings
) -> dict[int, list[_Document]]:
    """Return the first documents that are long enough, by length."""
    tokenize = Tokenize(tokenizer)
    special = torch.tensor(tokenizer.all_special_ids)
    chosen: dict[int, list[_Document]] = {length: [] for length in settings.lengths}
    rows, longest = _texts(data), 0
    while batch := list(islice(rows, _TEXTS)):
        sizes = tokenize([text for _, text in batch], "", max(settings.lengths)).lengths.tolist()
        longest = max(longest, *sizes)
        for length, documents in chosen.items():
            for (number, text), size in zip(batch, sizes, strict=True):
                if size >= length and len(documents) < settings.documents:
                    document = _masked(number, tokenize([text], "", length).ids, special, settings)
                    documents += [document] if document.maskable else []
        if min(map(len, chosen.values())) == settings.documents:
            break
    for length, documents in chosen.items():
        if not documents:
            mistake = f"no document of {data} has {length} tokens (the longest has {longest})"
            remedy = "leave that length out, or pass longer documents"
            raise ArgumentError(("lengths", f"{mistake}; {remedy}"))
    return chosen


def _masked(number: int, ids: Tensor, special: Tensor, settings: PerplexitySettings) -> _Document:
    """Draw the positions to mask, as a function of the seed, the document's number and its size."""
    maskable = (~torch.isin(ids, special)).nonzero().squeeze(1)
    size, wanted = len(maskable), settings.positions
    if wanted == "all" or wanted >= size:
        return _Document(number, ids, size, maskable)
    shuffle = rng.fold_in(settings.seed, "masked alone", number)
    drawn = torch.from_numpy(rng.permuted(np.arange(wanted), size, shuffle))
    return _Document(number, ids, size, maskable[drawn])


def _texts(data: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the documents of a file or manifest, only held-out ones if any, with their numbers."""
    is_manifest = Path(data).suffix in ("", ".toml")
    texts = Texts.from_manifest(data) if is_manifest else Texts.from_file(data, drop_empty=True)
    for number, document in enumerate(texts.documents(), start=1):
        if document.held_out or texts.manifest.held_out is None:
            yield number, document.text
