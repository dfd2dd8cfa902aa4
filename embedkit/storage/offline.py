"""Reading from the cache alone where the Hugging Face Hub does not answer."""

import sys
from functools import cache

_TIMEOUT = 10.0
"""Seconds."""
_settings: list[bool] = []
"""The user's own setting, while the hub's silence has replaced it."""


@cache
def settle_network() -> None:
    """Ask the hub once; if it does not answer, continue as with ``HF_HUB_OFFLINE=1``.

    The hub's own client asks for half a minute, for every file anew, and reports every attempt.
    ``ask_again`` has it asked once more.
    """
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and not hub_answers():
        _settings.append(constants.HF_HUB_OFFLINE)
        _set_offline(True)


def ask_again() -> None:
    """Forget that the hub did not answer: an outage of minutes must not outlast a run of days."""
    settle_network.cache_clear()
    if _settings:
        _set_offline(_settings.pop())


def _set_offline(offline: bool) -> None:
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = offline
    # Once imported, datasets has a copy of the setting.
    if "datasets" in sys.modules:
        sys.modules["datasets"].config.HF_HUB_OFFLINE = offline


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
