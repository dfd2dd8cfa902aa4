"""Ranks, sharding and progress bars: the only user of ``torch.distributed``."""

from embedkit.distributed.ranks import (
    PATIENCE,
    any_rank,
    average_gradients,
    barrier,
    fails_first,
    gather,
    group,
    is_first_to_tell,
    is_main,
    local_device,
    max_over_ranks,
    on_main,
    rank,
    share_of,
    sum_over_ranks,
    world_size,
)

__all__ = [
    "PATIENCE",
    "any_rank",
    "average_gradients",
    "barrier",
    "fails_first",
    "gather",
    "group",
    "is_first_to_tell",
    "is_main",
    "local_device",
    "max_over_ranks",
    "on_main",
    "rank",
    "share_of",
    "sum_over_ranks",
    "world_size",
]
