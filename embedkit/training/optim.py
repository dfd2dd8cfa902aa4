"""Optimizer and learning rate: parameter groups, and ``lr_at`` as a pure function of the step."""

import math

import torch
from torch import nn

from embedkit.recipe import Optim


def lr_at(step: int, steps: int, optim: Optim) -> float:
    """Return the learning rate of update number ``step`` (from 0) in a run of ``steps`` updates.

    Warm-up is linear and reaches ``optim.lr`` after ``warmup_steps`` updates; then the rate stays
    constant, or falls to ``optim.lr * min_lr_ratio`` at the share ``decay_until`` of the run, and
    stays there.
    """
    if step < optim.warmup_steps:
        return optim.lr * (step + 1) / (optim.warmup_steps + 1)
    if optim.schedule == "constant":
        return optim.lr
    decayed = steps * optim.decay_until
    progress = min(1.0, (step - optim.warmup_steps) / max(1.0, decayed - optim.warmup_steps))
    left = 1 - progress if optim.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return optim.lr * (optim.min_lr_ratio + (1 - optim.min_lr_ratio) * left)


def build_optimizer(model: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """Return AdamW or Adam over the trainable parameters, without decay of norms and biases."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": optim.weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[optim.name]
    # The fused update launches one kernel per group instead of a dozen per tensor.
    return kind(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
