"""Adapt commands to this machine: certificates, environment, signals, full volumes, paths, version and processes.

`Processes` starts processes and ends all their descendants. torch's elastic launcher starts its workers in sessions of
their own, so a process group does not reach them: all descendants carry the same unique variable.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from stratlab import UserError
from stratlab_spec.certificates import GIVEN, CertificateAbsent, is_untrusted, write_bundle

if TYPE_CHECKING:
    import psutil  # at run time only where processes start: `--help` and `--version` need no package

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


MARK = "STRATLAB_REHEARSAL"
TICK_S = 0.1
CRASH = "Fatal Python error"
"""First text of a dump of Python's faulthandler."""
EXTENSIONS = "Extension modules:"
"""Start of its last line, which has some thousand characters."""
SEARCHED_BYTES = 1 << 20  # of the end of a log: the peers of a dead process print much after it
PORTS = range(20000, 32768)  # Linux gives outgoing connections ports from 32768, others from 49152
LEAST_S, MOST_S = 5.0, 60.0
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


class Processes:
    """Track the processes started here, and all their descendants."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self, arguments: Sequence[str], env: Mapping[str, str], log: Path, *, folder: str | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own; its output is appended to `log`.

        Raises:
            UserError: the program does not exist.
        """
        with log.open("ab") as output:
            try:
                process = subprocess.Popen(
                    list(arguments),
                    env={**env, MARK: self.mark},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            except (FileNotFoundError, PermissionError) as failure:
                raise UserError(
                    f"{arguments[0]}: cannot be started ({failure.strerror}) [SL-program-not-started]"
                ) from failure
        self.started.append(process)
        return process

    def members(self) -> list[psutil.Process]:
        """Return every living process that carries the mark."""
        import psutil

        return [process for process in psutil.process_iter() if self._is_member(process)]

    def _is_member(self, process: psutil.Process) -> bool:
        import psutil

        try:
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False

    def stop(self, grace_s: float = 10.0) -> None:
        """End all processes: send SIGTERM to the groups; kill the rest once they are gone, or after `grace_s`.

        Also in a container, the remaining processes are killed as soon as its first process has ended.
        """
        import psutil

        for process in self._running():
            _signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self._running() and time.monotonic() < deadline:
            time.sleep(TICK_S)
        for process in self._running():
            _signal_group(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10.0
        while (left := self.members()) and time.monotonic() < deadline:
            for member in left:
                try:
                    member.kill()
                except psutil.Error:
                    continue
            time.sleep(0.02)
        for process in self.started:
            if not _has_ended(process):
                process.wait(timeout=10.0)
        self.started.clear()

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.started if not _has_ended(process)]


def _end_with_parent() -> None:
    """Request SIGTERM for a process whose parent was killed: a second start would meet it in the run's folder.

    The kernel watches the thread that started it (prctl(2)): use one that lives as long as the process.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the process has ended, also asking the kernel.

    `process.poll` and `process.wait` always fail if a signal's handler raised while either held Popen's lock
    (subprocess.py, `_internal_poll` and `_wait`).
    """
    if process.poll() is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def free_port() -> int:
    """Return a TCP port without a listener, from below the ports that systems give to outgoing connections.

    The system may give a port that it picked itself to another connection, until the intended process has bound it.

    Raises:
        UserError: no free port was found in many tries.
    """
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise UserError(f"no free TCP port found between {PORTS.start} and {PORTS.stop - 1} [SL-no-free-port]")


def exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code as a shell or a container does: 128 + n for signal n; None while it runs."""
    code = process.poll()
    return 128 - code if code is not None and code < 0 else code


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log file, preceded by the stack of a process that a signal ended.

    The output of its peers would otherwise hide this stack.
    """
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - SEARCHED_BYTES))
        text = file.read().decode(errors="replace").strip()
    found = [line for line in text.splitlines() if not line.startswith(EXTENSIONS)]
    last = max(0, len(found) - lines)
    crash = next((i for i, line in enumerate(found[:last]) if line.startswith(CRASH)), last)
    if crash + lines < last:
        return "\n".join([*found[crash : crash + lines], "...", *found[last:]])
    return "\n".join(found[crash:])


class GrowingWait:
    """Compute how long until a message is repeated: twice as long each time, at most a minute.

    The wait begins with a message. Times are seconds of one clock.
    """

    def __init__(self, began: float, least_s: float = LEAST_S) -> None:
        self.began, self.told = began, began
        self.wait_s, self.least_s = least_s, least_s

    def is_over(self, now: float) -> bool:
        """Return whether to repeat the message; if so, lengthen the next wait."""
        if now - self.told < self.wait_s:
            return False
        self.told, self.wait_s = now, min(2 * self.wait_s, max(MOST_S, self.least_s))
        return True

    def is_least_over(self, now: float) -> bool:
        """Return whether a new message may be printed."""
        return now - self.told >= self.least_s
