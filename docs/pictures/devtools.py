"""A page in headless Chromium that can be looked at and clicked, through the browser's own DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websocket

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--remote-debugging-port=0", "--remote-allow-origins=*"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing leaves this machine
)
PATIENCE_S = 300
"""axe looks for two minutes at a page of sixteen runs where other work shares the processor."""


class Page:
    """One tab."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=PATIENCE_S)
        self._numbers = itertools.count(1)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str) -> None:
        """Starts to load; `wait` tells when it is there."""
        self._call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it comes to.

        Raises:
            RuntimeError: the script has thrown.
        """
        done = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if thrown := done.get("exceptionDetails"):
            raise RuntimeError(thrown.get("exception", {}).get("description") or thrown["text"])
        return done["result"].get("value")

    def _is_true(self, condition: str) -> bool:
        try:
            return bool(self.run(condition))
        except RuntimeError:
            return False

    def appear(self, width: int, *, dark: bool = False, printed: bool = False) -> None:
        """As on a screen of that width in CSS pixels, light or dark, or on paper; also what is opened later."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", media="print" if printed else "screen", features=[scheme])

    def wait(self, condition: str) -> None:
        """Until the expression is true; one that throws, because something is not there yet, is not.

        Raises:
            TimeoutError: it did not become so.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_true(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(condition)
            time.sleep(0.2)

    def take(self, path: Path) -> None:
        """A picture of what is in the window."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def print(self, path: Path) -> None:
        """The page on paper, of the size that it asks for, as a PDF."""
        path.write_bytes(base64.b64decode(self._call("Page.printToPDF", preferCSSPageSize=True)["data"]))


@contextmanager
def open_browser(width: int, height: int) -> Iterator[Page]:
    """A fresh profile, a window of so many pixels.

    Raises:
        FileNotFoundError: chromium is not installed.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        raise FileNotFoundError(
            "chromium is not installed (apt-get install chromium) [SL-pictures-no-chromium]"
        )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            chromium,
            *FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        browser = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield Page(_find_tab(Path(profile) / "DevToolsActivePort"))
        finally:
            os.killpg(browser.pid, signal.SIGKILL)  # this browser and its children, nobody else
            browser.wait()


def _find_tab(port_file: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not port_file.is_file() or not port_file.read_text().strip():
        if time.monotonic() > deadline:
            raise TimeoutError("chromium did not start [SL-pictures-chromium-start]")
        time.sleep(0.1)
    port = port_file.read_text().split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
        tabs = json.load(answer)
    return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
