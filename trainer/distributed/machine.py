"""The machine that a process runs on: its name, and whose certificates it trusts."""

from __future__ import annotations

import socket
from collections.abc import Mapping, MutableMapping

from stratlab_spec.certificates import GIVEN, CertificateAbsent, is_untrusted, write_bundle
from stratlab_spec.settings.config import ConfigError


def read_node(env: Mapping[str, str]) -> str:
    """The name of the machine: that of the cluster's node, which the chart passes on (downward API), or of this
    computer; empty in a pod whose environment does not say, where the host name is the pod's."""
    if env.get("STRATLAB_NODE"):
        return env["STRATLAB_NODE"]
    return "" if env.get("KUBERNETES_SERVICE_HOST") else socket.gethostname()


def trust_given(environ: MutableMapping[str, str]) -> None:
    """Trust the authority of STRATLAB_CA_FILE too (`write_bundle`); ranks inherit the variables.

    Raises:
        ConfigError: the file holds no certificate.
    """
    try:
        write_bundle(environ)
    except CertificateAbsent as absent:
        raise ConfigError(str(absent)) from None


def explain_untrusted(failure: BaseException) -> str:
    """What to set where the other side's certificate is not trusted; "" where it is another failure."""
    if not is_untrusted(failure):
        return ""
    return (
        f"its certificate is not trusted here: name its authority: run.certificates, elsewhere {GIVEN}=/path/ca.crt "
        "[SL-certificate-untrusted]"
    )
