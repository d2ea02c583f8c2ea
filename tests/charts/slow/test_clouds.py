"""The worked values of three clusters, and the five charts of language models with the layouts that they promise."""

import pytest
import yaml

from stratlab_spec.layout.nd_layout import resolve_layout
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.settings.config import Config
from tests.charts.bad_values import SECOND, merge_defaults
from tests.charts.contract import check_trainer_contract
from tests.charts.pod_security import LEVELS, find_level
from tests.charts.rendering import CHARTS, ROOT, environment, refusal, render, training_pod, world_size
from tests.charts.valid_objects import RUNNING, problems, unwrap_pods
from tests.codes import find_codes

FILES = sorted((ROOT / "examples").glob("cluster-*.yaml"))
LEVEL = {"eks-efa": "restricted", "gke-a3-ultra": "privileged", "infiniband": "privileged"}
"""As docs/clouds.md says; the real admission: tests/cluster/parts/test_clouds.py."""
MANY_NODES = ("zeropp", "llm-4d", "fsdp")
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def name_of(file):
    return file.stem.removeprefix("cluster-")


def read_run(file):
    return dict(yaml.safe_load(file.read_text())["run"])


def training(documents):
    return next(pod for name, pod in unwrap_pods(documents).items() if name in RUNNING)


@each_file
def test_charts_of_several_nodes_render_valid_objects(helm, file):
    run = read_run(file)
    SECOND.validate(merge_defaults(run))  # as an editor sees it, which knows the schema and no chart
    for chart in MANY_NODES:
        rendered = render(helm, CHARTS / chart, ["--values", str(file)])
        assert problems(rendered) == []
        pod = training(rendered)
        container = pod["spec"]["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        env = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert env.items() >= {entry["name"]: entry["value"] for entry in run["env"]}.items()
        assert pod["metadata"].get("annotations", {}) == run["pod"].get("annotations", {})


@each_file
def test_its_level_is_the_lowest_that_will_do(helm, file):
    level = read_run(file)["podSecurity"]["level"]
    assert level == LEVEL[name_of(file)] and f"# Pod Security of the namespace: {level}" in file.read_text()
    assert find_level(training(render(helm, CHARTS / "fsdp", ["--values", str(file)]))["spec"]) == level
    if level != "restricted":
        below = LEVELS[LEVELS.index(level) - 1]
        said = refusal(helm, "fsdp", ["--values", str(file), "--set", f"run.podSecurity.level={below}"])
        assert find_codes(said) == ["SL-security-level"]


FIVE = [f"llm-{n}d" for n in range(1, 6)]
TINY = ["--values", str(ROOT / "examples" / "llm_tiny.yaml")]


def read_config(documents):
    return Config.from_env(environment(training_pod(documents), "pytorch"))


def find_layout(documents):
    config = read_config(documents)
    return resolve_layout(config, world_size(documents), read_shape(config))


def test_each_chart_keeps_its_promise_on_one_node_of_eight(helm):
    names = {}
    settings = {chart: read_config(render(helm, CHARTS / chart)).model_dump() for chart in FIVE}
    for dimensions, chart in enumerate(FIVE, start=1):
        documents = render(helm, CHARTS / chart)
        config, layout = read_config(documents), find_layout(documents)
        assert (config.strategy, layout.dimensions, world_size(documents)) == ("nd", dimensions, 8)
        assert not layout.degenerate
        micro_batches = config.global_batch_size // (config.micro_batch_size * layout.axes.dp)
        assert layout.axes.pp == 1 or micro_batches >= 4 * layout.axes.pp
        names[chart] = layout.name
        differ = {name for name, value in settings[chart].items() if value != settings["llm-1d"][name]}
        assert differ <= {"dimensions"} | (
            {"model", "activation_checkpointing"} if chart == "llm-5d" else set()
        )
    assert names == {
        "llm-1d": "dp8x1",
        "llm-2d": "pp2.dp4",
        "llm-3d": "pp2.dp2.tp2",
        "llm-4d": "pp2.dp2.tp2+sp",
        "llm-5d": "pp2.dp2.tp2+sp.ep4",
    }


def test_the_example_makes_them_one_comparison_in_one_pod_or_eight(helm):
    """Nothing that the audit looks at differs: stratlab/compare/rules.py."""
    settings = {}
    for chart in FIVE:
        config = read_config(render(helm, CHARTS / chart, TINY))
        settings[chart] = config.model_dump(exclude={"dimensions"})
        assert config.is_text and config.profile_first_step > config.profile_warmup
        # steps are left to time behind the first five, the profiled ones and the one after them
        assert config.steps - max(5, config.profile_first_step + config.profile_steps) >= 3
    assert all(found == settings["llm-1d"] for found in settings.values())
    documents = render(helm, CHARTS / "llm-5d", [*TINY, "--set", "run.nodes=8,run.processesPerNode=1"])
    check_trainer_contract(documents)
    assert not find_layout(documents).degenerate and world_size(documents) == 8
