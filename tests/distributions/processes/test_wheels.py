"""What is in the wheels and sdists of both distributions, and what they say of themselves."""

from __future__ import annotations

import subprocess
import tomllib
from email import message_from_string
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.distributions.built import HOMES, PACKAGES, ROOT, Built, install, make_environment

VERSION = (ROOT / "VERSION").read_text().strip()
each = pytest.mark.parametrize("name", HOMES)


def read_contents(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {path: archive.read(path) for path in archive.namelist()}


def read_metadata(wheel: Path) -> Message:
    contents = read_contents(wheel)
    (path,) = (path for path in contents if path.endswith(".dist-info/METADATA"))
    return message_from_string(contents[path].decode())


@each
def test_the_wheel_holds_its_import_package_whole_and_nothing_else(
    name: str, built: dict[str, Built]
) -> None:
    wheel = built[name].wheel
    assert wheel.name == f"{name.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-{VERSION}.dist-info/"
    found = {path for path in read_contents(wheel) if not path.startswith(info)}
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", PACKAGES[name]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    there = {path for path in listing.stdout.split() if (ROOT / path).is_file()}
    assert f"{PACKAGES[name]}/py.typed" in there
    assert found == there


@each
def test_the_sdist_alone_gives_the_same_wheel(name: str, built: dict[str, Built]) -> None:
    sdist, wheel, again = built[name].sdist, built[name].wheel, built[name].again
    assert sdist.name == f"{name.replace('-', '_')}-{VERSION}.tar.gz"
    assert read_contents(again) == read_contents(wheel)


@each
def test_what_the_wheel_says_of_itself(name: str, built: dict[str, Built]) -> None:
    project = tomllib.loads((ROOT / HOMES[name] / "pyproject.toml").read_text())["project"]
    told = read_metadata(built[name].wheel)
    assert (told["Name"], told["Version"], told["License-Expression"]) == (name, VERSION, "Apache-2.0")
    assert told["Requires-Python"] == "<3.13,>=3.11" and told["License-File"] == "LICENSE"
    needs = told.get_all("Requires-Dist") or []
    assert [need for need in needs if "extra ==" not in need] == project["dependencies"]
    assert set(told.get_all("Provides-Extra") or []) == project.get("optional-dependencies", {}).keys()
    names = {need.partition("=")[0] for need in needs}
    assert ("torch" in names) == (name == "stratlab-trainer")
    assert ("mlflow" in names) == (name == "stratlab")


def test_both_in_one_environment(built: dict[str, Built], tmp_path: Path) -> None:
    python = make_environment(tmp_path / "environment", with_packages=True)
    install(python, *(each.wheel for each in built.values()))
    for command, answer in (
        ([python.with_name("stratlab"), "--version"], f"stratlab {VERSION}\n"),
        ([python, "-m", "trainer", "--version"], f"stratlab trainer {VERSION}\n"),
        ([python, "-c", "import trainer; print(trainer.__file__.split('/')[-3])"], "site-packages\n"),
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (answer, "")
    assert [path.name for path in (tmp_path / "environment" / "bin").glob("*rat*")] == ["stratlab"]
