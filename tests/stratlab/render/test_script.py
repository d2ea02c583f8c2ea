"""The scripts as text; tests/rehearsals/start runs them."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from stratlab.render.amounts import count_cpus, count_mib, read_amount
from stratlab.render.hostfile import Hosts, read_hostfile
from stratlab.render.script import Wanted, build_script
from stratlab.render.start import Request, build_start
from stratlab.rendering.checking import Refused
from stratlab.user_error import UserError

ROOT = Path(__file__).parents[3]
RESULTS = Path("/shared/my runs")


def request(*settings: str, chart: str = "ddp", **more: object) -> Request:
    return Request(ROOT / "charts" / chart, RESULTS, ["run.config.model=cnn", *settings], **more)  # type: ignore[arg-type]


def script(starter: str, asked: Request, **more: object) -> str:
    return build_script(asked, Wanted(starter, **more))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("starter", ["torchrun", "slurm", "docker"])
def test_bash_takes_it_and_no_value_is_more_than_a_value(starter: str, tmp_path: Path) -> None:
    wild = 'a\'b "c" $(touch x) `y` $HOME'
    asked = request(f"run.env[0].name=WILD,run.env[0].value={wild}", "run.accelerator=")
    text = script(starter, asked)
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    if starter == "docker":
        lines = text.replace("exec docker run", 'printf "%s\\n"')
    else:
        exports = [line for line in text.splitlines() if line.startswith("export WILD")]
        lines = f"{exports[0]}\nprintf '%s\\n' \"WILD=$WILD\"\n"
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert f"WILD={wild}" in done.stdout.splitlines()
    assert list(tmp_path.iterdir()) == []


def test_a_machine_has_its_users_folders_and_an_image_its_own() -> None:
    asked = request(
        "run.config.dataset_path=/results/_prepared/pets", "run.env[0].name=HF_HOME,run.env[0].value=/big/hub"
    )
    here = build_start(asked)
    assert here.env["TRAINER_DATASET_PATH"] == f"{RESULTS}/_prepared/pets"
    assert here.env["TRAINER_RESULTS"] == str(RESULTS)
    assert here.env["HF_HOME"] == "/big/hub"
    assert not {"HOME", "TRITON_CACHE_DIR", "TRAINER_IMAGE", "STRATLAB_NODE"} & here.env.keys()
    there = build_start(asked, in_image=True)
    assert there.env["TRAINER_DATASET_PATH"] == "/results/_prepared/pets"
    assert (there.env["TRAINER_RESULTS"], there.env["HOME"]) == ("/results", "/tmp")
    assert here.run_dir == there.run_dir == RESULTS / "default/ddp"


def test_every_workload_api_gives_the_same_start() -> None:
    starts = [
        build_start(request(f"run.workload.api={api}", "run.nodes=2"))
        for api in ("pytorchjob", "trainjob", "mpijob-v1")
    ]
    assert starts[0] == starts[1] == starts[2] and starts[0].nodes == 2


def test_a_batch_script_asks_for_what_the_values_ask_for() -> None:
    more = (
        "run.nodes=4",
        "run.processesPerNode=8",
        "run.resources.limits.memory=64Gi",
        "run.config.deadline_s=7201",  # no whole minutes
        "run.config.dataset=synthetic",
        "run.config.global_batch_size=1024",
        "run.config.profile_steps=0",
    )
    options = [
        line.removeprefix("#SBATCH --")
        for line in script("slurm", request(*more)).splitlines()
        if "#SBATCH" in line
    ]
    assert options == [
        *(
            "job-name=ddp",
            "nodes=4",
            "ntasks-per-node=1",
            "cpus-per-task=16",
            "gpus-per-node=8",
            "mem=65536M",
        ),
        *("time=123", "requeue", "open-mode=append", "signal=USR1@120", "output=%x-%j.out"),
    ]
    without = script("slurm", request("run.accelerator=", "run.graceSeconds=40"), repeats=3)
    assert (
        "gpus" not in without
        and "#SBATCH --signal=USR1@40\n" in without
        and "#SBATCH --array=1-3%1\n" in without
    )


def test_docker_gives_what_a_pod_gets() -> None:
    text = script(
        "docker",
        request(
            "run.processesPerNode=2",
            "run.rdma.enabled=true",
            "run.podSecurity.level=privileged",
            "run.sharedMemory.sizeLimit=3Gi",
            "run.graceSeconds=40",
            "run.resources.limits.memory=8Gi,run.resources.limits.cpu=4,run.resources.requests.cpu=2",
        ),
    )
    for words in (
        "--gpus 2",
        "--user 10001:10001",
        "--stop-timeout 40",
        "--memory 8192m",
        "--shm-size 3072m",
        "--read-only --cap-drop ALL",
        "--cap-add IPC_LOCK",
        "--mount 'type=bind,source=/shared/my runs,target=/results'",
        "--env TRAINER_ACCELERATOR=nvidia.com/gpu",
    ):
        assert words in text, words
    assert "--cpus" not in text
    amounts = "run.resources.limits.cpu=4,run.resources.requests.cpu=2"
    assert "--cpus 4 " in script("docker", request("run.accelerator=", amounts))


def test_secrets_are_named_and_never_written() -> None:
    asked = request("run.secrets[0].name=HF_TOKEN,run.secrets[0].secret=hub,run.secrets[0].key=token")
    for starter in ("torchrun", "slurm", "docker"):
        text = script(starter, asked)
        assert ': "${HF_TOKEN:?' in text and "HF_TOKEN=" not in text
    assert "    --env HF_TOKEN \\\n" in script("docker", asked)


@pytest.mark.parametrize(
    ("starter", "asked", "more", "sentence"),
    [
        ("docker", request(nodes=2, processes=1), {}, "run.nodes=2: one container is one machine"),
        ("hostfile", request(), {}, "--hostfile FILE belongs to --for hostfile"),
        ("slurm", request(), {"hostfile": Path("x")}, "--hostfile FILE belongs to --for hostfile"),
        ("docker", request(), {"repeats": 2}, "--repeats 2: only with --for slurm"),
        ("slurm", request("run.config.modell=a"), {}, "modell: did you mean model"),
        (
            "slurm",
            Request(ROOT / "charts/prepare", RESULTS, ["prepare.model=a/b"]),
            {},
            "renders 0 PyTorchJob",
        ),
        ("hostfile", request(), {"hostfile": Path("/no/file")}, "--hostfile /no/file: No such file"),
    ],
)
def test_what_is_wrong_is_said(starter: str, asked: Request, more: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        script(starter, asked, **more)
    assert sentence in str(refused.value)


def test_the_trainer_refuses_what_can_never_run() -> None:
    with pytest.raises(Refused, match=r"run\.config\.global_batch_size=20.*run\.config\.micro_batch_size=8"):
        script("slurm", request("run.config.global_batch_size=20", "run.config.micro_batch_size=8", nodes=2))


def test_a_hostfile(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\ngpu-01 slots=8\n\nme@10.0.0.2   slots=8 # the second\n")
    assert read_hostfile(file) == Hosts(["gpu-01", "me@10.0.0.2"], 8)
    text = script(
        "hostfile", request("run.config.global_batch_size=512", "run.config.profile_steps=0"), hostfile=file
    )
    assert "hosts=(gpu-01 me@10.0.0.2)" in text and "PET_NNODES=2 PET_NPROC_PER_NODE=8" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    with pytest.raises(UserError, match="--nodes 3: the hostfile has 2 machines"):
        script("hostfile", request(nodes=3), hostfile=file)


def test_a_value_stays_a_value_on_every_host(tmp_path: Path) -> None:
    """As the hosts see it: a stand-in for ssh that starts what it is told to here, and one for Python."""
    wild = "a\nEND_OF_SHARE\nEND_OF_SHARE_\ntouch there\n'"
    values = {"env": [{"name": "WILD", "value": wild}, {"name": "port", "value": "80"}], "accelerator": ""}
    (tmp_path / "values.yaml").write_text(json.dumps({"run": values}))
    (tmp_path / "hosts").write_text("a\nb\n")
    for name, line in (
        ("ssh", 'shift; exec sh -c "$*"'),
        ("python", 'printf "%s|" "$WILD" "$PET_RDZV_ENDPOINT"'),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    asked = Request(
        ROOT / "charts/ddp", tmp_path / "runs", ["run.config.model=cnn"], [tmp_path / "values.yaml"]
    )
    text = script("hostfile", replace(asked, processes=1), hostfile=tmp_path / "hosts")
    env = {**os.environ, "SSH": str(tmp_path / "ssh"), "PYTHON": str(tmp_path / "python")}
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60
    )
    assert done.returncode == 0, done.stderr
    logs = [(tmp_path / f"runs/default/.logs/ddp/node{index}.log").read_text() for index in (0, 1)]
    assert logs == [f"{wild}|a:29500|"] * 2
    assert not (tmp_path / "there").exists()


def test_docker_reads_a_folder_with_a_comma() -> None:
    asked = replace(request(), results=Path('/shared/a,b "c"'))
    row = 'type=bind,"source=/shared/a,b ""c""",target=/results'
    assert f"--mount '{row}'" in script("docker", asked)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"results": Path("/a\ntouch b")}, r"--results '/a\ntouch b': a line break"),
        ({"settings": ["run.env[0].name=UID,run.env[0].value=5"]}, "run.env: UID: bash sets it"),
    ],
)
def test_what_no_script_can_say_is_refused(more: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        script("torchrun", replace(request(), **more))  # type: ignore[arg-type]
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", ["no host in it"]),
        ("a slots=8\na slots=8\n", ["a is there twice"]),
        ("a slots=8\nb slots=4\n", ["slots differ (4, 8)"]),
        ("a slots=8\n-oProxyCommand=x\nb gpus=2\n", ["line 2, '-oProxyCommand=x'", "line 3, 'b gpus=2'"]),
    ],
)
def test_a_hostfile_that_is_none(text: str, sentences: list[str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UserError) as refused:
        read_hostfile(tmp_path / "hosts")
    assert all(sentence in str(refused.value) for sentence in sentences)


def test_amounts() -> None:
    assert [read_amount(text) for text in ("500m", "2", "1.5", "2Gi", "3M")] == [0.5, 2, 1.5, 2**31, 3e6]
    amounts = ("1Pi", "1E", "1E3", "2e-1", "100n", ".5k")
    assert [read_amount(text) for text in amounts] == pytest.approx([2**50, 1e18, 1e3, 0.2, 1e-7, 500])
    assert [count_cpus(text) for text in ("", "250m", "1001m", "16")] == [1, 1, 2, 16]
    assert count_mib("64Gi") == 65536
    with pytest.raises(ValueError, match="'lots' is no amount"):
        read_amount("lots")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ("cluster-gke-a3-ultra", "run.pod.volumes has nvidia, gib"),
        ("", "run.pod.initContainers has unpack"),
    ],
)
def test_what_only_a_cluster_has_is_refused_by_its_key(values: str, key: str) -> None:
    first = "run.pod.initContainers[0]"
    settings = f"{first}.name=unpack,{first}.image=tools:1,{first}.command={{tar}}"
    files = [ROOT / "examples" / f"{values}.yaml"] if values else []
    with pytest.raises(UserError) as refused:
        script("torchrun", request(*([] if values else [settings]), values=files))
    assert key in str(refused.value) and "only a cluster has" in str(refused.value)


def test_a_capability_that_is_no_card_gives_no_device() -> None:
    text = script("docker", request("run.pod.securityContext.capabilities={NET_BIND_SERVICE}"))
    assert "infiniband" not in text
