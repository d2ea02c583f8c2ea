"""The five charts of language models: the layouts that they promise; a file of values makes them one comparison."""

from __future__ import annotations

from pathlib import Path

from stratlab_spec.layout.parallel_dims import Axes, Layout, resolve_layout
from stratlab_spec.memory.fit import GIB, fit_problems
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.settings.config import Config
from tests.charts.contract import check_trainer_contract
from tests.charts.rendering import CHARTS, ROOT, Document, environment, render, training_pod, world_size

FIVE = [f"llm-{n}d" for n in range(1, 6)]
TINY = ["--values", str(ROOT / "examples" / "llm_tiny.yaml")]


def read_config(documents: list[Document]) -> Config:
    return Config.from_env(environment(training_pod(documents), "pytorch"))


def find_layout(documents: list[Document]) -> Layout:
    config = read_config(documents)
    return resolve_layout(config, world_size(documents), read_shape(config))


def test_each_chart_keeps_its_promise_on_one_node_of_eight(helm: Path) -> None:
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


def test_one_dimension_shards_nothing_and_its_advice_can_be_followed(helm: Path) -> None:
    """On devices of 40 GiB the baseline is refused; `--set` of what the sentence names makes it fit."""
    documents = render(helm, CHARTS / "llm-1d")
    assert find_layout(documents).axes == Axes(dp_replicate=8)
    config = read_config(documents)
    (refused,) = fit_problems(config, 8, read_shape(config), 40 * GIB)
    assert "TRAINER_STRATEGY=fsdp" in refused
    followed = render(helm, CHARTS / "llm-1d", ["--set", "run.config.strategy=fsdp"])
    check_trainer_contract(followed)
    config = read_config(followed)
    assert [*fit_problems(config, 8, read_shape(config), 40 * GIB)] == []


def test_the_example_makes_them_one_comparison_in_one_pod_or_eight(helm: Path) -> None:
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


def test_on_two_processes_a_chart_is_degenerate(helm: Path) -> None:
    documents = render(helm, CHARTS / "llm-4d", ["--set", "run.processesPerNode=2"])
    assert find_layout(documents).missing == ("data", "tensor", "sequence")
