"""The machine that a process runs on.

A certificate authority of one's own, beside those that this machine trusts: STRATLAB_CA_FILE, as the charts set it.

Libraries take one file in place of their own list, so that both go into one file; ranks inherit the variables. The
tools do the same (stratlab/machine.py).
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path

from stratlab_spec.settings.config import ConfigError


def read_node(env: Mapping[str, str]) -> str:
    """The name of the machine: that of the cluster's node, which the chart passes on (downward API), or of this
    computer; empty in a pod whose environment does not say, where the host name is the pod's."""
    if env.get("STRATLAB_NODE"):
        return env["STRATLAB_NODE"]
    return "" if env.get("KUBERNETES_SERVICE_HOST") else socket.gethostname()


GIVEN = "STRATLAB_CA_FILE"
READ_BY_LIBRARIES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE")
MARK = "-----BEGIN CERTIFICATE-----"
UNTRUSTED = "certificate verify failed"


def trust_given(environ: MutableMapping[str, str]) -> None:
    """Names a file with all authorities in the variables that libraries read, where the user has named none.

    A file that is not there is left out: a rehearsal of a cluster's values has none.

    Raises:
        ConfigError: the file holds no certificate.
    """
    given = Path(environ.get(GIVEN, ""))
    if not given.is_file():
        return
    own = given.read_text(errors="replace")
    if MARK not in own:
        expected = f"expected PEM, which begins with {MARK}"
        raise ConfigError([f"{GIVEN}={given}: holds no certificate; {expected} [SL-certificate-absent]"])
    with tempfile.NamedTemporaryFile("w", prefix="stratlab-ca-", suffix=".pem", delete=False) as file:
        file.write("\n".join([*_read_known(), own]))
    for name in READ_BY_LIBRARIES:
        environ.setdefault(name, file.name)
    del environ[GIVEN]  # what is started from here has it all


def _read_known() -> list[str]:
    """The authorities that Python knows without it, and those of the list that its libraries bring, where one does."""
    paths = {ssl.get_default_verify_paths().cafile}
    if (brought := find_spec("certifi")) and brought.origin:
        paths.add(str(Path(brought.origin).with_name("cacert.pem")))
    files = [Path(path) for path in sorted(filter(None, paths)) if os.path.isfile(path)]
    return [file.read_text(errors="replace") for file in files]


def explain_untrusted(failure: BaseException) -> str:
    """What to set where the other side's certificate is not trusted; "" where it is another failure."""
    if UNTRUSTED not in str(failure).lower():
        return ""
    return (
        f"its certificate is not trusted here: name its authority: run.certificates, elsewhere {GIVEN}=/path/ca.crt "
        "[SL-certificate-untrusted]"
    )
