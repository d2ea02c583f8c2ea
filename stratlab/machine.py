"""Adapt commands to this machine: certificates, environment, signals, full volumes, paths and the version."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import NoReturn

from stratlab.user_error import UserError
from stratlab_spec.certificates import GIVEN, CertificateAbsent, is_untrusted, write_bundle

PASSED_ON = (
    *("LANG", "LANGUAGE", "TZ", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
LOOPBACK = ("127.0.0.1", "localhost")
FULL_BELOW = 1 << 20
"""Bytes. Below this limit no store, no checkpoint and almost no log can be written."""
REFUSED = frozenset(
    {
        *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
        *(errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    }
)


def trust_given(environ: MutableMapping[str, str]) -> None:
    """Also trust the authority of STRATLAB_CA_FILE (`write_bundle`).

    Raises:
        UserError: the file does not hold a certificate.
    """
    try:
        write_bundle(environ)
    except CertificateAbsent as absent:
        raise UserError(str(absent)) from None


def explain_untrusted(failure: BaseException | str) -> str:
    """Return the setting to change if the server's certificate is not trusted; "" for another failure."""
    if not is_untrusted(failure):
        return ""
    return (
        "its certificate is not trusted: set the authority, in the charts as run.certificates, with --on-cluster "
        f"as --certificates configMap/NAME/ca.crt, elsewhere as {GIVEN}=/path/ca.crt"
    )


def build_machine_env(environ: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of local processes from the user's `environ`: path, locale, certificates, proxies, threads.

    A pod does not see the user's shell, so local processes do not either: a forgotten TRAINER_* or MLFLOW_* must not
    change a run. `python` and `stratlab` belong to this interpreter's environment. A process represents a device, and
    all devices are alike: one thread in each, unless the user sets another number. (Measured with `single`, 20 steps,
    on two busy cores: 321 samples/s with one thread, 28 with two.) Loopback never uses a proxy.
    """
    env = {name: environ[name] for name in PASSED_ON if name in environ}
    env |= {name: value for name, value in environ.items() if name.startswith("LC_")}
    programs = Path(
        sys.executable
    ).parent  # not resolved: in a virtual environment this is a link to another folder
    env["PATH"] = f"{programs}:{environ.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
    env.setdefault("LANG", "C.UTF-8")
    env.setdefault("OMP_NUM_THREADS", "1")
    proxies = {name: environ[name] for upper in PROXIES for name in (upper, upper.lower()) if name in environ}
    if proxies:
        given = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
        direct = ",".join(dict.fromkeys([*filter(None, given.split(",")), *LOOPBACK]))
        env |= proxies | {"NO_PROXY": direct, "no_proxy": direct}
    return env


def say_full(folder: Path) -> str:
    """Return `the volume of /data has 0 of 61440 bytes free`; "" if there is room, or the volume cannot be read.

    Programs that cannot write their log to this volume cannot report this themselves.
    """
    try:
        told = os.statvfs(folder)
    except OSError:
        return ""
    if told.f_files and not told.f_favail:
        return f"the volume of {folder} has no room for another file"
    free, size = told.f_bavail * told.f_frsize, told.f_blocks * told.f_frsize
    return f"the volume of {folder} has {free} of {size} bytes free" if size and free < FULL_BELOW else ""


class Interrupted(BaseException):
    """Report that the user or the system wants this program to end. `code` is the exit code for that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raise `Interrupted` on SIGINT, SIGTERM and SIGHUP, once: a second signal does not disturb the clean-up."""
    with _raising((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def interrupt_raises() -> Iterator[None]:
    """Raise `Interrupted` on SIGINT only, for verbs without a clean-up.

    An ignored SIGINT stays ignored, as in `nohup command &`.
    """
    with _raising((signal.SIGINT,) if signal.getsignal(signal.SIGINT) is signal.default_int_handler else ()):
        yield


@contextmanager
def _raising(numbers: tuple[signal.Signals, ...]) -> Iterator[None]:

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def name_program() -> str:
    """Return `stratlab`, or its path if the shell would not find this program: `.venv/bin/stratlab`."""
    own = Path(sys.executable).with_name("stratlab")
    found = shutil.which("stratlab")
    if not own.is_file() or (found and Path(found).resolve() == own.resolve()):
        return "stratlab"
    return shlex.quote(str(shorten(own)))


def shorten(path: Path) -> Path:
    """Return the path relative to the working directory, if it is below it."""
    absolute = path.absolute()
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute


def say_refused(failure: BaseException) -> str:
    """Return why the system refuses a path, as a sentence; "" for every other failure. The user can change it."""
    if not isinstance(failure, OSError) or failure.errno not in REFUSED or not failure.filename:
        return ""
    where = f"{failure.filename}: {failure.strerror}"
    return f"{where}; choose a place that this user can read and write [SL-place-refused]"


def read_version() -> str:
    """Return the version of the installed package; `unknown` if only its code was copied."""
    try:
        return version("stratlab")
    except PackageNotFoundError:
        return "unknown"
