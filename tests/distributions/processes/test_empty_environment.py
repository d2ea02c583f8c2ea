"""The tools' wheel alone, with what it asks for, in an environment where nothing else is: each command that needs no
trainer works there, those that train say what to install besides. No file of the repository is near.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from charts.packages import package_charts
from stratlab.helm import find_helm
from tests.codes import find_codes
from tests.distributions.built import ROOT, UV, Built, make_environment
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.simulated.small import build_cpu_trace, write_run

MOST_BYTES = 2_000_000
Stratlab = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def python(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the environment. Packages come from what the set-up has kept, else from the index."""
    python = make_environment(tmp_path_factory.mktemp("empty") / "environment", with_packages=False)
    command = [UV, "pip", "install", "--quiet", "--python", python, "--constraint"]
    command += [ROOT / "requirements/dev.txt", built["stratlab"].wheel]
    for offline in (["--offline"], []):
        done = subprocess.run([*command, *offline], capture_output=True, text=True)
        if done.returncode == 0:
            return python
    pytest.fail(done.stderr)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart ddp, packed."""
    return package_charts(find_helm(), ROOT / "charts", "0.1.0", tmp_path_factory.mktemp("charts"))[0]


@pytest.fixture
def stratlab(python: Path, tmp_path: Path) -> Stratlab:
    """Calls the console script in an empty folder, with helm on the path if asked for."""

    def call(*arguments: str | Path, helm: bool = False) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "COLUMNS": "200"}
        env |= {"STRATLAB_HELM": str(find_helm())} if helm else {}
        program = [python.with_name("stratlab"), *arguments]
        return subprocess.run(program, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    return call


def test_it_is_small_brings_no_torch_and_is_itself(
    python: Path, stratlab: Stratlab, built: dict[str, Built]
) -> None:
    assert all(each.wheel.stat().st_size < MOST_BYTES for each in built.values())
    look = "import importlib.metadata as m; print(*(d.name.lower() for d in m.distributions()))"
    names = subprocess.run([python, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    assert "stratlab" in names
    assert not {"torch", "deepspeed", "transformers", "stratlab-trainer"} & set(names)
    assert not [name for name in names if name.startswith("nvidia")]
    assert stratlab("--version").stdout == f"stratlab {(ROOT / 'VERSION').read_text()}"
    for verb in ("predict", "compare", "analyze", "render", "list", "rehearse", "demo", "sweep", "watch"):
        done = stratlab(verb, "--help")
        assert done.returncode == 0 and f"Example: stratlab {verb} " in done.stdout, verb


def test_predict_and_render_on_a_packed_chart(stratlab: Stratlab, package: Path) -> None:
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


def test_compare_analyze_and_list_runs_that_came_from_elsewhere(stratlab: Stratlab, tmp_path: Path) -> None:
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


def test_what_trains_says_what_to_install_besides(stratlab: Stratlab, python: Path, package: Path) -> None:
    missing = ["SL-trainer-not-installed"]
    for arguments, code in (
        (("rehearse", package), 2),
        (("demo", "--charts", package.parent), 2),
        (("predict", package), 3),
    ):
        done = stratlab(*arguments, helm=True)
        assert done.returncode == code and find_codes(done.stdout + done.stderr) == missing, done
    for name in ("run_experiment", "load_model", "load_data", "deepspeed_config"):
        code = f"from stratlab.api import compare, open_run, {name}"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=package.parent)
        assert done.returncode == 1 and find_codes(done.stderr.splitlines()[-1]) == missing, done.stderr
