"""Replaces a library of CUDA by one with the same name and functions, each of which ends the process with a sentence.

torch is linked against these libraries: the loader wants the file, and in it every function that torch names, before a
line of Python runs. On a CPU none is called. What stands in is a few kB instead of gigabytes.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

SENTENCE = (
    "{name} was called: this image is for CPUs [SL-gpu-library-called], "
    "build one for GPUs with images/build --variant cuda"
)
# write(2, sentence, its size), then exit_group(1): nothing that a library would have to bring along
ASSEMBLY = """
.text
stop:
    mov $1, %eax
    mov $2, %edi
    lea sentence(%rip), %rsi
    mov ${size}, %edx
    syscall
    mov $231, %eax
    mov $1, %edi
    syscall
.section .rodata
sentence: .ascii "{sentence}\\n"
.section .note.GNU-stack
.text
{functions}
"""
FUNCTION = ".globl {name}\n.type {name}, @function\n.set {name}, stop"
# readelf --dyn-syms: number, value, size, type, binding, visibility, section, name[@[@]version]
SYMBOL = re.compile(r"\s*\d+: \w+ +\w+ (\w+) +(\w+) +\w+ +(\w+) +([^@\s]+)(?:@+(\S+))?")


class Binutils:
    """as, ld and readelf below a folder that is not this system's root."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        libraries = ":".join(str(path) for path in sorted((folder / "lib").glob("*-linux-gnu")))
        self._env = {**os.environ, "LD_LIBRARY_PATH": libraries}

    def run(self, program: str, *arguments: object) -> str:
        command = [str(self._folder / "bin" / program), *map(str, arguments)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=self._env).stdout


def read_symbols(binutils: Binutils, library: Path) -> list[tuple[str, str, str, str, str]]:
    """(type, binding, section, name, version) of every dynamic symbol."""
    lines = binutils.run("readelf", "--dyn-syms", "--wide", library).splitlines()
    found = [match.groups(default="") for match in map(SYMBOL.match, lines) if match]
    assert found, f"{library}: no symbols"
    return found


def read_undefined(binutils: Binutils, libraries: Iterable[Path]) -> set[str]:
    """Names that these libraries expect from others."""
    symbols = (symbol for library in libraries for symbol in read_symbols(binutils, library))
    return {name for _, _, section, name, _ in symbols if section == "UND"}


def replace_library(binutils: Binutils, library: Path, wanted: set[str]) -> int:
    """Puts a stand-in in a library's place; returns the number of functions it has, those of `wanted` that it had.

    Raises:
        AssertionError: something else than a function is wanted of it.
    """
    versions: dict[str, list[str]] = defaultdict(list)
    for kind, _, section, name, version in read_symbols(binutils, library):
        if section not in ("UND", "ABS") and name in wanted:
            assert kind in ("FUNC", "IFUNC"), f"{library.name}: {name} is no function"
            versions[version].append(name)
    names = sorted(name for held in versions.values() for name in held)
    dynamic = binutils.run("readelf", "--dynamic", "--wide", library)
    (soname,) = re.findall(r"\(SONAME\).*\[(.+)\]", dynamic)
    sentence = SENTENCE.format(name=soname)
    with tempfile.TemporaryDirectory() as folder:
        source, code, map_file = (Path(folder) / name for name in ("stand_in.s", "stand_in.o", "versions"))
        functions = "\n".join(FUNCTION.format(name=name) for name in names)
        source.write_text(ASSEMBLY.format(size=len(sentence) + 1, sentence=sentence, functions=functions))
        binutils.run("as", "-o", code, source)
        nodes = [f"{v} {{ global: {' '.join(f'{n};' for n in held)} }};" for v, held in versions.items() if v]
        map_file.write_text("\n".join(nodes))
        library.unlink()
        options = ["--version-script", map_file] if nodes else []
        binutils.run("ld", "-shared", "-soname", soname, *options, "-o", library, code)
    return len(names)
