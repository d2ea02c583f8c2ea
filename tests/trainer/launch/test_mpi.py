"""The MPI launcher as far as it starts nothing; with stand-ins for kubectl and mpirun: processes/test_mpi.py."""

import pytest

from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import refuses
from trainer.launch import mpi
from trainer.launch.stop import Stop


def test_workers_are_read_in_order(tmp_path):
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("ddp-worker-0 slots=2\nddp-worker-1 slots=2\n\n")
    assert mpi.read_hosts(hostfile) == ["ddp-worker-0", "ddp-worker-1"]
    hostfile.write_text("\n")
    for path, code in ((hostfile, "SL-hostfile-empty"), (tmp_path / "none", "SL-hostfile-unreadable")):
        with refuses(ConfigError, code):
            mpi.read_hosts(path)


def test_it_waits_until_every_worker_has_an_address():
    calls: list[str] = []

    def find(host: str) -> str | None:
        calls.append(host)
        return f"10.0.0.{host[-1]}" if host == "w0" or len(calls) > 4 else None

    found = mpi.wait_for_workers(["w0", "w1"], find, timeout_s=5, poll_s=0.01)
    assert found == ["10.0.0.0", "10.0.0.1"] and calls.count("w0") == 1
    assert mpi.wait_for_workers(["w0"], lambda host: None, timeout_s=0.05, poll_s=0.01) is None


def test_one_process_per_worker_gets_the_variables_and_their_values_stay_hidden():
    env = {
        "TRAINER_RUN": "x", "HF_TOKEN": "hf_secret", "PET_NNODES": "2",
        "PATH": "/bin", "HOSTNAME": "launcher", "STRATLAB_NODE": "its own",
        "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh", "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    command = mpi.build_command(2, env)
    assert command[:3] == ["mpirun", "-np", "2"] and command[-3:] == ["python", "-m", "trainer"]
    assert "hf_secret" not in " ".join(command)
    forwarded = [command[i + 1] for i, part in enumerate(command) if part == "-x"]
    assert forwarded == ["HF_TOKEN", "PATH", "PET_NNODES", "TRAINER_RUN"]


@pytest.mark.parametrize(
    ("given", "ends", "unused"),
    [
        ([134, 0], 0, []),
        ([134, 137, 134, 0], 134, [0]),
        ([12, 0], 12, [0]),
        ([143, 134, 143, 143, 134, 143, 0], 0, []),  # a worker that was told to go is no attempt
    ],
)
def test_v1_tries_again_what_is_worth_it_and_not_for_ever(tmp_path, monkeypatch, given, ends, unused):
    (tmp_path / "kubexec.sh").touch()
    monkeypatch.setattr(mpi, "MPI_FILES", tmp_path)
    monkeypatch.setattr(mpi, "find_by_kubectl", lambda pod: "10.0.0.1")
    monkeypatch.setattr(mpi, "find_by_name", lambda host: host)
    monkeypatch.setattr(mpi, "_run", lambda *arguments: codes.pop(0))
    config, codes = Config(run="try", results=str(tmp_path), max_attempts=3), list(given)
    assert (mpi.launch(config, ["w0"], Stop()), codes) == (ends, unused)
    (tmp_path / "kubexec.sh").unlink()
    codes[:] = [*given, 0]
    assert (mpi.launch(config, ["w0"], Stop()), codes) == (given[0], [*given[1:], 0]), (
        "its operator starts anew"
    )
