"""Everything that a chart renders, the cluster accepts; its pods keep to Pod Security, and reserve what they need.
A new strategy is one folder, which the checks of the shipped charts find; and the chart that prepares data."""

import copy
import json
import shutil

import pytest

from charts import new_chart
from charts.new_chart import FIXED, LIBRARY, LIBRARY_TARGET
from stratlab_spec import exit_codes as failures
from stratlab_spec.registry import PUBLISHED_FILES
from stratlab_spec.settings.config import Config, ConfigError
from tests.charts.contract import check_trainer_contract
from tests.charts.golden_file import BASE, FULL, read_full, read_goldens, render_all, write_goldens
from tests.charts.pod_security import restricted_problems
from tests.charts.rendering import (
    CHARTS,
    RELEASE,
    container,
    discover_charts,
    expand,
    pick,
    render,
    training_pod,
)
from tests.charts.rendering import LIBRARY as LIBRARY_CHART
from tests.charts.valid_objects import RUNNING, problems, unwrap_pods
from tests.codes import find_codes
from trainer.data.text.token_cache import cache_name
from trainer.prepare.request import STALE_AFTER_S, Request, read_request

ON_THE_NODE = {"pod: hostNetwork", "pod: hostIPC", "pod: volume type"}


@pytest.mark.parametrize("name", FULL)
def test_a_full_render(helm, name):
    documents = read_full(helm, name)
    assert problems(documents) == []
    pods = unwrap_pods(documents)
    assert len(pods) >= (1 if name == "prepare" else 4)
    for role, pod in pods.items():
        spec = pod["spec"]
        if name.startswith("everything") and role in RUNNING:
            own = f"{spec['containers'][0]['name']}: capabilities.add"
            assert {*restricted_problems(spec)} == ON_THE_NODE | {own}
        else:  # operators add what is not in here
            assert restricted_problems(spec) == []
        assert spec["enableServiceLinks"] is False, "a Service `trainer` would set TRAINER_..._PORT"
        assert spec["automountServiceAccountToken"] is (role == "MPIJob.Launcher" and name.endswith("v1"))
        assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume)
        for each in [*spec.get("initContainers", []), *spec["containers"]]:
            amounts = each["resources"].get("requests", {}) | each["resources"].get("limits", {})
            assert amounts.keys() >= {"cpu", "memory"} or "everything" in name, "no pod is BestEffort"


def test_the_check_is_not_blind(helm):
    documents = copy.deepcopy(read_full(helm, BASE))
    container = training_pod(documents)["containers"][0]
    container["volumeMounts"].append(container["volumeMounts"][0])
    assert len(problems(documents)) == 1
    container["comand"] = pick(documents, "PyTorchJob")["spec"]["elasticPolicy"]["minReplica"] = 1
    assert len(problems(documents)) == 4  # of the container by the operator and by either version


def test_the_longest_names(helm):
    """63 characters: the names of Jobs are labels of their pods too, and of an Indexed Job's last pod a host name."""
    jobs = {
        (shares, end): [
            each["metadata"]["name"]
            for each in render(
                helm,
                CHARTS / "ddp",
                ["--set", f"run.nodes=1000,run.analysis.shares={shares}"],
                release="r" * 51 + end,
            )
            if each["kind"] == "Job"
        ]
        for shares in (1, 1000)
        for end in "ab"
    }
    assert {len(name) for end in "ab" for name in jobs[1, end]} == {63}
    assert {len(f"{jobs[1000, end][0]}-999") for end in "ab"} == {63}
    assert len({name for names in jobs.values() for name in names}) == 8


@pytest.mark.parametrize(
    ("run", "requests"),
    [
        ({"processesPerNode": 8}, {"cpu": "16", "memory": "64Gi"}),
        # of a limit alone Kubernetes makes a request of the same amount; a larger one would be refused
        ({"resources": {"limits": {"memory": "4Gi"}}}, {"cpu": "4"}),
        (
            {"resources": {"requests": {"ephemeral-storage": "9Gi"}}},
            {"cpu": "4", "ephemeral-storage": "9Gi", "memory": "16Gi"},
        ),
    ],
    ids=str,
)
def test_what_a_pod_requests(helm, run, requests):
    rendered = render(helm, CHARTS / "ddp", values={"run": run})
    resources = container(training_pod(rendered), "pytorch")["resources"]
    assert resources["requests"] == requests
    assert resources["limits"]["nvidia.com/gpu"] == str(run.get("processesPerNode", 2))


@pytest.fixture
def charts(tmp_path, monkeypatch):
    """Copies, with their links, of the library and one shipped chart; and a new strategy, made as documented."""
    folder = tmp_path / "charts"
    for name in (LIBRARY_CHART, "ddp"):
        shutil.copytree(CHARTS / name, folder / name, symlinks=True)
    monkeypatch.setattr(new_chart, "CHARTS", folder)
    assert new_chart.main(["fsdp-2", "--strategy", "fsdp", "--describe", 'a: "b" # c']) == 0
    return folder


def test_it_is_found_and_passes_after_make_golden(helm, charts, tmp_path):
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
def test_a_name_that_cannot_be_one(charts, name, capsys):
    before = sorted(charts.rglob("*"))
    assert new_chart.main([name]) == 2
    assert find_codes(capsys.readouterr().err) == ["SL-chart-taken" if name == "ddp" else "SL-chart-name"]
    assert sorted(charts.rglob("*")) == before


def test_the_shipped_charts_have_the_same_pattern():
    """A copy of the library goes stale silently: Helm 3 prefers what `helm dependency update` leaves."""
    for folder in (CHARTS / name for name in discover_charts(CHARTS)):
        assert {path: (folder / path).read_text() for path in FIXED} == FIXED
        assert (folder / LIBRARY).readlink() == LIBRARY_TARGET
        files = {
            str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file()
        }
        assert files == {"Chart.yaml", "values.yaml", str(LIBRARY), *FIXED}


CHART = CHARTS / "prepare"
PETS = ("--set", "prepare.dataset=org/pets")


def job(helm, *arguments, **options):
    (document,) = render(helm, CHART, [*arguments], **options)
    return document


def request(document, mount):
    """What the trainer makes of the rendered arguments; `mount` stands for the results volume."""
    (entry,) = document["spec"]["template"]["spec"]["containers"]
    assert entry["command"] == ["python", "-m", "trainer.prepare"]
    arguments = [expand(text, {}) for text in entry["args"]]
    (to,) = [text for text in arguments if text.startswith("--to=")]
    assert {"name": "results", "mountPath": to.removeprefix("--to=")} in entry["volumeMounts"]
    return read_request([f"--to={mount}" if text == to else text for text in arguments])


def test_the_trainer_accepts_what_is_rendered(helm, tmp_path):
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


def test_a_token_cache_is_the_one_that_a_run_with_the_same_settings_reads(helm, tmp_path):
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


def test_permanent_failures_end_the_job(helm):
    rule = job(helm, *PETS)["spec"]["podFailurePolicy"]["rules"][0]
    permanent = [failures.BAD_CONFIG, failures.DATA_MISSING, failures.STORAGE_FULL]
    assert rule == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": permanent}}


def test_a_changed_request_is_a_new_job(helm):
    """The spec of a Job cannot change."""
    names = [job(helm, *PETS, *more)["metadata"]["name"] for more in ([], ["--set", "prepare.revision=v2"])]
    assert len({*names}) == 2 and all(len(name) <= 63 for name in names)


def test_the_chart_knows_the_trainers_weights():
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"]["prepare"]["properties"]["weights"]["enum"] == ["", *PUBLISHED_FILES]
