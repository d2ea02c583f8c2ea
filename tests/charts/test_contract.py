"""What a chart renders is what the trainer accepts, and the Job that waits for a run and analyses it."""

from typing import get_args

import pytest

from stratlab.analysis.measure import RankShare, parse_share
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.fields import Strategy
from tests.charts.contract import check_analysis_contract, check_trainer_contract
from tests.charts.golden_file import BASE, read_full
from tests.charts.rendering import (
    CHARTS,
    analysis_pod,
    container,
    discover_charts,
    environment,
    expand,
    pick,
    render,
    training_pod,
    waiter_pod,
)


def read_config(documents):
    return Config.from_env(environment(training_pod(documents), "pytorch"))


@pytest.mark.parametrize("chart", discover_charts(CHARTS))
def test_the_trainer_accepts_what_the_chart_renders(helm, chart):
    """A chart with another name than a strategy's is a preset, a variant of some strategy."""
    rendered = render(helm, CHARTS / chart)
    check_trainer_contract(rendered)
    strategy = read_config(rendered).strategy
    assert strategy == chart or chart not in get_args(Strategy)


def test_the_analysis_looks_where_the_trainer_writes(helm):
    check_analysis_contract(render(helm, CHARTS / "ddp"))
    elsewhere = "run.config.comparison=vit.1,run.results.mountPath=/data/a b,run.results.claim=fast"
    rendered = render(helm, CHARTS / "fsdp", ["--set", elsewhere])
    check_analysis_contract(rendered)
    assert read_config(rendered).comparison == "vit.1"


def test_settings_arrive_as_typed(helm):
    typed = {
        "lr": ("0.00001", 1e-5),  # text to helm, a number to the trainer
        "weight_decay": ("1e-5", 1e-5),
        "clip_norm": ("3", 3),
        "seed": ("100000000", 100000000),
        "profile_shapes": ("true", True),
        "dataset": ("a/b", "a/b"),
    }
    settings = ",".join(f"run.config.{name}={text}" for name, (text, _) in typed.items())
    config = read_config(render(helm, CHARTS / "single", ["--set", settings]))
    assert [getattr(config, name) for name in typed] == [value for _, value in typed.values()]


def test_a_large_number_from_a_file_keeps_its_digits(helm):
    """Helm holds it as a float, whose text would be 1.6777216e+07."""
    rendered = render(helm, CHARTS / "single", values={"run": {"config": {"train_samples": 16777216}}})
    assert environment(training_pod(rendered), "pytorch")["TRAINER_TRAIN_SAMPLES"] == "16777216"


def test_a_dollar_sign_means_itself(helm):
    """Kubernetes replaces $(NAME) and $$ in values."""
    text = "$(HOME)/$$/$5"
    values = {"run": {"config": {"tokenizer": text}, "env": [{"name": "NOTE", "value": text}]}}
    env = environment(training_pod(render(helm, CHARTS / "ddp", values=values)), "pytorch")
    assert env["TRAINER_TOKENIZER"] == env["NOTE"] == text


def test_a_setting_of_an_example_is_taken_back(helm):
    nulls = ("steps", "deadline_s", "comparison", "model", "lr", "profile_first_step")
    arguments = ["--values", str(CHARTS.parent / "examples" / "llm_tiny.yaml")]
    arguments += [f"--set=run.config.{name}=null" for name in nulls]
    rendered = render(helm, CHARTS / "llm-1d", [*arguments, "--set=run.config.epochs=2"])
    env = environment(training_pod(rendered), "pytorch")
    assert env["TRAINER_EPOCHS"] == "2" and "null" not in env.values()
    assert not env.keys() & {f"TRAINER_{name.upper()}" for name in nulls}
    check_analysis_contract(rendered)  # of the comparison that the trainer takes by default


def test_variables_of_ones_own_win_over_the_folders_and_secrets_are_only_named(helm):
    run = {
        "env": [
            {"name": "HF_HOME", "value": "/results/cache"},
            {"name": "TOKENIZERS_PARALLELISM", "value": 1},
        ],
        "secrets": [{"name": "HF_TOKEN", "secret": "hub", "key": "token"}],
        "config": {"fault": "kill@37:1"},
        "allowFaults": True,
    }
    rendered = render(helm, CHARTS / "ddp", values={"run": run})
    env = environment(training_pod(rendered), "pytorch")
    assert (env["HF_HOME"], env["TOKENIZERS_PARALLELISM"], env["HF_TOKEN"]) == (
        "/results/cache",
        "1",
        "<hub/token>",
    )
    assert (env["TRAINER_FAULT"], env["TRAINER_ALLOW_FAULTS"]) == ("kill@37:1", "true")
    assert "hub" not in str([pick(rendered, kind) for kind in ("Job", "waiter", "Pod")])


KUEUE = "run.scheduling.gang=kueue,run.scheduling.queue=gpus"
LABEL = "kueue.x-k8s.io/queue-name"


def render_ddp(helm, settings):
    return render(helm, CHARTS / "ddp", ["--set", settings])


def waiting(documents, option):
    command = container(waiter_pod(documents), "wait")["command"]
    return str(command[command.index(option) + 1])


@pytest.mark.parametrize(
    ("change", "renamed"),
    [
        ("run.config.comparison=other", [True, True]),
        ("run.scheduling.waitSeconds=60", [False, True]),
        ("run.analysis.resources.requests.cpu=3", [True, True]),  # the waiter names the analysis
        ("run.config.lr=0.5", [False, False]),
    ],
)
def test_another_spec_has_another_name(helm, change, renamed):
    """The spec of a Job cannot change: an upgrade under the same name would fail."""
    pairs = [
        [pick(each, kind) for each in (read_full(helm, BASE), render_ddp(helm, change))]
        for kind in ("Job", "waiter")
    ]
    assert [old["spec"] != new["spec"] for old, new in pairs] == renamed
    assert [old["metadata"]["name"] != new["metadata"]["name"] for old, new in pairs] == renamed


def test_what_waits_costs_next_to_nothing_and_the_analysis_is_suspended(helm):
    """As a quota counts it: a suspended Job has no pods."""
    documents = render_ddp(helm, "run.analysis.resources.limits.cpu=8")
    job = pick(documents, "Job")
    assert job["spec"]["suspend"] is True and waiting(documents, "--then-start") == job["metadata"]["name"]
    resources = container(waiter_pod(documents), "wait")["resources"]
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("10m", "200m")


@pytest.mark.parametrize("settings", ["", "run.config.deadline_s=3000000,run.scheduling.waitSeconds=0"])
def test_whoever_waits_gives_up_after_whom_he_waits_for(helm, settings):
    rendered = render_ddp(helm, settings)
    trainer = Config.from_env(environment(training_pod(rendered), "pytorch")).deadline_s
    workload = pick(rendered, "PyTorchJob")["spec"]["runPolicy"]["activeDeadlineSeconds"]
    waiter, job = (
        int(waiting(rendered, "--deadline-s")),
        pick(rendered, "waiter")["spec"]["activeDeadlineSeconds"],
    )
    assert trainer < workload < waiter < job
    analysis = pick(rendered, "Job")["spec"]["activeDeadlineSeconds"]
    assert analysis == job - waiter == 3600, "an hour to analyse, which counts from its start"
    assert workload - trainer >= (0 if settings else 86400)


def test_kueue_takes_it_only_where_it_must(helm):
    documents = render_ddp(helm, KUEUE)
    queues = {
        kind: pick(documents, kind)["metadata"]["labels"].get(LABEL)
        for kind in ("PyTorchJob", "Job", "waiter")
    }
    assert queues == {"PyTorchJob": "gpus", "Job": None, "waiter": None}
    documents = render_ddp(helm, f"{KUEUE},run.analysis.queue=cpus")
    assert pick(documents, "waiter")["metadata"]["labels"][LABEL] == waiting(documents, "--queue") == "cpus"
    assert LABEL not in pick(documents, "Job")["metadata"]["labels"], "Kueue would start it at once"


def test_of_shares_each_pod_reads_its_own(helm):
    rendered = render_ddp(helm, "run.nodes=4,run.analysis.shares=4")
    pod = analysis_pod(rendered)
    env = environment(pod, "analyze") | {"JOB_COMPLETION_INDEX": "3"}
    command = [expand(word, env) for word in container(pod, "analyze")["command"]]
    assert pick(rendered, "Job")["spec"]["completions"] == 4
    assert parse_share(command[command.index("--share") + 1]) == RankShare(3, 4)
    assert command[command.index("--job") + 1] == env["STRATLAB_JOB"]


def test_nodes_multiply(helm):
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.nodes=2,run.config.micro_batch_size=1"])
    check_trainer_contract(rendered)
    policy = pick(rendered, "PyTorchJob")["spec"]["elasticPolicy"]
    assert policy["minReplicas"] == policy["maxReplicas"] == 2


def test_the_verification_is_a_hook_and_no_part_of_the_run(helm):
    for settings, more in (("", []), ("run.analysis.enabled=false", ["--no-report"])):
        documents = render_ddp(helm, settings)
        pod = pick(documents, "Pod")
        assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        (verify,) = pod["spec"]["containers"]
        directory = pick(documents, "PyTorchJob")["metadata"]["annotations"]["stratlab/run-directory"]
        assert verify["command"] == ["stratlab", "verify", directory, *more]
