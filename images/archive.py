"""What becomes of an image that is built: an archive with its list of contents, or a place in a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from machine import ROOT, run, say


def save_command(tool: str, name: str, archive: str) -> list[str]:
    """The command that writes an image as "docker save" does; without a file for "", to standard output."""
    if tool == "buildah":
        return [tool, "push", "--quiet", name, f"docker-archive:{archive or '/dev/stdout'}:{name}"]
    return [tool, "save", *(["--output", archive] if archive else []), name]


def write_archive(tool: str, name: str, archive: Path) -> None:
    """Writes an image as "docker save" does."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    started = time.monotonic()
    run(save_command(tool, name, str(archive)))
    say(f"{archive}: {archive.stat().st_size / 1e9:.2f} GB, {time.monotonic() - started:.0f} s")


def write_sbom(archive: Path) -> None:
    """Writes what an archive contains as CycloneDX JSON beside it, if syft is there."""
    syft = shutil.which(ROOT / ".tools" / "scan" / "bin" / "syft") or shutil.which("syft")
    if not syft:
        say(f"no SBOM of {archive}: syft is not there; `make .tools/scan/ready` installs it")
        return
    sbom = archive.with_suffix(".cdx.json")
    environment = {**os.environ, "SYFT_CHECK_FOR_APP_UPDATE": "false"}
    started = time.monotonic()
    run(
        [syft, "scan", "--quiet", f"docker-archive:{archive}", "--output", f"cyclonedx-json={sbom}"],
        environment,
    )
    say(f"{sbom}: SBOM, {time.monotonic() - started:.0f} s")


@dataclass
class Loading:
    """An image on its way into a cluster."""

    name: str
    programs: list[subprocess.Popen[bytes]]
    started: float

    def wait(self) -> None:
        """Until it is there; ends this program with 1 where it fails."""
        codes = [program.wait() for program in self.programs]
        if any(codes):
            say(f"{self.name} was not loaded: the programs ended with {codes} [SL-image-not-loaded]")
            raise SystemExit(1)
        say(f"{self.name} loaded, {time.monotonic() - self.started:.0f} s after it was built")


def start_loading(tool: str, name: str, program: Path) -> Loading:
    """An archive goes through a pipe: no file of gigabytes is written and read."""
    started = time.monotonic()
    save = subprocess.Popen(save_command(tool, name, ""), stdout=subprocess.PIPE)
    load = subprocess.Popen([program, "/dev/stdin"], stdin=save.stdout)
    assert save.stdout
    save.stdout.close()  # the other program's alone: it sees the end, and the first one a broken pipe
    return Loading(name, [save, load], started)
