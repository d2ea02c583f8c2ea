"""What helm renders, and what it refuses with the names and values there are."""

import json
from pathlib import Path

import pytest

from stratlab.helm import find_helm, read_chart_name, render_chart
from stratlab.pod_commands import build_pod, expand
from tests.codes import find_codes
from tests.stratlab.raised import raised

DDP = Path("charts/ddp")


def refused(chart, release="r", **options):
    return str(raised(render_chart, find_helm(), chart, release, **options))


def no_chart(chart):
    failure = raised(read_chart_name, find_helm(), chart)
    assert str(failure).startswith(f"{chart}: ")
    return str(failure)


def test_a_literal_wins_and_may_contain_what_helm_treats_specially(chart, tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text("{run: {nodes: 3, results: {mountPath: /file}}}")
    objects = render_chart(
        find_helm(),
        chart,
        "r",
        settings=["run.nodes=2", "run.results.mountPath=/set"],
        values=[values],
        literals=["run.results.mountPath=/a,b{c}=d"],
    )
    job = next(entry for entry in objects if entry["kind"] == "PyTorchJob")
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert worker["replicas"] == 2
    assert worker["template"]["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/a,b{c}=d"
    assert read_chart_name(find_helm(), chart.rename(chart.with_name("folder"))) == "tiny"


def test_what_is_no_values_file_is_told_by_what_it_is(chart, tmp_path):
    values = tmp_path / "values.yaml"
    assert find_codes(refused(chart, values=[values])) == ["SL-values-no-file"]
    for text, code in (
        ("- run", "SL-values-no-mapping"),
        ("model: cnn\nlr: 0.1\n", "SL-values-settings-file"),
        ("run: [", "SL-chart-refuses"),
    ):
        values.write_text(text)
        told = refused(chart, values=[values])
        assert find_codes(told) == [code] and "values.yaml" in told
    values.write_text("# nothing yet\n")
    assert render_chart(find_helm(), chart, "r", values=[values])


def test_what_is_no_chart_and_no_name_of_a_release_is_told(chart, tmp_path):
    (tmp_path / "file").touch()
    assert find_codes(no_chart(tmp_path / "file")) == ["SL-no-chart"]
    for name in ("../x", "Run", "a" * 54):
        assert find_codes(refused(chart, name)) == ["SL-helm-release-name"]
    told = no_chart(Path("charts"))
    assert find_codes(told) == ["SL-no-chart"] and "charts has ddp, fsdp," in told
    told = no_chart(Path("charts/run"))
    assert find_codes(told) == ["SL-chart-library"] and "charts has ddp, fsdp," in told
    for misspelt in ("charts/dpp", "ddp"):
        told = no_chart(Path(misspelt))
        assert find_codes(told) == ["SL-no-such-chart"] and "charts/ddp?" in told
    assert no_chart(tmp_path / "nope").split()[-2] == "tiny", "which charts are there"


def test_without_helm_the_way_out_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr("stratlab.helm.REPOSITORY", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for given, code in ((None, "SL-helm-missing"), (str(tmp_path / "helm"), "SL-helm-no-program")):
        if given:
            monkeypatch.setenv("STRATLAB_HELM", given)
        else:
            monkeypatch.delenv("STRATLAB_HELM", raising=False)
        assert find_codes(raised(find_helm)) == [code]


def test_an_unknown_name_is_told_with_the_names_there_are():
    unknown = (
        "run.config.clip_nrom=1,run.nodez=2,run.lr=1,run.config.modle=cnn,run.config.learning_rate=1,lr=1"
    )
    text = refused(DDP, settings=[unknown])
    schema = Path("charts/ddp/charts/run/values.schema.json")
    settings = json.loads(schema.read_text())["properties"]["config"]["properties"]
    lines = [line.strip() for line in text.splitlines()]
    for name, told in (
        ("clip_nrom", "clip_norm? "),
        ("nodez", "nodes? "),
        ("modle", "mode or model? "),
        ("lr", "run.config.lr? "),
        ("learning_rate", "run.config.lr; "),
    ):
        assert any(line.startswith(f"{name}: ") and told in line for line in lines), (name, lines)
    assert any(f" {len(settings)} in {schema}" in line for line in lines)
    assert max(map(len, lines)) < 200 and find_codes(text) == ["SL-chart-refuses"]
    assert "  numNodes: allowed are global, run" in refused(DDP, settings=["numNodes=2"])


def test_a_value_that_is_no_choice_or_no_number_is_told_in_words(tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text("run: {config: {optimizer: adamm}}")
    settings = ["run.config.model=resnett,run.config.lr=fast", "run.config.comparison=../x,run.nodes=0"]
    text = refused(DDP, values=[values], settings=settings)
    for start, named in (
        ("- run.config.optimizer=adamm: ", "adamw?"),
        ("- run.config.model=resnett: ", "resnet_finetuned?"),
        ("- run.config.lr=fast: ", "0"),
        ("- run.config.comparison=../x: ", "'_'"),
    ):
        assert any(line.startswith(start) and named in line for line in text.splitlines()), (start, text)
    assert "pattern" not in text and "<nil>" not in text and "at '/nodes': minimum: got 0, want 1" in text
    typed = refused(DDP, settings=["run.config.optimizer=adamm"])
    assert "- run.config.optimizer=adamm: " in typed and "adamw?" in typed


def pod(container=None, **spec):
    whole = {"containers": [{"name": "c", "command": ["true"]} | (container or {})], **spec}
    return build_pod("p-0", "node0", whole, namespace="lab", injected={"A": "injected"})


def test_env_is_resolved_in_order_and_the_injected_one_wins():
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)/b"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t", "optional": True}}},
    ]
    built = pod(
        {"env": env, "command": ["run", "$(B)"], "args": ["$(A)", "$$(A)"]},
        initContainers=[{"name": "i", "command": ["first"]}],
    )
    assert [command.container for command in built.commands] == ["i", "c"]
    command = built.commands[1]
    assert command.env == {"A": "injected", "B": "1/b", "POD": "p-0", "NS": "lab", "HOSTNAME": "p-0"}
    assert command.arguments == ("run", "1/b", "injected", "$(A)")
    assert expand("$(X) $(Y) $$(X) $X $", {"X": "1"}) == "1 $(Y) $(X) $X $"


def test_claims_are_folders_to_make_and_scratch_must_exist(tmp_path):
    mounts = [{"name": "r", "mountPath": "/r/x"}, {"name": "t", "mountPath": str(tmp_path)}]
    mounts += [{"name": "token", "mountPath": "/no/such"}]
    volumes = [{"name": "r", "persistentVolumeClaim": {"claimName": "r"}}, {"name": "t", "emptyDir": {}}]
    volumes += [{"name": "token", "projected": {"sources": []}}]
    assert pod({"volumeMounts": mounts}, volumes=volumes).claims == (Path("/r/x"),)
    mounts[1]["mountPath"] = str(tmp_path / "missing")
    failure = raised(pod, {"volumeMounts": mounts}, volumes=volumes)
    assert find_codes(failure) == ["SL-scratch-absent"] and "missing" in str(failure)


SECRET = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t"}}}


@pytest.mark.parametrize(
    ("container", "spec", "code", "named"),
    [
        ({"command": None}, {}, "SL-no-command", "container c"),
        ({"envFrom": [{}]}, {}, "SL-env-from", "container c"),
        ({"workingDir": "/no/such"}, {}, "SL-working-dir", "/no/such"),
        ({"env": [SECRET]}, {}, "SL-value-of-cluster", "T comes from secretKeyRef hf"),
        ({}, {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, "SL-volume-kind", "hostPath"),
        ({}, {"containers": [{"name": "a"}, {"name": "b"}]}, "SL-pod-many-containers", "a, b"),
    ],
)
def test_what_only_a_cluster_has_is_refused(container, spec, code, named):
    failure = raised(pod, container, **spec)
    assert find_codes(failure) == [code] and named in str(failure)
