"""Trust a user's own certificate authority in addition to this machine's: STRATLAB_CA_FILE, as the charts set it.

Libraries take one file instead of their own list, so both are written into one file. Processes started later inherit
the variables. Standard library only, because every start of a command calls it.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path

GIVEN = "STRATLAB_CA_FILE"
READ_BY_LIBRARIES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE")
MARK = "-----BEGIN CERTIFICATE-----"
UNTRUSTED = "certificate verify failed"


class CertificateAbsent(ValueError):
    """The given file is not a certificate."""


def write_bundle(environ: MutableMapping[str, str]) -> None:
    """Set the variables that libraries read to a file with all authorities, unless the user has set them.

    A given file that does not exist is ignored: a rehearsal with a cluster's values does not have it.

    Raises:
        CertificateAbsent: the file holds no certificate.
    """
    given = Path(environ.get(GIVEN, ""))
    if not given.is_file():
        return
    own = given.read_text(errors="replace")
    if MARK not in own:
        raise CertificateAbsent(
            f"{GIVEN}={given}: expected a certificate in PEM, which begins with {MARK} [SL-certificate-absent]"
        )
    with tempfile.NamedTemporaryFile("w", prefix="stratlab-ca-", suffix=".pem", delete=False) as file:
        file.write("\n".join([*_read_known(), own]))
    for name in READ_BY_LIBRARIES:
        environ.setdefault(name, file.name)
    del environ[GIVEN]  # processes started from here have all of them


def is_untrusted(failure: BaseException | str) -> bool:
    """Return whether the other side's certificate was not trusted."""
    return UNTRUSTED in str(failure).lower()


def _read_known() -> list[str]:
    """Return the authorities of Python and of certifi, which its libraries read."""
    paths = {ssl.get_default_verify_paths().cafile}
    if (brought := find_spec("certifi")) and brought.origin:
        paths.add(str(Path(brought.origin).with_name("cacert.pem")))
    files = [Path(path) for path in sorted(filter(None, paths)) if os.path.isfile(path)]
    return [file.read_text(errors="replace") for file in files]
