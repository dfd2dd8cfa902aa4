"""Pseudo-perplexity against length (paper, section 5.3 and appendix E).

Every token of a document that is not special is masked in turn; the pseudo-perplexity is the
exponential of the mean of their cross-entropies.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from embedkit import distributed, rng
from embedkit.config import from_arguments
from embedkit.data.text.documents import is_held_out
from embedkit.data.text.texts import Texts
from embedkit.errors import ArgumentError, UserError
from embedkit.evaluation.perplexity.masked_token_scorer import MaskedTokenScorer
from embedkit.evaluation.perplexity.plot import plot
from embedkit.evaluation.perplexity.results import (
    Point,
    ResultFile,
    Scored,
    summarise,
    write_csv,
)
from embedkit.evaluation.perplexity.settings import PerplexityOptions, PerplexitySettings
from embedkit.evaluation.progress import progress_of
from embedkit.models import hub, precision
from embedkit.models.backbones import absolute_positions
from embedkit.tokens.tokenizer import Tokenize

_TEXTS = 64
"""Documents tokenized at a time."""


def evaluate_perplexity(
    models: Sequence[str],
    data: str | Path,
    output: str | Path,
    *,
    console: Console | None = None,
    **options: Unpack[PerplexityOptions],
) -> list[Point]:
    """Measure models at several lengths; keep every document's loss under ``output``.

    For each length the documents are the first in ``data`` that have as many tokens, cut to it.
    What is scored already is not scored again, and an interruption loses only the document at
    hand. Writes ``perplexity.csv`` and a plot of it.

    Args:
        models: masked language models: folders, hub ids, ``package:<distribution>/<path>``.
        data: a file with a column ``text``, a document a row; or a manifest of text, by name or
            path, of whose documents those are taken that it holds out, if it does.
        output: a folder; ``documents.jsonl`` in it may hold the losses of many models.
        console: where progress is shown; standard error by default.
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
    subjects = [_open(model, name, data, settings) for model, name in _named(models)]
    results = ResultFile(Path(output) / "documents.jsonl")
    points = []
    total = sum(len(documents) for each in subjects for documents in each.documents.values())
    with progress_of(total, console) as progress:
        task = progress.task_ids[0]
        for subject in subjects:
            scorer = _Scorer(subject, device, autocast, results)
            for length, documents in subject.documents.items():
                progress.update(task, description=f"{subject.name}, {length} tokens")
                scored = []
                for document in documents:
                    scored.append(scorer.score(document))
                    progress.advance(task)
                points.append(summarise(scored))
                _print(progress.console, _line(points[-1]))
            subject.model.cpu()
    write_csv(points, Path(output) / "perplexity.csv")
    if remark := plot(points, Path(output) / "perplexity"):
        _print(progress.console, remark)
    return points


@dataclass(frozen=True, slots=True)
class _Document:
    number: int
    ids: Tensor
    maskable: int
    positions: Tensor


@dataclass(frozen=True, slots=True)
class _Subject:
    """A model and what it is asked."""

    name: str
    model: PreTrainedModel
    mask_id: int
    documents: Mapping[int, list[_Document]]


class _Scorer:
    def __init__(
        self,
        subject: _Subject,
        device: torch.device,
        autocast: torch.dtype | None,
        results: ResultFile,
    ) -> None:
        nn.Module.to(subject.model, device)
        self._scorer = MaskedTokenScorer(subject.model, subject.mask_id, autocast=autocast)
        self._name, self._results = subject.name, results
        self._identity = self._scorer.identity

    def score(self, document: _Document) -> Scored:
        """Score a document, unless its result is there."""
        key = self._key(document)
        if found := self._results.get(key):
            # The same weights may have been scored under another name.
            return replace(found, model=self._name)
        losses = self._scorer.losses(document.ids, document.positions)
        scored = Scored(
            key=key,
            model=self._name,
            length=len(document.ids),
            document=document.number,
            maskable=document.maskable,
            positions=len(losses),
            loss=float(losses.mean()),
            variance=float(losses.var()) if len(losses) > 1 else 0.0,
        )
        self._results.add(scored)
        return scored

    def _key(self, document: _Document) -> str:
        digest = hashlib.sha256(self._identity.encode())
        digest.update(document.ids.numpy().tobytes())
        digest.update(document.positions.numpy().tobytes())
        return digest.hexdigest()


def _named(models: Sequence[str]) -> list[tuple[str, str]]:
    """Each model with the name it bears in results: its own words where short names clash."""
    names = [hub.display_name(model) for model in models]
    return [
        (model, name if names.count(name) == 1 else model)
        for model, name in zip(models, names, strict=True)
    ]


def _open(model: str, name: str, data: str | Path, settings: PerplexitySettings) -> _Subject:
    tokenizer = hub.load_tokenizer(model)
    if tokenizer.mask_token_id is None:
        raise UserError(f"{model}: its tokenizer has no mask token; pass a masked language model")
    network = hub.load_masked_lm(model)
    limit = absolute_positions(network)
    if limit is not None and max(settings.lengths) > limit:
        reason = (
            f"{model} has a table of {limit} positions; leave out the lengths beyond {limit} "
            f"(got {max(settings.lengths)})"
        )
        raise ArgumentError(("lengths", reason))
    documents = _documents(tokenizer, data, settings)
    return _Subject(name, network, tokenizer.mask_token_id, documents)


def _documents(
    tokenizer: PreTrainedTokenizerBase, data: str | Path, settings: PerplexitySettings
) -> dict[int, list[_Document]]:
    """The first documents that are long enough, by length."""
    tokenize = Tokenize(tokenizer)
    special = torch.tensor(tokenizer.all_special_ids)
    found: dict[int, list[_Document]] = {length: [] for length in settings.lengths}
    rows, longest = _texts(data), 0
    while batch := list(islice(rows, _TEXTS)):
        sizes = tokenize([text for _, text in batch], "", max(settings.lengths)).lengths.tolist()
        longest = max(longest, *sizes)
        for length, documents in found.items():
            for (number, text), size in zip(batch, sizes, strict=True):
                if size >= length and len(documents) < settings.documents:
                    document = _masked(number, tokenize([text], "", length).ids, special, settings)
                    documents += [document] if document.maskable else []
        if all(len(documents) == settings.documents for documents in found.values()):
            break
    for length, documents in found.items():
        if not documents:
            reason = (
                f"no document of {data} has {length} tokens (the longest has {longest}); leave "
                "that length out, or pass longer documents"
            )
            raise ArgumentError(("lengths", reason))
    return found


def _masked(number: int, ids: Tensor, special: Tensor, settings: PerplexitySettings) -> _Document:
    """Draw the positions: a function of the seed, the document's number and its tokens'."""
    maskable = (~torch.isin(ids, special)).nonzero().squeeze(1)
    size, wanted = len(maskable), settings.positions
    if wanted == "all" or wanted >= size:
        return _Document(number, ids, size, maskable)
    shuffle = rng.fold_in(settings.seed, "masked alone", number)
    drawn = torch.from_numpy(rng.permuted(np.arange(wanted), size, shuffle))
    return _Document(number, ids, size, maskable[drawn])


def _texts(data: str | Path) -> Iterator[tuple[int, str]]:
    """The documents of a file or a manifest with their numbers; of those held out, these alone."""
    if Path(data).suffix in ("", ".toml"):
        texts = Texts.from_manifest(data)
    else:
        texts = Texts.from_file(data, drop_empty=True)
    description = texts.description
    for number, document in enumerate(texts.documents(), start=1):
        if description.held_out is None or is_held_out(document, description):
            yield number, document.text


def _print(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _line(point: Point) -> str:
    spread = point.pseudo_perplexity_stderr
    error = "" if spread is None else f" ± {spread:.3g}"
    return (
        f"{point.model}, {point.length} tokens: pseudo-perplexity "
        f"{point.pseudo_perplexity:.4g}{error} ({point.documents} documents, "
        f"{point.positions} positions)"
    )
