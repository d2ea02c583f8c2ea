"""What this machine has to build images with: a tool, a base image, a way to the package indexes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
TOOLS = ("docker", "podman", "buildah")
BASE = "docker.io/library/debian:bookworm-slim"
LOCAL_BASE = "localhost/stratlab-base:bookworm"
NOTHING_TO_BUILD_WITH = 2
CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def find_tool() -> str:
    """The first tool that is there and works."""
    for tool in TOOLS:
        if not shutil.which(tool):
            continue
        done = subprocess.run(
            [tool, "info"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60
        )
        if done.returncode == 0:
            say(f"building with {tool}")
            return tool
        say(f"{tool} is there but does not work: {last_line(done.stderr)}")
    say(
        "no usable docker, podman or buildah: start docker's daemon, or apt-get install buildah [SL-no-image-tool]"
    )
    raise SystemExit(NOTHING_TO_BUILD_WITH)


def find_base(tool: str) -> str:
    """Debian's own image, or one made here where it cannot be pulled."""
    if is_there(tool, LOCAL_BASE):
        return LOCAL_BASE
    done = subprocess.run([tool, "pull", BASE], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return BASE
    say(f"{BASE} cannot be pulled: {last_line(done.stderr)}")
    say(f"making {LOCAL_BASE} from Debian's packages instead; --base IMAGE would build on another image")
    made = subprocess.run([FOLDER / "debian_base", tool, LOCAL_BASE])
    if made.returncode:
        raise SystemExit(made.returncode)
    return LOCAL_BASE


def is_there(tool: str, name: str) -> bool:
    """Whether this machine has an image of that name."""
    command = ["inspect", "--type", "image"] if tool == "buildah" else ["image", "inspect"]
    return subprocess.run([tool, *command, name], capture_output=True).returncode == 0


@contextlib.contextmanager
def write_secrets() -> Iterator[dict[str, Path]]:
    """What the build needs to reach this machine's package indexes: name -> file (see images/network.sh)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        secrets = {
            "ca": next((Path(os.environ[name]) for name in CA_VARIABLES if os.environ.get(name)), None),
            "pip": find_file("PIP_CONFIG_FILE", "~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf"),
            "uv": find_file("UV_CONFIG_FILE", "~/.config/uv/uv.toml", "/etc/uv/uv.toml"),
            "apt": folder / "apt",
        }
        (folder / "apt").write_text(read_apt_sources())
        index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL")
        if index:
            (folder / "pip.conf").write_text(f"[global]\nindex-url = {index}\n")
            (folder / "uv.toml").write_text(f'[[index]]\nurl = "{index}"\ndefault = true\n')
            secrets |= {"pip": folder / "pip.conf", "uv": folder / "uv.toml"}
        yield {key: path for key, path in secrets.items() if path and path.is_file() and path.stat().st_size}


def find_file(variable: str, *places: str) -> Path | None:
    """A program's configuration file: where its variable says, else the first that is there."""
    candidates = (
        [Path(os.environ[variable])] if os.environ.get(variable) else [Path(p).expanduser() for p in places]
    )
    return next((path for path in candidates if path.is_file()), None)


def find_uv_cache() -> Path | None:
    """uv's cache on this machine, if it is there: `make setup` has filled it with most of what the images need."""
    named = os.environ.get("UV_CACHE_DIR")
    folder = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "uv"
    return folder.absolute() if folder.is_dir() else None


def read_apt_sources() -> str:
    """This machine's sources.list, if it is a Debian 12; else nothing, and the base image's own is used."""
    if not shutil.which("apt-get"):
        return ""
    form = ["--format", "deb $(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages", "Origin: Debian"]
    done = subprocess.run(["apt-get", "indextargets", *form], capture_output=True, text=True)
    lines = dict.fromkeys(line for line in done.stdout.splitlines() if line.split()[2].startswith("bookworm"))
    return "".join(f"{line}\n" for line in lines)


def last_line(text: str) -> str:
    """The last line of a program's errors."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def say(text: str) -> None:
    """One line of progress."""
    print(f"images/build: {text}", file=sys.stderr, flush=True)


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Runs a program in the project's folder; ends this one with 1 where it fails."""
    done = subprocess.run(command, cwd=ROOT, env=environment or {**os.environ, "DOCKER_BUILDKIT": "1"})
    if done.returncode:
        say(
            f"{Path(command[0]).name} ended with {done.returncode} [SL-image-step-failed]: {' '.join(command)}"
        )
        raise SystemExit(1)
