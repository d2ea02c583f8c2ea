"""Pack a folder that suffices on a bare GPU machine: code, and the packages that are missing there.

    make gpu-kit                                     writes gpu-kit/
    python -m benchmarks.gpu.kit --uv UV OUT

The machine needs no installation: `site/` holds the packages unpacked, for CPython 3.12 on x86-64 Linux, and `start`
makes an interpreter that finds them before the machine's own. The versions are the project's pins
(requirements/gpu_kit.txt).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.stages import PARTS, STAGES

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements" / "gpu_kit.txt"
PYTHON, PLATFORM, TAG = "3.12", "x86_64-manylinux_2_28", "cpython-312"
CODE = ("stratlab_spec", "trainer", "stratlab", "benchmarks/gpu")
ENTRIES = {Path(name).parts[0] for name in CODE} | {"start", "site", "README.md", "__pycache__"}
LARGEST_MB = 30.0
UNUSED = ("bin", "**/*.pyx", "**/*.c", "**/tests", "**/__pycache__")


class BadKit(Exception):
    """The kit could not be made, or would not start."""


def build_kit(out: Path, uv: Path) -> None:
    """Write the kit to a temporary folder next to `out` and rename it.

    Raises:
        BadKit: a package is missing for this Python and platform, or the kit is too large.
    """
    check_replaceable(out)
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    copy_code(temporary)
    fetch_packages(temporary / "site", uv)
    (temporary / "README.md").write_text(build_readme())
    check_kit(temporary)
    shutil.rmtree(out, ignore_errors=True)
    temporary.rename(out)


def check_replaceable(out: Path) -> None:
    """Check that a kit replaces only a kit, not results in its folder.

    Raises:
        BadKit: `out` is not a folder, or holds a file that does not belong to a kit.
    """
    if not out.exists():
        return
    other = sorted(path.name for path in out.iterdir() if path.name not in ENTRIES) if out.is_dir() else [""]
    if other:
        raise BadKit(
            f"{out}: {other[0] or 'a file'} there is not part of a kit; move it elsewhere first [SL-kit-replaces]"
        )


def copy_code(kit: Path) -> None:
    """Copy the code of this checkout, and the start script."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in CODE:
        shutil.copytree(ROOT / name, kit / name, ignore=ignore)
    start = kit / "start"
    shutil.copyfile(Path(__file__).with_name("start_kit.py"), start)
    start.chmod(0o755)


def fetch_packages(site: Path, uv: Path) -> None:
    """Unpack the locked packages for the other Python; DeepSpeed is built from its source without its kernels."""
    lock = ["--no-deps", "--require-hashes", "--build-constraints", ROOT / "requirements" / "build.txt"]
    wanted = ["--python-platform", PLATFORM, "--python-version", PYTHON, "--python", sys.executable]
    command = [uv, "pip", "install", "--quiet", "--target", site, *lock, *wanted, "-r", REQUIREMENTS]
    env = {**os.environ, "DS_BUILD_OPS": "0"}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=env)
    if done.returncode:
        raise BadKit(
            f"the packages of {REQUIREMENTS.name} could not be fetched:\n{done.stderr.strip()} [SL-kit-packages]"
        )
    for pattern in UNUSED:
        for path in [*site.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def check_kit(kit: Path) -> None:
    """Check that it is small enough and made for the one Python.

    Raises:
        BadKit: with every problem.
    """
    foreign = [path.relative_to(kit) for path in kit.rglob("*.so*") if TAG not in path.name]
    wrong = [f"{path} is not for {TAG} [SL-kit-python]" for path in foreign]
    missing = [name for name in ("start", *CODE, "site") if not (kit / name).exists()]
    wrong += [f"{name} is missing [SL-kit-part-missing]" for name in missing]
    if (size := measure_mb(kit)) >= LARGEST_MB:
        wrong.append(f"{size:.1f} MB, allowed: below {LARGEST_MB:.0f} [SL-kit-too-large]")
    if wrong:
        raise BadKit("; ".join(wrong))


def measure_mb(place: Path) -> float:
    """Return bytes of a file, or of all files of a folder, in MB."""
    return sum(path.stat().st_size for path in (place, *place.rglob("*")) if path.is_file()) / 1e6


def start_lines() -> list[str]:
    """Return one per part, with its minutes and stages."""
    found = []
    for part in PARTS:
        stages = [stage for stage in STAGES if stage.part == part]
        minutes = sum(stage.budget_s for stage in stages) / 60
        names = ", ".join(stage.name for stage in stages)
        found.append(f"./start --part {part} --out RESULTS    # {minutes:.1f} minutes: {names}")
    return found


def build_readme() -> str:
    """Return how to start it."""
    lines = "\n".join(f"    {line}" for line in start_lines())
    return f"""# stratlab on a bare GPU machine

Needs Python {PYTHON} with torch and transformers, and no network. In this folder:

{lines}
    ./start --device cpu --tiny --out RESULTS    # without a GPU: every stage's code
    ./start --read RESULTS                       # what came out, as tables
    ./start --help

Of several Pythons: `/path/to/python{PYTHON} start --part 1 --out RESULTS`. What comes back is at most
8 files, each below 16 MiB.
"""


def main(arguments: list[str]) -> int:
    """Make the kit; print its content and the command to start it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.kit", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "gpu-kit", help="default: gpu-kit/")
    parser.add_argument("--uv", type=Path, default=ROOT / ".tools/bootstrap/bin/uv", help="the installer")
    options = parser.parse_args(arguments)
    try:
        build_kit(options.out.resolve(), options.uv)
    except BadKit as problem:
        print(f"gpu-kit: {problem}", file=sys.stderr)
        return 1
    for path in sorted(options.out.iterdir()):
        print(f"  {measure_mb(path):6.2f} MB  {path.name}")
    print(f"{options.out.name}: {measure_mb(options.out):.1f} MB")
    print("\non the machine, in the folder:", *start_lines(), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
