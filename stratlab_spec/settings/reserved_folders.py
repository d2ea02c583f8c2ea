"""The results volume must not hide a folder of the system, of the images or of the pods."""

from __future__ import annotations

import posixpath
import re

ITSELF = (
    *("", "bin", "boot", "dev", "dev/shm", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt", "proc"),
    *("root", "run", "sbin", "sys", "tmp", "usr", "usr/local", "var"),
)
"""May not be the volume, but hold it."""
WITH_ALL_BELOW = (
    *("bin", "boot", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr/bin", "usr/lib"),
    *("usr/lib32", "usr/lib64", "usr/sbin", "usr/share", "usr/local/bin", "usr/local/lib", "opt/venv"),
    *("opt/package", "opt/kube", "home/mpiuser", "run/secrets", "var/run", "var/lib/kubelet"),
)

PATTERN = f"^/(({'|'.join(filter(None, ITSELF))})?/?|({'|'.join(WITH_ALL_BELOW)})(/.*)?)$"
"""Pattern of an absolute path without empty parts, for the charts' schema."""


def is_reserved(path: str) -> bool:
    """Return whether an absolute path, however it is written, is one of them. A relative one never is."""
    return path.startswith("/") and bool(re.match(PATTERN, "/" + posixpath.normpath(path).lstrip("/")))
