"""Has torch report native bf16 as the tests ask, in every Python process that they start.

Python imports a module of this name before anything else; ``tests/conftest.py`` puts its folder on
``PYTHONPATH``.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def report_native_bf16(cpu: ModuleType) -> None:
    """Have ``torch.cpu`` report what ``EMBEDKIT_TEST_BF16`` says: ``present`` or ``absent``.

    The variable is read at each call. Arithmetic is left alone: torch emulates bf16 where the CPU
    lacks it, which is slow and right.
    """
    vars(cpu)["_is_avx512_bf16_supported"] = lambda: os.environ["EMBEDKIT_TEST_BF16"] == "present"
    vars(cpu)["_is_amx_tile_supported"] = lambda: False


class _TorchCpu:
    """Finds ``torch.cpu`` when it is first imported, since most processes never import torch."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == "torch.cpu" else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_report(module: ModuleType) -> None:
                run(module)
                report_native_bf16(module)

            vars(spec.loader)["exec_module"] = run_and_report
        return spec


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, _TorchCpu)
