"""Headless Chromium, a loopback server of pages, and what a page has loaded."""

import functools
import shutil
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ABSENT = "chromium is not installed (apt-get install chromium)"
LOADED = """performance.getEntriesByType('resource').map(each => each.name)
  .filter(url => !url.endsWith('/favicon.ico'))"""
"""JavaScript: every URL that a page has asked for, its own aside."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@contextmanager
def serve(folder):
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
