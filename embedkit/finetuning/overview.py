"""What a run says of itself before it begins."""

from collections.abc import Iterator

from rich.table import Table
from torch import nn

from embedkit import distributed
from embedkit.data.batch_sampler import BatchSampler
from embedkit.finetuning.mixture import Mixture
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedder import Embedder
from embedkit.recipe import Recipe


def overview(
    recipe: Recipe,
    mixture: Mixture,
    sampler: BatchSampler,
    model: Embedder | Contextual,
    precision: str,
) -> Table:
    """What is about to be trained on what, and how often each source will be read."""
    stages = "" if recipe.context is None else f" in two stages, {recipe.context.num_context} slots"
    ranks = distributed.world_size() if recipe.batches_per_rank else 1
    title = (
        f"{model.name}{stages}, {_size(model)}, {model.device}, {precision}; "
        f"{recipe.steps} steps of {recipe.data.batches} batches"
    )
    table = Table(title=title)
    table.add_column("source")
    for column in ("rows", "batch", "share", "passes"):
        table.add_column(column, justify="right")
    rows = zip(mixture.records, mixture.sources, mixture.shares, sampler.passes(), strict=True)
    for records, source, share, passes in rows:
        size = min(source.batch_size, source.rows)
        table.add_row(
            records.name,
            f"{len(records):,}",
            f"{ranks} x {size}" if ranks > 1 else str(size),
            f"{share:.1%}",
            f"{passes:.2f}",
        )
    return table


def _size(model: nn.Module) -> str:
    """How many parameters train of how many, and what training keeps of them between two steps."""
    parameters = list(model.parameters())
    trained = [each for each in parameters if each.requires_grad]
    count = sum(each.numel() for each in parameters)
    # Besides the weights themselves: the gradient and the two moments of what is trained.
    held = sum(each.nbytes for each in parameters) + 3 * sum(each.nbytes for each in trained)
    part = sum(each.numel() for each in trained)
    said = f"{part / 1e6:.2f} M of " if part < count else ""
    return f"{said}{count / 1e6:.1f} M parameters trained in {held / 2**20:,.0f} MiB"


def remarks(recipe: Recipe) -> Iterator[str]:
    """What a user may not have meant."""
    assert recipe.steps is not None
    warmup = recipe.optim.warmup_steps
    if 2 * warmup > recipe.steps:
        yield (
            f"optim.warmup_steps = {warmup} is more than half of the {recipe.steps} steps: for "
            "most of the run the rate is still rising"
        )
