"""What is said where `pip install stratlab` brought its one dependency and nothing of the extras."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALONE = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of `pip install stratlab`: its code, and pydantic."""
    folder = tmp_path_factory.mktemp("bare")
    for name in (*ALONE, "stratlab"):
        for file in distribution(name).files or []:
            top = Path(str(file)).parts[0]
            ours = top.startswith(("_", "stratlab", "trainer"))
            if top.endswith(".dist-info") or (top != ".." and not ours):
                link = folder / top
                if not link.exists():
                    link.symlink_to(Path(str(distribution(name).locate_file(top))))
    for name in ("stratlab", "trainer"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(bare: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Without site-packages."""
    env = {"PYTHONPATH": str(bare), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-S", *arguments], env=env, cwd=bare, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("-m", "stratlab", "--help"), "lab"),
        (("-m", "stratlab", "compare", "results"), "lab"),
        (("-c", "from stratlab.__main__ import main; main()"), "lab"),  # the console script
        (("-m", "trainer"), "trainer"),
        (("-m", "trainer", "--help"), "trainer"),
        (("-m", "trainer.count", "--ranks", "1"), "trainer"),
    ],
)
def test_one_sentence_says_what_to_install(bare: Path, arguments: tuple[str, ...], extra: str) -> None:
    done = run(bare, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.endswith(f"which is not installed here: pip install 'stratlab[{extra}]'\n")


@pytest.mark.parametrize(
    "command",
    ["settings --schema", "layout --help", "evaluate x", "check", "prepare", "mpi_launcher", "count --help"],
)
def test_no_command_of_the_trainer_is_a_traceback_where_nothing_is_installed(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "trainer").symlink_to(ROOT / "trainer")
    module, *arguments = command.split()
    done = run(tmp_path, "-m", f"trainer.{module}", *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("the trainer needs "), done.stderr


@pytest.mark.parametrize(("module", "name"), [("stratlab", "stratlab"), ("trainer", "stratlab trainer")])
def test_the_version_needs_no_package(bare: Path, module: str, name: str) -> None:
    done = run(bare, "-m", module, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{name} {distribution('stratlab').version}\n"


def test_what_needs_no_package_works_without(bare: Path) -> None:
    assert run(bare, "-m", "trainer.settings", "--schema").returncode == 0


def test_the_script_of_the_wheel_is_the_one_that_says_so() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"stratlab": "stratlab.__main__:main"}
