"""What a rehearsal makes and takes away, what an operator would inject, what is said at the end."""

import json
from pathlib import Path
from typing import Any

import pytest

from stratlab import UserError
from stratlab.rehearsal import RunEnd, describe_success, next_commands
from stratlab.rehearsal_plan import build_training_pods, check_free, make_folder, remove_empty, replaced
from tests.codes import find_codes
from tests.stratlab.raised import raised


def test_only_what_was_made_and_stayed_empty_is_removed(tmp_path):
    (tmp_path / "mine").mkdir()
    made = make_folder(tmp_path / "mine" / "a" / "b") + make_folder(tmp_path / "mine" / "a" / "c")
    assert made == [tmp_path / "mine" / name for name in ("a", "a/b", "a/c")]
    (tmp_path / "mine" / "a" / "c" / "file").touch()
    remove_empty(made)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "mine" / n for n in ("", "a", "a/c", "a/c/file")]
    (tmp_path / "mine" / "a" / "c" / "file").unlink()
    remove_empty(made)
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]
    (tmp_path / "file").touch()
    assert find_codes(raised(make_folder, tmp_path / "file" / "x")) == ["SL-folder-not-made"]


def test_a_finished_run_is_not_overwritten(tmp_path):
    def refused(replace: bool) -> list[str]:
        with pytest.raises(UserError) as failure:
            check_free(tmp_path, replace=replace)
        return find_codes(failure.value)

    check_free(tmp_path, replace=False)
    (tmp_path / "config.json").write_text('{"config": {}, "resolved": {}}')
    check_free(tmp_path, replace=False)  # an attempt that did not finish may be followed by another
    (tmp_path / "summary.json").touch()
    assert refused(replace=False) == ["SL-rehearse-run-finished"]
    check_free(tmp_path, replace=True)
    for file in tmp_path.iterdir():
        file.unlink()
    (tmp_path / "thesis.tex").touch()
    assert refused(replace=True) == ["SL-folder-taken"]


@pytest.mark.parametrize("new", [True, False])
def test_an_old_run_comes_back_when_no_new_one_came_into_being(tmp_path, new):
    run_dir = tmp_path / "ddp"
    run_dir.mkdir()
    (run_dir / "old").touch()
    with pytest.raises(RuntimeError), replaced(run_dir, replace=True):
        assert not run_dir.exists()
        if new:
            run_dir.mkdir()
        raise RuntimeError
    assert (run_dir / "old").exists() is not new
    assert list(tmp_path.iterdir()) == [run_dir]


CONTAINER = {"name": "pytorch", "command": ["python"], "env": [{"name": "PET_NNODES", "value": "9"}]}
COMMON = {"PYTHONUNBUFFERED": "1", "TRAINER_ACCELERATOR": ""}


def job(
    elastic: dict[str, Any] | None = None,
    per_node: str | None = "2",
    pod: dict[str, Any] | None = None,
    **replicas: int,
) -> dict[str, Any]:
    template = {"spec": {"containers": [CONTAINER]} | (pod or {})}
    spec: dict[str, Any] = {
        "pytorchReplicaSpecs": {
            role: {"replicas": count, "template": template} for role, count in replicas.items()
        }
    }
    spec |= {} if elastic is None else {"elasticPolicy": elastic}
    spec |= {} if per_node is None else {"nprocPerNode": per_node}
    return {"metadata": {"name": "ddp"}, "spec": spec}


def test_worker_only_elastic_gets_what_was_observed_on_a_cluster():
    pods = build_training_pods(job({"minReplicas": 2, "maxReplicas": 2, "maxRestarts": 3}, Worker=2), 4711)
    assert [pod.name for pod in pods] == ["ddp-worker-0", "ddp-worker-1"]
    for pod in pods:  # the injected PET_NNODES wins over the rendered one, as the later entry does
        assert pod.commands[0].env == COMMON | {
            "PET_RDZV_ENDPOINT": "127.0.0.1:4711",
            "PET_RDZV_BACKEND": "c10d",
            "PET_NNODES": "2:2",
            "PET_MAX_RESTARTS": "3",
            "PET_NPROC_PER_NODE": "2",
            "PET_LOCAL_ADDR": "127.0.0.1",
            "HOSTNAME": pod.name,
        }


def test_master_and_worker_get_the_index_of_their_pod_as_rank():
    pods = build_training_pods(job(Master=1, Worker=2), 4711)
    assert [pod.name for pod in pods] == ["ddp-master-0", "ddp-worker-0", "ddp-worker-1"]
    common = COMMON | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4711", "WORLD_SIZE": "6"}
    common |= {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "4711"}
    common |= {"PET_NNODES": "3", "PET_NPROC_PER_NODE": "2"}
    for index, pod in enumerate(pods):
        own = {"RANK": str(index), "PET_NODE_RANK": str(index), "HOSTNAME": pod.name}
        assert pod.commands[0].env == common | own


def test_elastic_extras_and_the_defaults_of_the_operator():
    conf = [{"key": "read_timeout", "value": "15"}, {"key": "a", "value": "b"}]
    elastic = {"rdzvId": "r1", "rdzvConf": conf}
    env = build_training_pods(job(elastic, per_node=None, Worker=3), 1)[0].commands[0].env
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("3:3", "auto")
    assert (env["PET_RDZV_ID"], env["PET_RDZV_CONF"]) == ("r1", "read_timeout=15,a=b")
    assert "PET_MAX_RESTARTS" not in env


@pytest.mark.parametrize(
    ("bad", "code", "named"),
    [
        (job(Worker=2), "SL-no-rendezvous", "ddp"),
        (job({}, Mastr=1), "SL-replica-type", "Mastr"),
        (job({}, Worker=1, pod={"containers": [{"name": "x"}]}), "SL-no-pytorch-container", "ddp"),
        (job({}, Worker=1, pod={"initContainers": [{"name": "unpack"}]}), "SL-init-container", "unpack"),
        (job({}, Worker=1, pod={"volumes": [{"name": "gib", "hostPath": {}}]}), "SL-volume-kind", "gib"),
    ],
)
def test_what_would_hang_or_be_refused_on_a_cluster_is_refused(bad, code, named):
    failure = raised(build_training_pods, bad, 1)
    assert find_codes(failure) == [code] and named in str(failure)


def test_a_run_that_was_restarted_or_lost_traces_says_so(tmp_path):
    summary, attempts = tmp_path / "summary.json", tmp_path / "attempts.jsonl"
    summary.write_text('{"steps": 20, "samples_per_s": 98.24, "measured_steps": 15}')
    lines = [json.dumps({"t": n, "attempt": n, "event": "started"}) + "\n" for n in (1, 2)]
    attempts.write_text(lines[0])
    (said,) = describe_success(tmp_path, 3).splitlines()
    assert all(each in said for each in ("3 s", "20 steps", "samples_per_s 98.24", " 15 "))
    attempts.write_text("".join(lines) + "half a li")
    assert " 2 attempts" in describe_success(tmp_path, 3).splitlines()[1]
    attempts.unlink()
    (tmp_path / "traces").mkdir()
    for dropped, told in (
        ([{"rank": 0, "reason": "No space left."}], "rank 0: No space left"),
        (["odd"], ""),
    ):
        manifest = {"files": [], "dropped": dropped}
        (tmp_path / "traces" / "manifest.json").write_text(json.dumps(manifest))
        assert told in "".join(more := describe_success(tmp_path, 3).splitlines()[1:]) and bool(more) is bool(
            told
        )
    summary.write_text("[" * 100_000)
    assert "done in 3 s" in describe_success(tmp_path, 3)


def test_the_next_commands(tmp_path, monkeypatch):
    monkeypatch.setattr("stratlab.machine.name_program", lambda: ".venv/bin/stratlab")
    (tmp_path / "a b" / "x").mkdir(parents=True)
    end = RunEnd("x", tmp_path / "a b" / "x", 0)
    lines = next_commands([end, end], Path("/m"))
    assert f"compare them:  .venv/bin/stratlab compare '{tmp_path}/a b' --mlflow /m" in lines
    assert lines[-1].endswith(" .venv/bin/stratlab mlflow /m")
    monkeypatch.chdir(tmp_path)
    assert next_commands([end, end], tmp_path / "mlflow")[0].endswith(" a b/x")
    assert not any("compare" in line for line in next_commands([end], Path("/m")))
