"""charts/prepare: one Job, whose arguments the trainer accepts. What it refuses: test_refusals.py."""

from __future__ import annotations

import json
from pathlib import Path

from stratlab_spec import exit_codes as failures
from stratlab_spec.registry import PUBLISHED_FILES
from stratlab_spec.settings.config import Config
from tests.charts.pod_security import find_pods
from tests.charts.rendering import (
    CHARTS,
    RELEASE,
    Document,
    container,
    environment,
    expand,
    render,
    training_pod,
)
from trainer.data.text.token_cache import cache_name
from trainer.prepare.request import STALE_AFTER_S, Request, read_request

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
