"""Reading what is cached where the Hugging Face Hub does not answer."""

import sys
from functools import cache

_TIMEOUT = 10.0
"""Seconds."""


@cache
def settle_network() -> None:
    """Ask the hub once; if it does not answer, go on as with ``HF_HUB_OFFLINE=1``.

    Its own client asks for half a minute, for every file anew, and reports every attempt.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=_TIMEOUT)
    # The errors are those of whichever HTTP library the client has.
    except Exception:
        constants.HF_HUB_OFFLINE = True
        # Once imported, it has a copy.
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True
