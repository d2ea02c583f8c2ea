"""A tracking server that sends its callers elsewhere: said with the address to set, never followed.

MLflow's client follows redirects unless MLFLOW_ALLOW_HTTP_REDIRECTS says otherwise, and makes a GET of a POST then
(requests, 301 and 302): nothing would be written, and the error would speak of something else. Its own message for a
redirect that it may not follow does not say where it leads.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from stratlab.machine.certificates import explain_untrusted

REFUSED = {"MLFLOW_ALLOW_HTTP_REDIRECTS": "false"}
"""For the environment of MLflow's client."""

API = "/api/2.0/mlflow/"
TIMEOUT_S = 10.0
OF_MLFLOW = re.compile(r"failed with error code 3\d\d")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *redirect: Any) -> None:
        return None


def open_directly(url: str, timeout_s: float) -> Any:
    """As urllib.request.urlopen; a redirect is an HTTPError."""
    return urllib.request.build_opener(_NoRedirects).open(url, timeout=timeout_s)


def does_answer(tracking_uri: str, timeout_s: float = 3.0) -> bool:
    """Whether a server is there, whatever it says."""
    try:
        with open_directly(f"{tracking_uri.rstrip('/')}/health", timeout_s):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False


def explain_failure(tracking_uri: str, failure: str) -> str:
    """MLflow's own words, or what to set where the server redirects its callers, or is not trusted."""
    if cure := explain_untrusted(failure):
        return cure
    if not OF_MLFLOW.search(failure):
        return failure
    target = find_redirect(tracking_uri)
    return describe_redirect(target) if target else failure


def find_redirect(tracking_uri: str) -> str | None:
    """Where a call of the API is sent, asked without a login; None = nowhere, or no answer."""
    url = f"{tracking_uri.rstrip('/')}{API}experiments/search?max_results=1"
    try:
        with open_directly(url, TIMEOUT_S):
            return None
    except urllib.error.HTTPError as answer:
        location = answer.headers.get("Location")
        return urllib.parse.urljoin(url, location) if location and 300 <= answer.code < 400 else None
    except (OSError, ValueError):
        return None


def describe_redirect(target: str) -> str:
    """The sentence that helps, without a login or the tokens of a login page."""
    parts = urllib.parse.urlsplit(target)
    server, api, _ = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".partition(API)
    if api:
        return f"redirects to {server}: set run.mlflow.trackingUri to {server}"
    return f"redirects to {server}, which is no MLflow server: set run.mlflow.trackingUri to the address behind it"
