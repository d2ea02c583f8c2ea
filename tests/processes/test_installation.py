"""What is said where the code is, with pydantic at most, and the packages that it needs are not."""

import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALONE = ("pyyaml", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")


def installed(name: str) -> Distribution:
    """Of this environment; a build in the checkout leaves something of that name beside the code."""
    (found,) = distributions(name=name, path=[sysconfig.get_path("purelib")])
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code, what is known of its distributions, and pydantic."""
    folder = tmp_path_factory.mktemp("bare")
    for name in (*ALONE, "stratlab", "stratlab-trainer", "stratlab-spec"):
        for file in installed(name).files or []:
            top = Path(str(file)).parts[0]
            ours = top.startswith(("_", "stratlab", "trainer"))
            if top.endswith(".dist-info") or (top != ".." and not ours):
                link = folder / top
                if not link.exists():
                    link.symlink_to(Path(str(installed(name).locate_file(top))))
    for name in ("stratlab", "trainer", "stratlab_spec"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(bare: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Without site-packages."""
    env = {"PYTHONPATH": str(bare), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-S", *arguments], env=env, cwd=bare, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("-m", "stratlab", "compare", "results"), "stratlab"),
        (("-c", "from stratlab.__main__ import main; main()"), "stratlab"),  # the console script
        (("-m", "trainer"), "stratlab_trainer"),
        (("-m", "trainer.count", "--ranks", "1"), "stratlab_trainer"),
    ],
)
def test_one_sentence_says_what_to_install(bare: Path, arguments: tuple[str, ...], wanted: str) -> None:
    done = run(bare, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    said = [line for line in done.stderr.splitlines() if "loading torch" not in line]  # what is under way
    assert len(said) == 1 and f"dist/{wanted}-*.whl" in said[0]


@pytest.mark.parametrize("command", ["settings --schema", "program check", "mpi_launcher"])
def test_no_command_of_the_trainer_is_a_traceback_where_nothing_is_installed(
    tmp_path: Path, command: str
) -> None:
    for name in ("trainer", "stratlab_spec"):
        (tmp_path / name).symlink_to(ROOT / name)
    module, *arguments = command.split()
    done = run(tmp_path, "-m", f"trainer.{module}", *arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "[SL-package-absent]" in done.stderr


def test_version_and_schema_need_no_package(bare: Path) -> None:
    for module, owner in (("stratlab", "stratlab"), ("trainer", "stratlab-trainer")):
        done = run(bare, "-m", module, "--version")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split()[-1] == installed(owner).version
    assert run(bare, "-m", "trainer.settings", "--schema").returncode == 0


@pytest.mark.parametrize(("fails", "code", "tries"), [(2, 0, 3), (9, 2, 3)])
def test_an_installer_that_stops_is_started_again(tmp_path: Path, fails: int, code: int, tries: int) -> None:
    """Its step that writes bytecode times out on a busy machine, and what it has installed stays."""
    (tmp_path / "Makefile").symlink_to(ROOT / "Makefile")
    for name in ("requirements/dev.txt", "requirements/build.txt", "requirements/uv.txt", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    homes = [f"distributions/{name}/pyproject.toml" for name in ("stratlab-trainer", "stratlab-spec")]
    for name in ("VERSION", *homes, ".tools/bootstrap/ready"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".venv").mkdir()
    installer = tmp_path / "installer"
    installer.write_text(
        '#!/bin/sh\n[ "$2" = sync ] || exit 0\necho >> tries\n[ $(wc -l < tries) -gt $FAILS ]\n'
    )
    installer.chmod(0o755)
    command = ["make", ".venv/ready", f"UV={installer}", f"PYTHON={sys.executable}"]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "FAILS": str(fails)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert (tmp_path / "tries").read_text().count("\n") == tries
    assert (tmp_path / ".venv" / "ready").exists() is (code == 0)
