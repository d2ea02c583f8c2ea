"""The charts as packages, and into a registry: each with the library inside, so that one file is enough.

    python charts/packages.py dist/charts                                          # or: make packages
    python charts/packages.py dist/charts --push oci://registry.example/team       # after: helm registry login

Version and appVersion are those of VERSION.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from stratlab import UserError
from stratlab.helm import find_helm

CHARTS = Path(__file__).parent
LIBRARY = "run"
SCHEME = "oci://"
TIMEOUT_S = 300


def package_charts(helm: Path, charts: Path, version: str, output: Path) -> list[Path]:
    """Writes one package per chart that can be installed, in the order of their names.

    Raises:
        UserError: with helm's words.
    """
    output.mkdir(parents=True, exist_ok=True)
    names = sorted(file.parent.name for file in charts.glob("*/Chart.yaml") if file.parent.name != LIBRARY)
    for name in names:
        told = ["--version", version, "--app-version", version, "--destination", str(output)]
        run_helm(helm, ["package", str(charts / name), *told])
    return [output / f"{name}-{version}.tgz" for name in names]


def push_packages(helm: Path, packages: Sequence[Path], registry: str, plain_http: bool) -> None:
    """Each package to `registry`/<name>:<version>.

    Args:
        registry: oci://host/folder.
        plain_http: the registry speaks HTTP without TLS.

    Raises:
        UserError: with helm's words; what was pushed before stays there.
    """
    for package in packages:
        run_helm(helm, ["push", str(package), registry, *(["--plain-http"] if plain_http else [])])
        print(f"pushed {package.name} to {registry}", flush=True)


def run_helm(helm: Path, arguments: Sequence[str]) -> None:
    """Calls helm; its notes on linked folders are left out.

    Raises:
        UserError: it failed, or took longer than five minutes.
    """
    try:
        done = subprocess.run([helm, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"helm {arguments[0]} {arguments[1]}: no end after {TIMEOUT_S} s [SL-helm-timeout]"
        ) from None
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if "found symbolic link" not in line]
        text = "\n".join(words).removeprefix("Error: ")
        raise UserError(f"helm {arguments[0]} {arguments[1]}: {text} [SL-helm-failed]")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="packages", description="Packs all charts, and pushes them if told."
    )
    parser.add_argument("output", type=Path, help="folder of the packages")
    parser.add_argument("--push", metavar="REGISTRY", default="", help="oci://registry.example/team")
    parser.add_argument("--plain-http", action="store_true", help="the registry has no TLS")
    given = parser.parse_args(arguments)
    version = (CHARTS.parent / "VERSION").read_text().strip()
    try:
        if given.push and not given.push.startswith(SCHEME):
            raise UserError(f"REGISTRY={given.push}: expected {SCHEME}HOST/FOLDER [SL-registry-scheme]")
        packages = package_charts(find_helm(), CHARTS, version, given.output)
        print(f"{len(packages)} packages of version {version} in {given.output}", flush=True)
        if given.push:
            push_packages(find_helm(), packages, given.push.rstrip("/"), given.plain_http)
    except UserError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
