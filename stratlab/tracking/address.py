"""The address of a tracking server, as a user gives it."""

from __future__ import annotations

import urllib.parse

from stratlab.user_error import UserError


def check_tracking_uri(uri: str) -> str:
    """The address, "" for none; a callback of typer.

    Raises:
        UserError: it is no address of a server, or holds a login, which reports and logs would tell everybody.
    """
    try:
        parts = urllib.parse.urlsplit(uri)
        login, host = "@" in parts.netloc, parts.hostname
    except ValueError:
        login, host = "@" in uri, None
    if login:
        raise UserError(
            "--tracking-uri (or MLFLOW_TRACKING_URI): holds a login, which would end up in reports and logs; "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, instead "
            "[SL-tracking-uri-login]"
        )
    if uri and (not host or parts.scheme not in ("http", "https")):
        raise UserError(
            f"--tracking-uri (or MLFLOW_TRACKING_URI) {uri!r}: expected the address of a server, http://host:port "
            "[SL-tracking-address]"
        )
    return uri


def find_run_page(uri: str | None, experiment_id: str | None, run_id: str | None) -> str:
    """The address of a run's page on a tracking server, for a link; "" where there is none that others reach.

    Without a login, and without what an address has behind its path, for that may be a secret. A server of this machine
    is a rehearsal's, which ends with it.
    """
    if not (uri and experiment_id and run_id) or is_of_this_machine(uri):
        return ""
    try:
        parts = urllib.parse.urlsplit(uri)
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme not in ("http", "https") or not host:
        return ""
    place = f"#/experiments/{urllib.parse.quote(str(experiment_id))}/runs/{urllib.parse.quote(str(run_id))}"
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}/{place}"


def is_of_this_machine(uri: str) -> bool:
    """Whether the server is one that this machine alone reaches, such as a rehearsal's, which ends with it."""
    try:
        return urllib.parse.urlsplit(uri).hostname in ("127.0.0.1", "localhost", "::1")
    except ValueError:  # no address at all
        return False
