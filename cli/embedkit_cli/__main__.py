"""``python -m embedkit_cli`` and ``torchrun -m embedkit_cli``: the same as ``embedkit``."""

from embedkit_cli.app import main

main()
