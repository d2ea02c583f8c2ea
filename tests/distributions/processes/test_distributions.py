"""What is in the wheels and sdists; another's `trainer` in the way; the tools' wheel alone in an empty environment.

There each command that needs no trainer works, and those that train say what to install besides. No file of the
repository is near.
"""

import json
import subprocess
import tomllib
from email import message_from_string
from zipfile import ZipFile

import pytest

from charts.packages import package_charts
from stratlab.helm import find_helm
from stratlab.trainer_program import explain_trainer
from tests.codes import find_codes
from tests.distributions.built import (
    HOMES,
    PACKAGES,
    ROOT,
    UV,
    install,
    make_environment,
    run_pip,
    write_wheel,
)
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.simulated.small import build_cpu_trace, write_run

VERSION = (ROOT / "VERSION").read_text().strip()
each = pytest.mark.parametrize("name", HOMES)


def read_contents(wheel):
    with ZipFile(wheel) as archive:
        return {path: archive.read(path) for path in archive.namelist()}


def read_metadata(wheel):
    contents = read_contents(wheel)
    (path,) = (path for path in contents if path.endswith(".dist-info/METADATA"))
    return message_from_string(contents[path].decode())


@each
def test_the_wheel_holds_its_import_package_whole_and_nothing_else(name, built):
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
    assert f"{PACKAGES[name]}/py.typed" in there and found == there


@each
def test_the_sdist_alone_gives_the_same_wheel(name, built):
    sdist, wheel, again = built[name].sdist, built[name].wheel, built[name].again
    assert sdist.name == f"{name.replace('-', '_')}-{VERSION}.tar.gz"
    assert read_contents(again) == read_contents(wheel)


@each
def test_what_the_wheel_says_of_itself(name, built):
    project = tomllib.loads((ROOT / HOMES[name] / "pyproject.toml").read_text())["project"]
    told = read_metadata(built[name].wheel)
    assert (told["Name"], told["Version"], told["License-Expression"]) == (name, VERSION, "Apache-2.0")
    assert told["Requires-Python"] == "<3.13,>=3.11" and told["License-File"] == "LICENSE"
    needs = told.get_all("Requires-Dist") or []
    assert [need for need in needs if "extra ==" not in need] == project["dependencies"]
    assert set(told.get_all("Provides-Extra") or []) == project.get("optional-dependencies", {}).keys()
    names = {need.partition("=")[0] for need in needs}
    assert ("torch" in names) == (name == "stratlab-trainer") and ("mlflow" in names) == (name == "stratlab")


def test_all_in_one_environment(built, tmp_path):
    python = make_environment(tmp_path / "environment", with_packages=True)
    install(python, *(each.wheel for each in built.values()))
    for command, answer in (
        ([python.with_name("stratlab"), "--version"], f"stratlab {VERSION}\n"),
        ([python, "-m", "trainer", "--version"], f"stratlab trainer {VERSION}\n"),
        ([python, "-c", "import trainer; print(trainer.__file__.split('/')[-3])"], "site-packages\n"),
    ):
        env = {"PATH": f"{python.parent}:/usr/bin:/bin"}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (answer, "")
    assert [path.name for path in (tmp_path / "environment" / "bin").glob("*rat*")] == ["stratlab"]


THEIRS = {"trainer/__init__.py": "", "trainer/trainer.py": "", "trainer/io.py": ""}


@pytest.fixture
def environment(tmp_path, built, monkeypatch):
    """Makes an environment with these in this order: `ours` with what both know, or the files of `neural-trainer`."""
    monkeypatch.chdir(tmp_path)  # the folder where one works comes first on Python's path

    def make(*order, by=install, with_packages=True):
        python = make_environment(tmp_path / "environment", with_packages=with_packages)
        for files in order:
            if isinstance(files, str):
                by(python, built["stratlab-spec"].wheel)
                by(python, built["stratlab-trainer"].wheel)
            else:
                by(python, write_wheel(tmp_path, "neural-trainer", "0.3.1", files))
        return python

    return make


def install_by_pip(python, wheel):
    run_pip(python, "install", "--no-index", "--no-deps", wheel)


def run(python, *arguments):
    env = {"PATH": f"{python.parent}:/usr/bin:/bin", "STRATLAB_HELM": str(find_helm())}
    return subprocess.run([python, *arguments], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("order", [("ours", THEIRS), (THEIRS, "ours")], ids=["ours first", "theirs first"])
def test_the_trainer_names_who_has_written_over_it_and_the_cure_cures(environment, built, order):
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


def test_none_is_told_from_another_s(environment, tmp_path):
    python = environment(with_packages=False)
    assert find_codes(explain_trainer(str(python), {})) == ["SL-trainer-not-installed"]
    install(python, write_wheel(tmp_path, "neural-trainer", "0.3.1", THEIRS))
    assert find_codes(explain_trainer(str(python), {})) == ["SL-trainer-of-others"]
    (tmp_path / "trainer.py").write_text("")
    told = explain_trainer(str(python), {})
    assert f"{tmp_path}/trainer.py" in told


MOST_BYTES = 2_000_000


@pytest.fixture(scope="module")
def python(built, tmp_path_factory):
    """That of the environment. Packages come from what the set-up has kept, else from the index."""
    python = make_environment(tmp_path_factory.mktemp("empty") / "environment", with_packages=False)
    command = [UV, "pip", "install", "--quiet", "--python", python, "--constraint"]
    command += [ROOT / "requirements/dev.txt", built["stratlab"].wheel, built["stratlab-spec"].wheel]
    for offline in (["--offline"], []):
        done = subprocess.run([*command, *offline], capture_output=True, text=True)
        if done.returncode == 0:
            return python
    pytest.fail(done.stderr)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return package_charts(find_helm(), ROOT / "charts", "0.1.0", tmp_path_factory.mktemp("charts"))[0]


@pytest.fixture
def stratlab(python, tmp_path):
    """Calls the console script in an empty folder, with helm on the path if asked for."""

    def call(*arguments, helm=False):
        env = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "COLUMNS": "200"}
        env |= {"STRATLAB_HELM": str(find_helm())} if helm else {}
        program = [python.with_name("stratlab"), *arguments]
        return subprocess.run(program, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    return call


def test_it_is_small_brings_no_torch_and_is_itself(python, stratlab, built):
    assert all(each.wheel.stat().st_size < MOST_BYTES for each in built.values())
    look = "import importlib.metadata as m; print(*(d.name.lower() for d in m.distributions()))"
    names = subprocess.run([python, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    assert "stratlab" in names and not {"torch", "deepspeed", "transformers", "stratlab-trainer"} & set(names)
    assert not [name for name in names if name.startswith("nvidia")]
    assert stratlab("--version").stdout == f"stratlab {(ROOT / 'VERSION').read_text()}"
    for verb in ("predict", "compare", "analyze", "render", "list", "rehearse", "demo", "sweep", "watch"):
        done = stratlab(verb, "--help")
        assert done.returncode == 0 and f"Example: stratlab {verb} " in done.stdout, verb


def test_predict_and_render_on_a_packed_chart(stratlab, package):
    asked = ["--set", "run.config.model=vit_huge", "--set", "run.processesPerNode=8"]
    asked += ["--set", "run.config.global_batch_size=256"]  # of which 8 x 32 is a whole part
    done = stratlab("predict", package, *asked, "--json", helm=True)
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)
    assert (answer["name"], answer["verdict"]) == ("ddp", "fits")
    done = stratlab("render", package, "--for", "torchrun", helm=True)
    assert done.returncode == 0 and "export TRAINER_STRATEGY=ddp\n" in done.stdout
    done = stratlab("predict", package)
    assert done.returncode == 2 and find_codes(done.stderr) == ["SL-helm-missing"]


def test_compare_analyze_and_list_runs_that_came_from_elsewhere(stratlab, tmp_path):
    for strategy in ("ddp", "fsdp"):
        folder = build_run_dir(tmp_path / "results" / "demo", strategy, strategy, hosts=["n"])
        (folder / "mlflow.json").unlink()
    done = stratlab("list", "results")
    assert done.returncode == 0 and "fsdp" in done.stdout
    done = stratlab("compare", "results/demo", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert [run["run"] for run in json.loads(done.stdout)["runs"]] == ["ddp", "fsdp"]
    assert (tmp_path / "results/demo/report/report.html").stat().st_size > 10_000
    write_run(tmp_path / "run", {rank: build_cpu_trace(rank) for rank in range(2)})
    done = stratlab("analyze", "run")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run/analysis/report.json").read_text())["mean"]["ranks"] == 2


def test_what_trains_says_what_to_install_besides(stratlab, python, package):
    missing = ["SL-trainer-not-installed"]
    for arguments, code, more in (
        (("rehearse", package), 2, []),
        (("demo", "--charts", package.parent), 2, []),
        (("predict", package), 3, ["SL-count-no-trainer"]),
    ):
        done = stratlab(*arguments, helm=True)
        assert (done.returncode, find_codes(done.stdout + done.stderr)) == (code, missing + more), done
    for name in ("run_experiment", "load_model", "load_data", "deepspeed_config"):
        code = f"from stratlab.api import compare, open_run, {name}"
        env = {"PATH": f"{python.parent}:/usr/bin:/bin"}
        done = subprocess.run(
            [python, "-c", code], env=env, capture_output=True, text=True, cwd=package.parent
        )
        told = find_codes(done.stderr.splitlines()[-1])
        assert done.returncode == 1 and told == [*missing, "SL-api-no-trainer"], done.stderr
