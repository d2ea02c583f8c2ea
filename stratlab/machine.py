"""This machine, for every command that uses it: certificates, environment, signals, volumes, and places.

Which stratlab this is.
"""

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
"""Bytes. Below it no store, no checkpoint and hardly a log can be written."""
REFUSED = frozenset(
    {
        *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
        *(errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    }
)


def trust_given(environ: MutableMapping[str, str]) -> None:
    """Trust the authority of STRATLAB_CA_FILE too (`write_bundle`).

    Raises:
        UserError: the file holds no certificate.
    """
    try:
        write_bundle(environ)
    except CertificateAbsent as absent:
        raise UserError(str(absent)) from None


def explain_untrusted(failure: BaseException | str) -> str:
    """What to set where the other side's certificate is not trusted; "" where it is another failure."""
    if not is_untrusted(failure):
        return ""
    return (
        "its certificate is not trusted here: name the authority, in the charts as run.certificates, with --on-cluster "
        f"as --certificates configMap/NAME/ca.crt, elsewhere as {GIVEN}=/path/ca.crt"
    )


def build_machine_env(environ: Mapping[str, str]) -> dict[str, str]:
    """Program path, locale, certificates, proxies and threads out of the user's environment `environ`.

    A pod does not see the user's shell, so neither do processes here: a forgotten TRAINER_* or MLFLOW_* must not change
    a run. `python` and `stratlab` are those of this interpreter's environment. A process stands for a device, and all
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


def say_full(folder: Path) -> str:
    """`the volume of /data has 0 of 61440 bytes free`; "" where there is room, or nothing can be asked.

    Programs that cannot write their log there cannot say so themselves.
    """
    try:
        told = os.statvfs(folder)
    except OSError:
        return ""
    if told.f_files and not told.f_favail:
        return f"the volume of {folder} has room for no further file"
    free, size = told.f_bavail * told.f_frsize, told.f_blocks * told.f_frsize
    return f"the volume of {folder} has {free} of {size} bytes free" if size and free < FULL_BELOW else ""


class Interrupted(BaseException):
    """The user or the system wants this program to end. `code` is the exit code for that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@contextmanager
def signals_raise() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise `Interrupted`, once: a second one does not disturb the cleaning up."""
    with _raising((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def interrupt_raises() -> Iterator[None]:
    """The same of SIGINT alone, for verbs that have nothing to clean up; unless whoever started them has it ignored,
    as `nohup command &` does."""
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
    """`stratlab`, or its path where the shell would find none or another one: `.venv/bin/stratlab`."""
    own = Path(sys.executable).with_name("stratlab")
    found = shutil.which("stratlab")
    if not own.is_file() or (found and Path(found).resolve() == own.resolve()):
        return "stratlab"
    return shlex.quote(str(shorten(own)))


def shorten(path: Path) -> Path:
    """As seen from here, where it lies below."""
    absolute = path.absolute()
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute


def say_refused(failure: BaseException) -> str:
    """The place and why it is refused, as a sentence; "" for every other failure. The user's to change, and no bug."""
    if not isinstance(failure, OSError) or failure.errno not in REFUSED or not failure.filename:
        return ""
    where = f"{failure.filename}: {failure.strerror}"
    return f"{where}; choose a place that this user can read and write [SL-place-refused]"


def read_version() -> str:
    """Of the installed package; `unknown` where its code alone was copied."""
    try:
        return version("stratlab")
    except PackageNotFoundError:
        return "unknown"
