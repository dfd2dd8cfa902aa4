import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from embedkit_cli.app import main
from support.manifests import shipped_tables

from embedkit.config import read_toml
from embedkit.data.manifests import hub_lock
from embedkit.data.manifests.manifest import load_manifest
from embedkit.data.manifests.sources import HubSource
from embedkit.data.sources.hub import locate
from embedkit.errors import DataError, UserError

LOCKED = "a0d554a64d88156834ff5ae9920b964011b16384"


class Answers(BaseHTTPRequestHandler):
    """Says of each data set that its newest commit is the letter its name begins with, repeated."""

    def do_GET(self) -> None:
        id_ = self.path.removeprefix("/api/datasets/").partition("?")[0]
        body = json.dumps({"id": id_, "sha": id_.partition("/")[2][0] * 40}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    """The address of a hub on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def run_online(hub: str, code: str) -> str:
    """What ``code`` prints in a process that may ask ``hub``."""
    # As in the command, without torch, which takes seconds to import.
    code = f"import embedkit_cli\n{code}"
    setting = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub}
    run = [sys.executable, "-c", code]
    return subprocess.run(run, env=setting, capture_output=True, text=True, check=True).stdout


def test_the_newest_commits_are_written_down_and_what_was_pinned_stays(
    hub: str, tmp_path: Path
) -> None:
    lock = tmp_path / "hub.lock.toml"
    lock.write_text(f'[commits]\n"org/b" = "{"0" * 40}"\n')
    code = f"""
from pathlib import Path
from embedkit.data.manifests.hub_lock import update
lock, ids = Path({str(lock)!r}), ["org/b", "org/a"]
print(update(lock, ids))
print(lock.read_text().splitlines()[1:])
print(update(lock, ids, upgrade=True))
"""
    a, b, before = "a" * 40, "b" * 40, "0" * 40
    assert run_online(hub, code).splitlines() == [
        str({"org/a": a, "org/b": before}),
        str(["[commits]", f'"org/a" = "{a}"', f'"org/b" = "{before}"']),
        str({"org/a": a, "org/b": b}),
    ]


@pytest.mark.slow
def test_without_a_pin_the_newest_is_read_and_a_line_says_so(hub: str) -> None:
    code = """
import warnings
from embedkit.data.sources.hub import locate
from embedkit.data.manifests.sources import HubSource
with warnings.catch_warnings(record=True) as caught:
    print(locate(HubSource(kind="hub", id="org/a")).revision)
print(caught[0].message)
"""
    revision, warning = run_online(hub, code).splitlines()
    assert revision == "a" * 40
    assert warning.startswith("org/a: no revision is pinned, so the newest is read, aaaaaaaa:")


def test_the_lock_is_read_where_the_manifest_pins_nothing() -> None:
    assert locate(HubSource(kind="hub", id="mteb/sts12-sts")).revision == LOCKED
    own = HubSource(kind="hub", id="mteb/sts12-sts", revision="b" * 40)
    assert locate(own).revision == "b" * 40


def test_what_is_locked_is_of_a_shipped_manifest() -> None:
    commits = read_toml(hub_lock.default_path())["commits"]
    assert commits["mteb/sts12-sts"] == LOCKED
    assert commits.keys() <= {tables["source"].get("id") for _, tables in shipped_tables()}


def test_offline_the_command_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = hub_lock.default_path().read_text()
    monkeypatch.setattr(sys, "argv", ["embedkit", "data", "lock"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: cannot ask the hub for the newest revision of sh0416/ag_news (")
    assert "run embedkit data lock and data prepare where there is a network" in line
    assert hub_lock.default_path().read_text() == before


def test_offline_a_source_without_a_pin_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"npr .*embedkit data lock.*\$EMBEDKIT_HUB/sentence-"):
        locate(load_manifest("npr").source)  # type: ignore[arg-type]


def test_a_lock_with_a_mistake_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "hub.lock.toml"
    lock.write_text('[commits]\n"org/a" = "main"\n')
    with pytest.raises(UserError, match=r"hub\.lock\.toml: commits\.org/a: String should match"):
        hub_lock.update(lock, [])


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent/hub\.lock\.toml: No such file"):
        hub_lock.update(tmp_path / "absent" / "hub.lock.toml", [])
