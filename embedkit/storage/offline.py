"""Reading from the cache alone where the Hugging Face Hub does not answer."""

import sys
from functools import cache

_TIMEOUT = 10.0
"""Seconds."""


@cache
def settle_network() -> None:
    """Ask the hub once; if it does not answer, continue as with ``HF_HUB_OFFLINE=1``.

    The hub's own client asks for half a minute, for every file anew, and reports every attempt.
    """
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and not hub_answers():
        constants.HF_HUB_OFFLINE = True
        # Once imported, datasets has a copy of the setting.
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True


def hub_answers() -> bool:
    """Ask the hub whether it answers now; never with ``HF_HUB_OFFLINE=1``, where it does not."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=_TIMEOUT)
    # The type of error depends on the HTTP library that the client uses.
    except Exception:
        return False
    return True
