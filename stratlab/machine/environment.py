"""What the processes of a rehearsal know of this machine.

A pod does not see the user's shell, so neither do they: a forgotten TRAINER_* or MLFLOW_* must not
change a run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

PASSED_ON = (
    "LANG",
    "LANGUAGE",
    "TZ",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
LOOPBACK = ("127.0.0.1", "localhost")


def build_machine_env(environ: Mapping[str, str]) -> dict[str, str]:
    """Program path, locale, certificates, proxies and threads out of the user's environment `environ`.

    `python` and `stratlab` are those of this interpreter's environment. A process stands for a device, and all
    devices are alike: one thread each in every run, unless the user says otherwise. (Measured with `single`,
    20 steps, on two busy cores: 321 samples/s with one thread, 28 with two.) Loopback never goes through a
    proxy.
    """
    env = {name: environ[name] for name in PASSED_ON if name in environ}
    env |= {name: value for name, value in environ.items() if name.startswith("LC_")}
    programs = Path(sys.executable).parent  # not resolved: in a virtual environment it is a link to elsewhere
    env["PATH"] = f"{programs}:{environ.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
    env.setdefault("LANG", "C.UTF-8")
    env.setdefault("OMP_NUM_THREADS", "1")
    proxies = {name: environ[name] for upper in PROXIES for name in (upper, upper.lower()) if name in environ}
    if proxies:
        given = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
        direct = ",".join(dict.fromkeys([*filter(None, given.split(",")), *LOOPBACK]))
        env |= proxies | {"NO_PROXY": direct, "no_proxy": direct}
    return env
