"""`python -m MODULE` as a fork of the warmed process of tests/ranks.py: a run starts in a second, not in ten.

For what a program does, not for how it starts: a test of that calls `sys.executable`. The program is a process with
the arguments, environment, folder, files and mounts that it was given; `find_python` names what stands for its
interpreter, which passes signals on and ends as the program has ended. It is `sys.executable` to the program, so that
torch's launcher starts its ranks, and a rehearsal its pods, in the same way. What a library reads from the environment
while it is imported is the warmed process's.

The stand-in is `python -IS tests/programs.py SOCKET ARGUMENTS...`: this file imports nothing that starts slowly.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import sys

WARM = (
    "trainer", "trainer.worker", "trainer.environment", "trainer.environment.rank", "trainer.evaluate", "stratlab",
)  # fmt: skip
"""Modules that gain by it; all else gets an interpreter of its own."""
STARTS = b"p"
"""First byte of a conversation with the warmed process."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
NAMESPACES = ("user", "mnt")
HANDLES = 3 + len(NAMESPACES)


def write_stand_in(address: str) -> None:
    """Files `python` and `stratlab` beside the socket of the warmed process, as in a `bin` of an environment."""
    client = f"exec '{sys.executable}' -IS '{os.path.abspath(__file__)}' '{address}'"
    for name, arguments in (("python", ""), ("stratlab", "-m stratlab ")):
        path = os.path.join(os.path.dirname(address), name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\n{client} {arguments}"$@"\n')
        os.chmod(path, 0o755)


def find_python() -> str:
    from tests.session import find_server
    from tests.tiers import refuse_in_fast

    refuse_in_fast("programs")
    return os.path.join(os.path.dirname(find_server("tests.ranks")), "python")


def stand_in(address: str, arguments: list[str]) -> None:
    """Has the program started, passes signals on, ends like it."""
    flag, module, *rest = [argument for argument in arguments if argument != "-u"] or ["", ""]
    if flag != "-m" or module not in WARM:
        os.execv(sys.executable, [sys.executable, *arguments])
    line = socket.socket(socket.AF_UNIX)
    line.connect(address)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: line.send(bytes([number])))
    handles = [0, 1, 2, *(os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES)]
    program = {
        "python": os.path.join(os.path.dirname(address), "python"), "module": module, "arguments": rest,
    }  # fmt: skip
    asked = json.dumps({**program, "env": dict(os.environ), "folder": os.getcwd()}).encode()
    socket.send_fds(line, [STARTS], handles)
    line.sendall(struct.pack("Q", len(asked)) + asked)
    answer = line.recv(4)
    code = struct.unpack("i", answer)[0] if answer else 1
    if code < 0:
        if -code != signal.SIGKILL:  # which nobody can handle
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def serve_program(line: socket.socket, handles: list[int]) -> None:
    """The warmed process's side: forks the program, and waits for its end or that of its stand-in."""
    import select

    from tests.budget import charge

    with line.makefile("rb", buffering=0) as asked:
        (size,) = struct.unpack("Q", asked.read(8))
        body = b""
        while len(body) < size:
            body += asked.read(size - len(body))
    asked_for = json.loads(body)
    program = os.fork()
    if program == 0:
        line.close()
        _be_program(handles, **asked_for)
    for handle in handles:
        os.close(handle)
    ended = os.pidfd_open(program)
    while True:
        ready, _, _ = select.select([ended, line], [], [])
        if ended in ready:
            _, status, spent = os.wait4(program, 0)
            if test := asked_for["env"].get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]:
                charge(spent.ru_utime + spent.ru_stime, test)
            with contextlib.suppress(OSError):
                line.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))
            return
        for number in line.recv(16) or [signal.SIGKILL]:
            os.kill(program, number)


def _be_program(
    handles: list[int], python: str, module: str, arguments: list[str], env: dict[str, str], folder: str
) -> None:
    """Does not return. The end of an interpreter without what belongs to the warmed process alone."""
    import atexit
    import random
    import runpy
    import threading
    import traceback

    code = 1
    try:
        os.setsid()
        random.seed()  # pods that wait alike between tries would not meet
        _enter_mounts(handles[3:])
        for place, handle in enumerate(handles[:3]):
            os.dup2(handle, place)
        os.closerange(3, max(handles) + 1)
        sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
            2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        os.environ.clear()
        os.environ.update(env)
        os.chdir(folder)
        sys.executable, sys.argv = python, [module, *arguments]
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else stop.code is not None
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


def _enter_mounts(namespaces: list[int]) -> None:
    """The mounts that the stand-in sees, if they are not ours; setns(2) asks for a single thread, as a fork has."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    for handle, name in zip(namespaces, NAMESPACES, strict=True):
        own, theirs = os.stat(f"/proc/self/ns/{name}"), os.stat(handle)
        if own.st_ino != theirs.st_ino and libc.setns(handle, 0):
            raise OSError(ctypes.get_errno(), f"setns {name}")


if __name__ == "__main__":
    stand_in(sys.argv[1], sys.argv[2:])
