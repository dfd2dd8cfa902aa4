"""Says before a run what will be trained on what, and what its user may not have meant."""

from collections.abc import Iterator, Sequence

from rich.table import Column, Table
from torch import nn

from embedkit import distributed
from embedkit.data.batch_sampler import BatchSampler
from embedkit.data.pairs.lengths import known_lengths, limits_of
from embedkit.data.pairs.records import Records
from embedkit.finetuning.mixture import Mixture
from embedkit.finetuning.model import undecided_sides
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.recipe import Recipe

_MEASURED = 256
"""Rows of each source that are tokenized, unless ``embedkit data prepare`` has measured all."""


def overview(
    recipe: Recipe,
    mixture: Mixture,
    sampler: BatchSampler,
    model: EmbeddingModel,
    precision: str,
) -> Table:
    """Return a table of what will be trained, and how often each source will be read.

    The column ``negatives``, where any source has some, says how many hard negatives a query is
    trained on, and how many a row has at most. The column ``cut`` is the share of queries and
    documents that are longer than their limits.
    """
    stages = "" if recipe.context is None else f" in two stages, {recipe.context.num_context} slots"
    ranks = distributed.world_size() if recipe.batches_per_rank else 1
    mined = any(records.negatives_given for records in mixture.records)
    columns = ["rows", "batch", *(["negatives"] if mined else []), "share", "passes", "cut"]
    table = Table(
        "source",
        *(Column(name, justify="right") for name in columns),
        title=f"{model.name}{stages}, {_size(model)}, {model.device}, {precision}; "
        f"{recipe.steps} steps of {recipe.data.batches} batches",
    )
    for records, source, share, passes in zip(
        mixture.records, mixture.sources, mixture.shares, sampler.passes(), strict=True
    ):
        size = min(source.batch_size, source.rows)
        batch = f"{ranks} x {size}" if ranks > 1 else str(size)
        lengths = known_lengths(records, model.tokenizer, _MEASURED)
        if lengths.rows < len(records):
            unmeasured = (
                f"{_MEASURED} rows of a source that `embedkit data prepare` has not measured"
            )
            table.caption = f"cut: share in {unmeasured}"
        cut = lengths.truncated(*limits_of(records, recipe.data))
        given = records.negatives_given
        used = [f"{min(records.negatives_per_query, given)} of {given}"] if mined else []
        shares = (f"{share:.1%}", f"{passes:.2f}", f"{cut:.1%}")
        table.add_row(source.name, f"{source.rows:,}", batch, *used, *shares)
    return table


def remarks(recipe: Recipe) -> Iterator[str]:
    """Yield what a user may not have meant by a recipe whose ``steps`` are resolved."""
    assert recipe.steps is not None
    warmup = recipe.optim.warmup_steps
    if 2 * warmup > recipe.steps:
        yield (
            f"optim.warmup_steps = {warmup} is more than half of the {recipe.steps} steps: for "
            "most of the run the rate is still rising"
        )
    if recipe.validation is not None and recipe.validation.every >= recipe.steps:
        yield (
            f"validation.every = {recipe.validation.every} is not less than the {recipe.steps} "
            "steps: only the last one is measured, and is the one exported"
        )


def remarks_on_prompts(model: EmbeddingModel, records: Sequence[Records]) -> Iterator[str]:
    """Yield the sides that the exported model will read behind no prompt, against its training."""
    for side, name in undecided_sides(model, records).items():
        key = f"embedder.default_prompts.{side}"
        yield (
            f"sources differ in the prompt of a {side}, so that the exported model's encode_{side} "
            f'puts none: name one for searches, such as {key} = "{name}"'
        )


def _size(model: nn.Module) -> str:
    """Return how many parameters train of how many, and the memory kept between two steps."""
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in parameters)
    part = sum(parameter.numel() for parameter in trained)
    # Besides all weights, training keeps the gradient and two moments of those that it changes.
    held = sum(p.nbytes for p in parameters) + 3 * sum(p.nbytes for p in trained)
    trained_of = f"{part / 1e6:.2f} M of " if part < count else ""
    return f"{trained_of}{count / 1e6:.1f} M parameters trained in {held / 2**20:,.0f} MiB"
