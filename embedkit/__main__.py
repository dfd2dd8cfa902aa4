"""``python -m embedkit`` and ``torchrun -m embedkit``: the same as the command ``embedkit``."""

from embedkit_cli.app import main

main()
