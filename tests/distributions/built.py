"""What is published, built as a stranger would, and environments to install it into. No network."""

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]
HOMES = {
    "stratlab": Path(),
    "stratlab-trainer": Path("distributions/stratlab-trainer"),
    "stratlab-spec": Path("distributions/stratlab-spec"),
}
PACKAGES = {"stratlab": "stratlab", "stratlab-trainer": "trainer", "stratlab-spec": "stratlab_spec"}
PIP, UV = ROOT / ".tools/bootstrap/bin/pip", ROOT / ".tools/bootstrap/bin/uv"
NEEDED = (
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "VERSION",
    *PACKAGES.values(),
    "distributions",
)
WITHOUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "build")


@dataclass(frozen=True)
class Built:
    """Of one distribution: its sdist, its wheel from the tree, and the wheel that its sdist alone gives."""

    sdist: Path
    wheel: Path
    again: Path


def copy_tree(folder):
    """What a build may read; a build leaves files beside the code."""
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=WITHOUT)
        else:
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def build(tree, name, out):
    """Builds the distribution three times, into folders of `out`."""
    home = tree / HOMES[name]
    sdist = call_backend("sdist", home, out / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(out / "unpacked")
    (unpacked,) = (out / "unpacked").iterdir()
    return Built(
        sdist, call_backend("wheel", home, out / "wheel"), call_backend("wheel", unpacked, out / "again")
    )


def call_backend(kind, home, out):
    """What `pip wheel --no-build-isolation` calls."""
    out.mkdir(parents=True)
    code = f"import sys; from setuptools.build_meta import build_{kind} as build; build(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, out], cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = out.iterdir()
    return made


def write_wheel(folder, name, version, files):
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    every = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    every[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*every, f"{info}/RECORD"])
    wheel = folder / f"{stem}-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        for path, text in every.items():
            archive.writestr(path, text)
    return wheel


def make_environment(folder, *, with_packages):
    """A fresh virtual environment's python; with packages it finds those of this one behind its own."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    if with_packages:
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def run_pip(python, verb, *arguments):
    done = subprocess.run(
        [PIP, "--python", python, verb, "--quiet", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def install(python, *wheels):
    for wheel in wheels:
        command = [UV, "pip", "install", "--python", python, "--offline", "--no-deps", wheel]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
