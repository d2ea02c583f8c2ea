"""Processes of a run: their machine and its certificates (here), their process group, and decisions of all ranks."""

from __future__ import annotations

import socket
from collections.abc import Mapping, MutableMapping

from stratlab_spec.certificates import GIVEN, CertificateAbsent, is_untrusted, write_bundle
from stratlab_spec.settings.config import ConfigError


def read_node(env: Mapping[str, str]) -> str:
    """Return the name of the machine: the cluster node from the chart (downward API), else this computer's name.

    Empty in a pod without that variable, because its host name is the pod's.
    """
    if env.get("STRATLAB_NODE"):
        return env["STRATLAB_NODE"]
    return "" if env.get("KUBERNETES_SERVICE_HOST") else socket.gethostname()


def trust_given(environ: MutableMapping[str, str]) -> None:
    """Also trust the authority in STRATLAB_CA_FILE (`write_bundle`); ranks inherit the variables.

    Raises:
        ConfigError: the file does not hold a certificate.
    """
    try:
        write_bundle(environ)
    except CertificateAbsent as absent:
        raise ConfigError(str(absent)) from None


def explain_untrusted(failure: BaseException) -> str:
    """Return the setting that makes an untrusted certificate trusted; "" for another failure."""
    if not is_untrusted(failure):
        return ""
    return (
        f"its certificate is not trusted; set its authority in run.certificates, or locally {GIVEN}=/path/ca.crt "
        "[SL-certificate-untrusted]"
    )
