"""Opens a page in headless Chromium from a loopback server, and tells what it showed and what it asked for."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.tiers import refuse_in_fast

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ABSENT = "chromium is not installed (apt-get install chromium)"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-default-apps", "--disable-dev-shm-usage"),
    # in a process of its own, a sandboxed frame is painted after the picture is taken
    "--disable-features=IsolateSandboxedIframes",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing leaves this machine
)
DEADLINE_S = 120


@dataclass(frozen=True)
class Visit:
    """`dom` after loading; `requests`: every URL that the browser started to load, in order."""

    dom: str
    requests: list[str]
    screenshot: Path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address of a server of `folder` on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def visit(url: str, scratch: Path, size: tuple[int, int] = (1200, 2000), dark: bool = False) -> Visit:
    """Loads `url` twice with a fresh profile: once for its DOM and its requests, once for a picture."""
    scratch.mkdir(parents=True, exist_ok=True)
    net_log, picture = scratch / "net.json", scratch / "page.png"
    look = ["--blink-settings=preferredColorScheme=0"] if dark else []
    _run(
        [*look, "--dump-dom", "--virtual-time-budget=5000", f"--log-net-log={net_log}", url],
        scratch / "profile1",
        scratch / "dom.html",
    )
    window = f"--window-size={size[0]},{size[1]}"
    _run(
        [*look, window, "--virtual-time-budget=5000", f"--screenshot={picture}", url],
        scratch / "profile2",
        scratch / "screenshot.log",
    )
    return Visit((scratch / "dom.html").read_text(), _requests(net_log), picture)


def _run(arguments: list[str], profile: Path, output: Path) -> None:
    refuse_in_fast("a browser")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *arguments]
    with open(output, "wb") as out, open(f"{output}.err", "wb") as err:
        browser = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        try:
            code = browser.wait(timeout=DEADLINE_S)
        finally:
            if browser.poll() is None:
                os.killpg(browser.pid, signal.SIGKILL)  # this browser and its children, nobody else
                browser.wait()
    assert code == 0, Path(f"{output}.err").read_text()[-2000:]


def _requests(net_log: Path) -> list[str]:
    """URLs that the page or its frames asked for, from Chromium's own network log, and the page itself.

    Chromium's own services (clock, updates) ask as well; they are no origin, and no name is resolved for them.
    """
    log = json.loads(net_log.read_text())
    start = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    started = [event.get("params", {}) for event in log["events"] if event["type"] == start]
    asked = [p for p in started if p.get("initiator") != "not an origin" or p["request_type"] == "main frame"]
    return list(dict.fromkeys(p["url"] for p in asked if "url" in p))
