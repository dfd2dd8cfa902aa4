"""Ranks, sharding and progress bars: the only user of ``torch.distributed``."""

# mypy: implicit-reexport
# ruff: noqa: F401
from embedkit.distributed.job_queue import JobQueue
from embedkit.distributed.leading import (
    Part,
    RankFailedError,
    apart,
    helpers,
    is_apart,
    lead,
    scatter,
    together,
)
from embedkit.distributed.ranks import (
    PATIENCE,
    any_rank,
    average_gradients,
    barrier,
    fails_first,
    gather,
    group,
    is_main,
    local_device,
    max_over_ranks,
    on_main,
    rank,
    reports_first,
    says_first,
    share_of,
    sum_over_ranks,
    world_size,
)
