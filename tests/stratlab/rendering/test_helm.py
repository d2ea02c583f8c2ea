from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from stratlab.rendering.helm import find_helm, read_chart_name, render_chart
from stratlab.user_error import UserError


def test_the_name_is_the_one_in_chart_yaml(chart: Path) -> None:
    other = chart.rename(chart.with_name("folder"))
    assert read_chart_name(find_helm(), other) == "tiny"


def test_a_literal_wins_and_may_contain_what_helm_treats_specially(chart: Path, tmp_path: Path) -> None:
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


def test_a_value_that_the_schema_refuses_is_told_in_helms_words(chart: Path) -> None:
    with pytest.raises(ValueError, match=r"at '/run/nodes': minimum: got 0, want 1"):
        render_chart(find_helm(), chart, "r", settings=["run.nodes=0"])


def test_no_chart_and_no_values_file_are_named(chart: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="charts/nope: no such chart"):
        read_chart_name(find_helm(), Path("charts/nope"))
    with pytest.raises(ValueError, match=r"--values .*nope.yaml: no such file"):
        render_chart(find_helm(), chart, "r", values=[tmp_path / "nope.yaml"])


def test_values_that_are_no_mapping_are_told_by_what_they_are(chart: Path, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    for text, kind in (("- run", "list"), ("run", "str")):
        values.write_text(text)
        with pytest.raises(
            UserError, match=rf"--values .*values.yaml: holds a {kind}; expected values of a chart"
        ):
            render_chart(find_helm(), chart, "r", values=[values])
    values.write_text("model: cnn\nlr: 0.1\n")
    with pytest.raises(
        UserError, match=r"--values .*values.yaml: is a settings file, of `python -m trainer --config`"
    ):
        render_chart(find_helm(), chart, "r", values=[values])
    values.write_text("# nothing yet\n")
    assert render_chart(find_helm(), chart, "r", values=[values])
    values.write_text("run: [")
    with pytest.raises(UserError, match="helm template: .*yaml"):
        render_chart(find_helm(), chart, "r", values=[values])


def test_what_is_no_chart_and_no_name_of_a_release_is_told(chart: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "file").touch()
    for name in ("nothing", "file"):
        with pytest.raises(
            UserError, match=f"{tmp_path / name}: no chart, expected its folder or its package; "
        ):
            read_chart_name(find_helm(), tmp_path / name)
    for name in ("../x", "Run", "a" * 54):
        with pytest.raises(UserError, match=f"--name {name}: expected small letters, digits"):
            render_chart(find_helm(), chart, name)


def test_without_helm_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("stratlab.rendering.helm.REPOSITORY", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("STRATLAB_HELM", raising=False)
    with pytest.raises(ValueError, match="make setup"):
        find_helm()
    monkeypatch.setenv("STRATLAB_HELM", str(tmp_path / "helm"))
    with pytest.raises(ValueError, match=r"STRATLAB_HELM=.*: no program there"):
        find_helm()


def test_an_unknown_name_is_told_with_the_names_there_are() -> None:
    with pytest.raises(ValueError) as failure:
        render_chart(find_helm(), Path("charts/ddp"), "r", settings=["run.config.clip_nrom=1,run.nodez=2"])
    text = str(failure.value)
    (line,) = [each for each in text.splitlines() if "clip_nrom" in each and "allowed are" in each]
    schema = Path("charts/ddp/charts/run/values.schema.json")
    settings = json.loads(schema.read_text())["properties"]["config"]["properties"]
    assert line == f"  clip_nrom: did you mean clip_norm? allowed are the {len(settings)} in {schema}"
    assert "  nodez: did you mean nodes? allowed are the " in text
    with pytest.raises(ValueError) as failure:
        render_chart(find_helm(), Path("charts/ddp"), "r", settings=["numNodes=2"])
    assert "  numNodes: allowed are global, run" in str(failure.value)


def test_a_name_that_is_near_to_several_is_told_with_all_of_them() -> None:
    with pytest.raises(ValueError) as failure:
        render_chart(find_helm(), Path("charts/ddp"), "r", settings=["run.config.modle=cnn"])
    assert "  modle: did you mean mode or model? allowed are the " in str(failure.value)
    assert max(map(len, str(failure.value).splitlines())) < 160


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("lr=1", "  lr: did you mean run.config.lr? allowed are global, run"),
        ("nodes=1", "  nodes: did you mean run.nodes? allowed are global, run"),
        ("run.lr=1", "  lr: did you mean run.config.lr? allowed are the "),
        ("run.config.learning_rate=1", "  learning_rate: it is called run.config.lr; allowed are the "),
    ],
)
def test_a_setting_at_the_wrong_place_and_another_program_s_name_are_told_with_ours(
    setting: str, told: str
) -> None:
    with pytest.raises(UserError) as failure:
        render_chart(find_helm(), Path("charts/ddp"), "r", settings=[setting])
    assert any(line.startswith(told) for line in str(failure.value).splitlines()), failure.value


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "in a file"])
def test_a_value_that_is_no_choice_is_told_without_nil(typed: bool, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("run: {config: {optimizer: adamm}}")
    with pytest.raises(UserError) as failure:
        render_chart(
            find_helm(),
            Path("charts/ddp"),
            "r",
            settings=["run.nodes=1,run.config.optimizer=adamm"] if typed else [],
            values=[] if typed else [values],
        )
    line = "- run.config.optimizer=adamm: did you mean adamw? expected one of adamw, sgd"
    assert str(failure.value).splitlines()[-1] == line


def test_a_folder_of_charts_and_their_library_are_told_with_the_charts(tmp_path: Path) -> None:
    for place, told in (
        (Path("charts"), "charts: no chart, .*; no Chart.yaml is in it; charts has ddp, fsdp,"),
        (tmp_path, f"{tmp_path}: no chart, .*; no Chart.yaml is in it; charts has ddp, fsdp,"),
        (Path("charts/run"), "charts/run: what all charts share, no chart by itself; charts has ddp, fsdp,"),
    ):
        with pytest.raises(UserError, match=told):
            read_chart_name(find_helm(), place)


def test_hooks_are_no_part_of_a_run() -> None:
    objects = render_chart(find_helm(), Path("charts/ddp"), "r")
    assert {entry["kind"] for entry in objects} == {"PyTorchJob", "Job"}


@pytest.mark.parametrize(
    ("setting", "wish"),
    [
        (
            "model=resnett",
            "- run.config.model=resnett: did you mean resnet or resnet_finetuned? expected one of the ",
        ),
        ("lr=fast", "- run.config.lr=fast: expected a number above 0"),
        (
            "comparison=../x",
            "- run.config.comparison=../x: expected letters, digits, '.', '_' and '-', with ",
        ),
    ],
)
def test_a_value_that_a_pattern_refuses_is_told_in_words(setting: str, wish: str) -> None:
    with pytest.raises(ValueError) as failure:
        render_chart(find_helm(), Path("charts/ddp"), "r", settings=[f"run.config.{setting}"])
    assert any(line.startswith(wish) for line in str(failure.value).splitlines()), failure.value
    assert "pattern" not in str(failure.value)


def test_helm_alone_names_the_models() -> None:
    arguments = [find_helm(), "template", "r", "charts/ddp", "--set", "run.config.model=resnett"]
    said = subprocess.run(arguments, capture_output=True, text=True).stderr
    assert "must be one of 'vit_tiny', 'vit_small'" in said and "vit_tiny|" not in said


def test_a_misspelt_chart_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"charts/dpp: no such chart, did you mean charts/ddp\?"):
        read_chart_name(find_helm(), Path("charts/dpp"))
    with pytest.raises(ValueError, match=r"ddp: no such chart, did you mean charts/ddp\?"):
        read_chart_name(find_helm(), Path("ddp"))
    with pytest.raises(ValueError, match=r"nope: no such chart; charts has ddp, fsdp,"):
        read_chart_name(find_helm(), tmp_path / "nope")
