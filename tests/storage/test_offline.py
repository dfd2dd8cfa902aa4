import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import datasets
import pytest
from huggingface_hub import constants

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.storage.offline import ask_again, settle_network


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As without ``HF_HUB_OFFLINE``; the hub is a port on which nothing listens."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    settle_network.cache_clear()
    yield
    # Else the next test that asks again would find these settings, not its own.
    ask_again()


class Answer(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()


def test_a_hub_that_does_not_answer_is_not_asked_again() -> None:
    settle_network()
    assert constants.HF_HUB_OFFLINE
    assert datasets.config.HF_HUB_OFFLINE


def test_a_hub_that_answers_stays_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.handle_request, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    settle_network()
    server.server_close()
    assert not constants.HF_HUB_OFFLINE


def test_without_a_network_a_model_is_refused_at_once_and_in_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    start = time.monotonic()
    with pytest.raises(
        UserError, match=r"chandar-lab/NeoBERT: .* cannot be loaded: .*--backbone st"
    ):
        hub.load("chandar-lab/NeoBERT")
    assert time.monotonic() - start < 5
    assert capfd.readouterr().err == ""
