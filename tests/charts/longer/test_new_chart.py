"""A new strategy is one folder, which the checks of the shipped charts find; and the chart that prepares data."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from charts import new_chart
from charts.new_chart import FIXED, LIBRARY, LIBRARY_TARGET
from stratlab_spec import exit_codes as failures
from stratlab_spec.registry import PUBLISHED_FILES
from stratlab_spec.settings.config import Config, ConfigError
from tests.charts.contract import check_trainer_contract
from tests.charts.golden_file import read_goldens, render_all, write_goldens
from tests.charts.pod_security import find_pods
from tests.charts.rendering import (
    CHARTS,
    RELEASE,
    Document,
    container,
    discover_charts,
    discover_other_charts,
    environment,
    expand,
    render,
    training_pod,
)
from tests.charts.rendering import LIBRARY as LIBRARY_CHART
from tests.codes import find_codes
from trainer.data.text.token_cache import cache_name
from trainer.prepare import STALE_AFTER_S, Request, read_request


@pytest.fixture
def charts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies, with their links, of the library and one shipped chart; and a new strategy, made as documented."""
    folder = tmp_path / "charts"
    for name in (LIBRARY_CHART, "ddp"):
        shutil.copytree(CHARTS / name, folder / name, symlinks=True)
    monkeypatch.setattr(new_chart, "CHARTS", folder)
    assert new_chart.main(["fsdp-2", "--strategy", "fsdp", "--describe", 'a: "b" # c']) == 0
    return folder


def test_it_is_found_and_passes_after_make_golden(helm: Path, charts: Path, tmp_path: Path) -> None:
    assert discover_charts(charts) == ["ddp", "fsdp-2"]
    check_trainer_contract(render(helm, charts / "fsdp-2"))
    write_goldens(charts, tmp_path / "golden")
    assert read_goldens(tmp_path / "golden").keys() == {"fsdp-2"}
    values = charts / "fsdp-2" / "values.yaml"
    values.write_text(f"{values.read_text()}    micro_batch_size: 8\n")
    assert render_all(charts) != read_goldens(tmp_path / "golden"), "a later change"
    values.write_text(f"{values.read_text()}    global_batch_size: 65\n")
    with pytest.raises(ConfigError):
        check_trainer_contract(render(helm, charts / "fsdp-2"))


@pytest.mark.parametrize("name", ["1d", "a/b", "z" * 41, "ddp"])
def test_a_name_that_cannot_be_one(charts: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(charts.rglob("*"))
    assert new_chart.main([name]) == 2
    assert find_codes(capsys.readouterr().err) == ["SL-chart-taken" if name == "ddp" else "SL-chart-name"]
    assert sorted(charts.rglob("*")) == before


def test_the_shipped_charts_have_the_same_pattern() -> None:
    """A copy of the library goes stale silently: Helm 3 prefers what `helm dependency update` leaves."""
    for folder in (CHARTS / name for name in discover_charts(CHARTS)):
        assert {path: (folder / path).read_text() for path in FIXED} == FIXED
        assert (folder / LIBRARY).readlink() == LIBRARY_TARGET
        files = {
            str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file()
        }
        assert files == {"Chart.yaml", "values.yaml", str(LIBRARY), *FIXED}


def test_every_chart_is_of_the_one_version() -> None:
    version = (CHARTS.parent / "VERSION").read_text().strip()
    for chart in (*discover_charts(CHARTS), *discover_other_charts(), LIBRARY_CHART):
        told = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
        assert (told["name"], told["version"], told["appVersion"]) == (chart, version, version)
        assert told["kubeVersion"] == ">=1.29.0-0"  # what the objects are checked against; a vendor's suffix


CHART = CHARTS / "prepare"
PETS = ("--set", "prepare.dataset=org/pets")


def job(helm: Path, *arguments: str, **options: object) -> Document:
    (document,) = render(helm, CHART, [*arguments], **options)  # type: ignore[arg-type]
    return document


def request(document: Document, mount: Path) -> Request:
    """What the trainer makes of the rendered arguments; `mount` stands for the results volume."""
    (entry,) = document["spec"]["template"]["spec"]["containers"]
    assert entry["command"] == ["python", "-m", "trainer.prepare"]
    arguments = [expand(text, {}) for text in entry["args"]]
    (to,) = [text for text in arguments if text.startswith("--to=")]
    assert {"name": "results", "mountPath": to.removeprefix("--to=")} in entry["volumeMounts"]
    return read_request([f"--to={mount}" if text == to else text for text in arguments])


def test_the_pod_is_that_of_a_run(helm: Path) -> None:
    """The same user, volumes, folders and image as a training pod; no accelerator."""
    run = training_pod(render(helm, CHARTS / "ddp"))
    (pod,) = find_pods(job(helm, *PETS))
    mine, theirs = container(pod, "prepare"), container(run, "pytorch")
    assert pod["securityContext"] == run["securityContext"]
    for field in ("securityContext", "image", "imagePullPolicy"):
        assert mine[field] == theirs[field]
    assert all(volume in run["volumes"] for volume in pod["volumes"])
    assert environment(pod, "prepare").items() <= environment(run, "pytorch").items()
    assert set(mine["resources"]["limits"]) == {"cpu", "memory"}


def test_the_trainer_accepts_what_is_rendered(helm: Path, tmp_path: Path) -> None:
    plain = request(job(helm, *PETS), tmp_path)
    assert plain == Request("dataset", "org/pets", RELEASE, tmp_path, "", "", STALE_AFTER_S)
    subset, source = '-x "y" {{ z }}', "/results/raw/$(HOME) $$x"
    values = {"dataset": source, "name": "my.pets", "subset": subset, "staleAfterSeconds": 3600}
    full = request(job(helm, values={"prepare": values}), tmp_path)
    assert full == Request("dataset", source, "my.pets", tmp_path, "", subset, 3600)
    model = request(job(helm, "--set", "prepare.model=org/net,prepare.revision=refs/pr/1"), tmp_path)
    assert (model.kind, model.source, model.revision) == ("model", "org/net", "refs/pr/1")
    weights = request(job(helm, "--set", "prepare.weights=vgg,prepare.name=w"), tmp_path)
    assert (weights.kind, weights.source, weights.name) == ("weights", "vgg", "w")


def test_a_token_cache_is_the_one_that_a_run_with_the_same_settings_reads(helm: Path, tmp_path: Path) -> None:
    rows = {"seq_len": 1048576, "packing": False, "validation_fraction": 0.25, "train_samples": 16777216}
    rows |= {"text_columns": "query=a,response=b.c", "chat_roles": "merge", "long_documents": "drop"}
    tokens = {"dataset": "arithmetic", "tokenize": "qwen_tiny"}
    plain = request(job(helm, values={"prepare": tokens}), tmp_path)
    given = request(job(helm, values={"prepare": tokens, "run": {"config": {**rows, "lr": 0.5}}}), tmp_path)
    for found, settings in ((plain, {}), (given, rows)):
        run = Config(run="r", results=str(tmp_path), model="qwen_tiny", dataset="arithmetic", **settings)
        assert (found.kind, found.name) == ("tokens", cache_name(run))
    assert plain.name != given.name
    unset = {"prepare": tokens, "run": {"config": {"packing": True, "seq_len": None}}}
    assert request(job(helm, values=unset), tmp_path).name == plain.name


def test_permanent_failures_end_the_job(helm: Path) -> None:
    rule = job(helm, *PETS)["spec"]["podFailurePolicy"]["rules"][0]
    permanent = [failures.BAD_CONFIG, failures.DATA_MISSING, failures.STORAGE_FULL]
    assert rule == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": permanent}}


def test_a_changed_request_is_a_new_job(helm: Path) -> None:
    """The spec of a Job cannot change."""
    names = [job(helm, *PETS, *more)["metadata"]["name"] for more in ([], ["--set", "prepare.revision=v2"])]
    assert len({*names}) == 2 and all(len(name) <= 63 for name in names)


def test_the_chart_knows_the_trainers_weights() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"]["prepare"]["properties"]["weights"]["enum"] == ["", *PUBLISHED_FILES]
