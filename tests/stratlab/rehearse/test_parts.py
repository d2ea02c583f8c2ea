"""What a rehearsal makes and takes away, what an operator would inject, what is said at the end."""

import sys
from types import SimpleNamespace

import pytest

from stratlab.rehearsal import check_settings
from stratlab.rehearsal_plan import build_training_pods, check_free, make_folder, remove_empty, replaced
from stratlab.trainer_program import TRAINER, Refused
from tests.codes import find_codes, refuses
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
    def refused(replace):
        return find_codes(raised(check_free, tmp_path, replace=replace))

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


def test_without_a_trainer_no_run_is_started(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n[ $1 = -c ] && echo '[null, []]'\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    pods = [SimpleNamespace(commands=[SimpleNamespace(arguments=TRAINER, env={})])]
    with refuses(Refused, "SL-trainer-not-installed"):
        check_settings([SimpleNamespace(name="a", pods=pods)], False, SimpleNamespace(say=print))


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
    assert (run_dir / "old").exists() is not new and list(tmp_path.iterdir()) == [run_dir]


CONTAINER = {"name": "pytorch", "command": ["python"], "env": [{"name": "PET_NNODES", "value": "9"}]}
COMMON = {"PYTHONUNBUFFERED": "1", "TRAINER_ACCELERATOR": ""}


def job(elastic=None, per_node="2", pod=None, **replicas):
    template = {"spec": {"containers": [CONTAINER]} | (pod or {})}
    spec = {
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
