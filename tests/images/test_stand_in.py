"""What stands in for a library: the same name, functions and versions; each function ends the process and says why."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.codes import find_codes

sys.path.append(str(Path("images/trainer").resolve()))
from stand_in import Binutils, read_symbols, read_undefined, replace_library

pytestmark = pytest.mark.skipif(not shutil.which("as", path="/usr/bin"), reason="binutils is not installed")
BINUTILS = Binutils(Path("/usr"))

LARGE = """
.globl first
.type first, @function
first: mov $41, %eax
    ret
.globl second
.type second, @function
second: mov $42, %eax
    ret
.globl number
.type number, @object
.size number, 4
.data
number: .long 7
"""
USER = """
.globl use
.type use, @function
.text
use: sub $8, %rsp
    call first@PLT
    add $8, %rsp
    ret
"""


def link(folder, name, source, *more):
    (folder / "source.s").write_text(source)
    BINUTILS.run("as", "-o", folder / "code.o", folder / "source.s")
    BINUTILS.run("ld", "-shared", "-soname", name, "-o", folder / name, folder / "code.o", *more)
    return folder / name


@pytest.fixture
def libraries(tmp_path):
    """One that brings functions and a number, with versions, and one that calls a function of it."""
    (tmp_path / "versions").write_text("LARGE_1.0 { global: *; };")
    large = link(tmp_path, "liblarge.so.1", LARGE, "--version-script", tmp_path / "versions")
    return large, link(tmp_path, "libuser.so", USER, large)


def call(user):
    """Loads the user with everything bound at once, as Python loads torch, and calls its function."""
    code = f"import ctypes, os; u = ctypes.CDLL('{user}', os.RTLD_NOW); print('loaded', flush=True); print(u.use())"
    env = {**os.environ, "LD_LIBRARY_PATH": str(user.parent)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)


def test_it_is_loaded_in_the_others_place_and_ends_who_calls_it(libraries):
    large, user = libraries
    assert call(user).stdout.split() == ["loaded", "41"]
    version = {symbol[4] for symbol in read_symbols(BINUTILS, large) if symbol[3] == "first"}
    assert replace_library(BINUTILS, large, read_undefined(BINUTILS, [user])) == 1
    named = {
        symbol[3]: symbol[4] for symbol in read_symbols(BINUTILS, large) if symbol[2] not in ("UND", "ABS")
    }
    assert set(named) == {"first"} and {named["first"]} == version, "nothing that nobody asks for"
    done = call(user)
    assert (done.returncode, done.stdout.split()) == (1, ["loaded"]), done.stderr
    assert done.stderr.startswith("liblarge.so.1 ") and find_codes(done.stderr) == ["SL-gpu-library-called"]
