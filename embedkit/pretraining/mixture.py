"""A pretraining recipe's mixture, opened: token ids, rows, and the sampler over them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from embedkit import distributed
from embedkit.data.batch_sampler import BatchSampler, Source
from embedkit.data.text.masked_batches import MaskedBatch, MaskedBatches, Masking, fixed_batch
from embedkit.data.text.packing import Rows, pack
from embedkit.data.text.texts import Texts
from embedkit.data.text.tokenized import Tokenized, prepare
from embedkit.errors import DataError, UserError
from embedkit.recipe import PretrainRecipe, Text, TextData
from embedkit.recipe.mixtures import manifests_of, weights_of
from embedkit.tokens.vocabulary import Vocabulary

_COUNTED = 2**24
"""Tokens of a source from which the frequencies of its words are known."""


@dataclass(frozen=True, slots=True)
class TextSource:
    """What one entry of a mixture reads."""

    name: str
    """The manifest's; with ``+`` and the least length where the entry asks for one."""
    tokenized: Tokenized
    rows: Rows
    held_out: Rows | None
    """``None`` where no document is held out, or none is long enough."""

    def word_frequencies(self, vocabulary: int) -> Tensor:
        """Each word's share of the first 16 M tokens, every word counted once more (Laplace)."""
        seen = self.tokenized.train.ids[:_COUNTED]
        counts = torch.from_numpy(np.bincount(seen, minlength=vocabulary) + 1)
        return counts / counts.sum(dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class TextMixture:
    """The sources of a run in the order of the recipe, and which rows each step reads."""

    sources: tuple[TextSource, ...]
    weights: tuple[float, ...]
    sampler: BatchSampler
    batches: MaskedBatches
    masking: Masking
    held_out_rows: int

    @property
    def shares(self) -> list[float]:
        """The share of the draws that each source may expect."""
        return [weight / sum(self.weights) for weight in self.weights]

    @property
    def fingerprints(self) -> dict[str, str]:
        return {each.name: each.tokenized.fingerprint for each in self.sources}

    def word_frequencies(self, vocabulary: int) -> Tensor:
        """Each word's share of what a step may expect to read."""
        each = zip(self.shares, self.sources, strict=True)
        return torch.stack([s * one.word_frequencies(vocabulary) for s, one in each]).sum(dim=0)

    def held_out_batches(self) -> list[MaskedBatch]:
        """For each source that holds documents out, this rank's part of what it is measured on."""
        return [
            fixed_batch(each.name, each.held_out, self.masking, self.held_out_rows)
            for each in self.sources
            if each.held_out is not None
        ]

    def table(self) -> Table:
        """What will be read, and how often."""
        table = Table()
        table.add_column("source")
        for column in ("documents", "tokens", "rows", "held out", "share", "passes"):
            table.add_column(column, justify="right")
        each = zip(self.sources, self.shares, self.sampler.passes(), strict=True)
        for source, share, passes in each:
            table.add_row(
                source.name,
                f"{source.rows.documents:,}",
                f"{source.rows.tokens:,}",
                f"{len(source.rows):,}",
                f"{len(source.held_out) if source.held_out else 0:,}",
                f"{share:.1%}",
                f"{passes:.2f}",
            )
        return table


def open_text_mixture(
    recipe: PretrainRecipe,
    tokenizer: PreTrainedTokenizerBase,
    given: Mapping[str, Texts] | None = None,
) -> TextMixture:
    """Open every source of the recipe; a key of ``given`` stands in for a manifest of that name.

    Raises:
        DataError: a source cannot be read, or has too few rows.
        UserError: ``given`` has a source that the recipe does not mention, two sources would have
            one name, the tokenizer cannot mask, or there are more ranks than rows in a step.
    """
    assert recipe.steps is not None
    data = recipe.data
    if (ranks := distributed.world_size()) > data.batch_rows:
        raise UserError(
            f"a step has data.batch_tokens / data.max_tokens = {data.batch_rows} rows, fewer than "
            f"the {ranks} ranks: raise batch_tokens or start fewer ranks"
        )
    vocabulary = Vocabulary.of(tokenizer)
    sources = _open_sources(recipe, tokenizer, vocabulary, given or {})
    weights = weights_of(data.mix) or [float(len(source.rows)) for source in sources]
    draws = data.batch_rows // data.draw_rows
    sampler = BatchSampler(
        [Source(each.name, len(each.rows), data.draw_rows) for each in sources],
        weights,
        steps=recipe.steps * draws,
        seed=recipe.seed,
    )
    masking = Masking(vocabulary, recipe.objective)
    plans = [each.rows for each in sources]
    batches = MaskedBatches(sampler, plans, masking, draws=draws, seed=recipe.seed)
    return TextMixture(sources, tuple(weights), sampler, batches, masking, recipe.held_out.rows)


def texts_of(recipe: PretrainRecipe, given: Mapping[str, Texts] | None = None) -> dict[str, Texts]:
    """The texts of a recipe, by what its mixture calls them; none is opened yet.

    Raises:
        UserError: there is no such manifest, or ``given`` has what the recipe does not mention.
    """
    given = given or {}
    return {
        name: given[name].renamed(name) if name in given else Texts.from_manifest(name)
        for name in manifests_of(recipe.data.mix, given)
    }


def _open_sources(
    recipe: PretrainRecipe,
    tokenizer: PreTrainedTokenizerBase,
    vocabulary: Vocabulary,
    given: Mapping[str, Texts],
) -> tuple[TextSource, ...]:
    texts = texts_of(recipe, given)
    names = [_name(texts[mix.manifest], mix) for mix in recipe.data.mix]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"data.mix: two entries are called {', '.join(repeated)}: take one out, rename it, or "
            "give it another min_tokens"
        )
    tokenized = {name: prepare(each, tokenizer) for name, each in texts.items()}
    return tuple(
        _open_source(name, tokenized[mix.manifest], mix.min_tokens, recipe.data, vocabulary)
        for name, mix in zip(names, recipe.data.mix, strict=True)
    )


def _name(texts: Texts, mix: Text) -> str:
    return f"{texts.name}+{mix.min_tokens}" if mix.min_tokens else texts.name


def _open_source(
    name: str, tokenized: Tokenized, min_tokens: int, data: TextData, vocabulary: Vocabulary
) -> TextSource:
    plan = partial(pack, max_tokens=data.max_tokens, min_tokens=min_tokens)
    rows = plan(tokenized.train, vocabulary, data.packing)
    if len(rows) < data.draw_rows:
        raise DataError(
            f"{name}: {len(rows)} rows of at most {data.max_tokens} tokens, fewer than "
            f"data.draw_rows = {data.draw_rows}: lower draw_rows, or leave the source out"
        )
    held_out = None
    if tokenized.held_out is not None:
        held_out = plan(tokenized.held_out, vocabulary, data.packing)
    return TextSource(name, tokenized, rows, held_out if held_out else None)
