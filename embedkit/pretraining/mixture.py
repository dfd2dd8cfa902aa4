"""Opens a recipe's mixture of text: token ids, rows, and the sampler over them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from rich.table import Column, Table
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from embedkit import distributed
from embedkit.data.batch_sampler import BatchSampler, Source
from embedkit.data.text.masked_batches import MaskedBatch, MaskedBatches, Masking, fixed_batch
from embedkit.data.text.packing import Rows, pack
from embedkit.data.text.texts import Texts
from embedkit.data.text.tokenized import Tokenized, prepare
from embedkit.errors import DataError, UserError, repeated
from embedkit.recipe import PretrainRecipe, TextData
from embedkit.recipe.training_settings import manifests_of, weights_of
from embedkit.tokens.vocabulary import Vocabulary

_COUNTED = 2**24
"""Number of tokens of a source from which the frequencies of its words are counted."""


@dataclass(frozen=True, slots=True)
class TextSource:
    """Rows that an entry of a mixture reads."""

    name: str
    """Name of the manifest, and ``+`` and the least length if the entry asks for one."""
    tokenized: Tokenized
    rows: Rows
    held_out: Rows | None
    """Held-out rows; ``None`` if no document is held out, or none is long enough."""

    def word_frequencies(self, vocabulary: int) -> Tensor:
        """Return each word's share of the first 16 M tokens, after adding one to every count."""
        seen = self.tokenized.train.ids[:_COUNTED]
        counts = torch.from_numpy(np.bincount(seen, minlength=vocabulary) + 1)
        return counts / counts.sum(dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class TextMixture:
    """The sources of a run in the order of the recipe, and which rows each step reads."""

    sources: Sequence[TextSource]
    shares: Sequence[float]
    """Expected share of the draws that read each source."""
    sampler: BatchSampler
    batches: MaskedBatches
    held_out: Sequence[MaskedBatch]
    """This rank's share of the held-out rows of each source that has some."""

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the token ids of each source."""
        return {source.name: source.tokenized.fingerprint for source in self.sources}

    def word_frequencies(self, vocabulary: int) -> Tensor:
        """Return each word's expected share of the tokens of a step."""
        frequencies = [source.word_frequencies(vocabulary) for source in self.sources]
        weighted = [s * words for s, words in zip(self.shares, frequencies, strict=True)]
        return torch.stack(weighted).sum(dim=0)

    def table(self) -> Table:
        """Return a table of the text of each source, and of how often it will be read."""
        heads = ("documents", "tokens", "rows", "held out", "share", "passes")
        table = Table("source", *(Column(head, justify="right") for head in heads))
        drawn = zip(self.sources, self.shares, self.sampler.passes(), strict=True)
        for source, share, passes in drawn:
            rows = source.rows
            sizes = (rows.documents, rows.tokens, len(rows), len(source.held_out or ()))
            numbers = [f"{size:,}" for size in sizes]
            table.add_row(source.name, *numbers, f"{share:.1%}", f"{passes:.2f}")
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
    texts = texts_of(recipe, given)
    endings = [f"+{mix.min_tokens}" if mix.min_tokens else "" for mix in data.mix]
    names = [texts[mix.manifest].name + end for mix, end in zip(data.mix, endings, strict=True)]
    if twice := repeated(names):
        raise UserError(
            f"data.mix: two entries are called {', '.join(twice)}: take one out, rename it, or "
            "give it another min_tokens"
        )
    tokenized = {manifest: prepare(source, tokenizer) for manifest, source in texts.items()}
    plan = partial(pack, vocabulary=vocabulary, packing=data.packing, max_tokens=data.max_tokens)
    sources = []
    for name, mix in zip(names, data.mix, strict=True):
        ids = tokenized[mix.manifest]
        rows = plan(ids.train, min_tokens=mix.min_tokens)
        _check_rows(name, rows, data)
        held_out = plan(ids.held_out, min_tokens=mix.min_tokens) if ids.held_out else None
        sources.append(TextSource(name, ids, rows, held_out or None))
    plans = [source.rows for source in sources]
    weights = weights_of(data.mix) or [float(len(rows)) for rows in plans]
    draws = data.batch_rows // data.draw_rows
    sampler = BatchSampler(
        [Source(source.name, len(source.rows), data.draw_rows) for source in sources],
        weights,
        steps=recipe.steps * draws,
        seed=recipe.seed,
    )
    masking = Masking(vocabulary, recipe.objective)
    return TextMixture(
        sources,
        [weight / sum(weights) for weight in weights],
        sampler,
        MaskedBatches(sampler, plans, masking, draws=draws, seed=recipe.seed),
        [
            fixed_batch(source.name, source.held_out, masking, recipe.held_out.rows)
            for source in sources
            if source.held_out is not None
        ],
    )


def _check_rows(name: str, rows: Rows, data: TextData) -> None:
    """Verify that a source has the rows that a draw takes."""
    if len(rows) < data.draw_rows:
        raise DataError(
            f"{name}: {len(rows)} rows of at most {data.max_tokens} tokens, fewer than "
            f"data.draw_rows = {data.draw_rows}: lower draw_rows, or leave the source out"
        )


def texts_of(recipe: PretrainRecipe, given: Mapping[str, Texts] | None = None) -> dict[str, Texts]:
    """Return the texts of a recipe by the manifests of its mixture, without opening them.

    Raises:
        UserError: there is no such manifest, or ``given`` has what the recipe does not mention.
    """
    given = given or {}
    return {
        name: given[name].renamed(name) if name in given else Texts.from_manifest(name)
        for name in manifests_of(recipe.data.mix, given)
    }
