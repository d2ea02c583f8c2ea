"""Another distribution installs an import package `trainer` too: who notices, and what is said."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stratlab.helm import find_helm
from stratlab.trainer_program import explain_trainer
from tests.codes import find_codes
from tests.distributions.built import ROOT, Built, install, make_environment, run_pip, write_wheel

THEIRS = {"trainer/__init__.py": "", "trainer/trainer.py": "", "trainer/io.py": ""}
BROKEN = {"trainer/__init__.py": "import no_such_package\n"}
Environment = Callable[..., Path]
Install = Callable[[Path, Path], None]


@pytest.fixture
def environment(tmp_path: Path, built: dict[str, Built], monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Makes an environment with these in this order: `ours`, or the files of `neural-trainer`."""
    monkeypatch.chdir(tmp_path)  # the folder where one works comes first on Python's path

    def make(*order: str | dict[str, str], by: Install = install, with_packages: bool = True) -> Path:
        python = make_environment(tmp_path / "environment", with_packages=with_packages)
        for files in order:
            theirs = "" if isinstance(files, str) else write_wheel(tmp_path, "neural-trainer", "0.3.1", files)
            by(python, Path(theirs or built["stratlab-trainer"].wheel))
        return python

    return make


def install_by_pip(python: Path, wheel: Path) -> None:
    run_pip(python, "install", "--no-index", "--no-deps", wheel)


def run(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{python.parent}:/usr/bin:/bin", "STRATLAB_HELM": str(find_helm())}
    return subprocess.run([python, *arguments], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("order", [("ours", THEIRS), (THEIRS, "ours")], ids=["ours first", "theirs first"])
def test_the_trainer_names_who_has_written_over_it_and_the_cure_cures(
    environment: Environment, built: dict[str, Built], order: tuple[str | dict[str, str], ...]
) -> None:
    python = environment(*order, by=install_by_pip)
    for words in (("trainer",), ("trainer.program", "check"), ("trainer.count",)):
        done = run(python, "-m", *words, "--help")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "neural-trainer 0.3.1" in done.stderr and "pip uninstall neural-trainer" in done.stderr
    run_pip(python, "uninstall", "--yes", "neural-trainer")
    wheel = built["stratlab-trainer"].wheel
    run_pip(python, "install", "--no-index", "--force-reinstall", "--no-deps", wheel)
    done = run(python, "-m", "trainer", "--help")
    assert (done.returncode, done.stderr) == (0, "") and explain_trainer(str(python), {}) == ""


def test_one_that_is_found_later_is_not_in_the_way(environment: Environment, tmp_path: Path) -> None:
    python = environment("ours")
    later = tmp_path / "later"
    run_pip(python, "install", "--no-index", "--target", later, write_wheel(tmp_path, "late", "1", THEIRS))
    (site,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    with open(site / "packages.pth", "a") as file:
        file.write(f"{later}\n")
    done = run(python, "-m", "trainer", "--help")
    assert (done.returncode, done.stderr) == (0, "") and explain_trainer(str(python), {}) == ""


def test_a_rehearsal_names_one_that_python_takes_for_ours(
    environment: Environment, built: dict[str, Built], tmp_path: Path
) -> None:
    python = environment("ours", BROKEN)
    install(python, built["stratlab"].wheel)
    done = run(python, "-m", "stratlab", "rehearse", ROOT / "charts/ddp", "--results", "runs")
    assert done.returncode == 2 and find_codes(done.stderr) == ["SL-trainer-of-others"]
    assert "neural-trainer 0.3.1" in done.stderr and not (tmp_path / "runs").exists()


def test_none_is_told_from_another_s(environment: Environment, tmp_path: Path) -> None:
    python = environment(with_packages=False)
    assert find_codes(explain_trainer(str(python), {})) == ["SL-trainer-not-installed"]
    install(python, write_wheel(tmp_path, "neural-trainer", "0.3.1", THEIRS))
    assert find_codes(explain_trainer(str(python), {})) == ["SL-trainer-of-others"]
    (tmp_path / "trainer.py").write_text("")
    told = explain_trainer(str(python), {})
    assert f"{tmp_path}/trainer.py" in told
