"""Renamed keys of recipes: a recipe with the old name of a key is still read, with a remark."""

import copy
from collections.abc import Mapping
from typing import Any

from embedkit.errors import UserError

RENAMED = {
    "optim.final_lr_share": "optim.min_lr_ratio",
    "optim.clip": "optim.max_grad_norm",
    "optim.accumulation": "optim.gradient_accumulation_steps",
    "data.micro_tokens": "data.micro_batch_tokens",
    "objective.chunk_tokens": "objective.micro_batch_tokens",
}
_REMOVED = {
    "fp32_steps": "is gone, since a run has as many steps on every machine; take it out, and pass "
    "--set steps=N where a machine is slow",
}


def with_new_names(tables: Mapping[str, Any], origin: str) -> tuple[dict[str, Any], list[str]]:
    """Return the tables of a recipe, read from ``origin``, under current keys, and remarks.

    There is one remark for every key that was renamed.

    Raises:
        UserError: a key is set under both names, or no longer exists.
    """
    renamed = copy.deepcopy(dict(tables))
    for key, reason in _REMOVED.items():
        if renamed.get(key) is not None:
            raise UserError(f"{origin}: {key} {reason}")
        renamed.pop(key, None)
    remarks = []
    for old, new in RENAMED.items():
        section, old_key = old.split(".")
        new_key = new.split(".")[1]
        table = renamed.get(section)
        if not isinstance(table, dict) or old_key not in table:
            continue
        if new_key in table:
            raise UserError(f"{origin}: {old} was renamed {new}, and both are set: leave {old} out")
        table[new_key] = table.pop(old_key)
        remarks.append(f"{old} was renamed {new}")
    return renamed, remarks
