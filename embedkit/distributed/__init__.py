"""Ranks, sharding and progress bars: the only user of ``torch.distributed``."""

from embedkit.distributed.ranks import (
    any_rank,
    average_gradients,
    barrier,
    gather,
    group,
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
    "any_rank",
    "average_gradients",
    "barrier",
    "gather",
    "group",
    "is_main",
    "local_device",
    "max_over_ranks",
    "on_main",
    "rank",
    "share_of",
    "sum_over_ranks",
    "world_size",
]
