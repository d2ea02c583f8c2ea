"""The scripts as text; tests/rehearsals/start runs them."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from stratlab import script as module
from stratlab.script import Hosts, RenderRequest, build_script, read_hostfile
from tests.codes import find_codes
from tests.stratlab.raised import raised

ROOT = Path(__file__).parents[3]
RESULTS = Path("/shared/my runs")


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """The trainer is not asked; processes/test_command.py lets it be."""
    monkeypatch.setattr(module, "check", lambda start: [])


def request(*settings, **more):
    return RenderRequest(ROOT / "charts/ddp", RESULTS, ["run.config.model=cnn", *settings], **more)


def script(starter, asked, **more):
    return build_script(replace(asked, starter=starter, **more))[0]


@pytest.mark.parametrize("starter", ["slurm", "docker"])
def test_bash_takes_it_and_no_value_is_more_than_a_value(starter, tmp_path):
    wild = 'a\'b "c" $(touch x) `y` $HOME'
    text = script(starter, request(f"run.env[0].name=WILD,run.env[0].value={wild}", "run.accelerator="))
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    lines = text.replace("exec docker run", 'printf "%s\\n"')
    if starter == "slurm":
        (export,) = [line for line in text.splitlines() if line.startswith("export WILD")]
        lines = f"{export}\nprintf '%s\\n' \"WILD=$WILD\"\n"
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert f"WILD={wild}" in done.stdout.splitlines() and list(tmp_path.iterdir()) == []


def test_a_batch_script_asks_for_what_the_values_ask_for():
    more = (
        "run.nodes=4,run.processesPerNode=8,run.resources.limits.memory=64Gi",
        "run.config.deadline_s=7201",  # no whole minutes
    )
    lines = script("slurm", request(*more)).splitlines()
    assert [line.removeprefix("#SBATCH --") for line in lines if "#SBATCH" in line] == [
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
    without = script("slurm", request("run.accelerator=", "run.graceSeconds=40"), repeats=3).splitlines()
    assert {"#SBATCH --signal=USR1@40", "#SBATCH --array=1-3%1"} <= {*without}
    assert not any("gpus" in line for line in without)


def test_docker_gives_what_a_pod_gets():
    more = (
        "run.processesPerNode=2,run.rdma.enabled=true,run.podSecurity.level=privileged",
        "run.sharedMemory.sizeLimit=3Gi,run.graceSeconds=40",
        "run.resources.limits.memory=8Gi,run.resources.limits.cpu=4,run.resources.requests.cpu=2",
    )
    text = script("docker", replace(request(*more), results=Path('/shared/a,b "c"')))
    row = 'type=bind,"source=/shared/a,b ""c""",target=/results'
    for words in (
        "--gpus 2",
        "--user 10001:10001",
        "--stop-timeout 40",
        "--memory 8192m",
        "--shm-size 3072m",
        "--read-only --cap-drop ALL",
        "--cap-add IPC_LOCK",
        f"--mount '{row}'",
        "--env TRAINER_ACCELERATOR=nvidia.com/gpu",
    ):
        assert words in text, words
    assert "--cpus" not in text
    amounts = "run.resources.limits.cpu=4,run.resources.requests.cpu=2"
    capability = "run.pod.securityContext.capabilities={NET_BIND_SERVICE}"
    text = script("docker", request("run.accelerator=", amounts, capability))
    assert "--cpus 4 " in text and "infiniband" not in text


def test_secrets_are_named_and_never_written():
    asked = request("run.secrets[0].name=HF_TOKEN,run.secrets[0].secret=hub,run.secrets[0].key=token")
    for starter in ("torchrun", "docker"):
        text = script(starter, asked)
        assert ': "${HF_TOKEN:?' in text and "HF_TOKEN=" not in text
    assert "    --env HF_TOKEN \\\n" in text


FIRST = "run.pod.initContainers[0]"
UNPACK = f"{FIRST}.name=unpack,{FIRST}.image=tools:1,{FIRST}.command={{tar}}"


@pytest.mark.parametrize(
    ("starter", "asked", "more", "code", "named"),
    [
        ("docker", request(nodes=2, processes=1), {}, "SL-docker-many-nodes", "run.nodes=2"),
        ("hostfile", request(), {}, "SL-hostfile-option", "--hostfile"),
        ("docker", request(), {"repeats": 2}, "SL-repeats-option", "2"),
        ("slurm", request("run.config.modell=a"), {}, "SL-chart-refuses", "modell"),
        (
            "slurm",
            replace(
                request("prepare.model=a/b"), chart=ROOT / "charts/prepare", settings=["prepare.model=a/b"]
            ),
            {},
            "SL-render-no-run",
            "charts/prepare",
        ),
        ("hostfile", request(), {"hostfile": Path("/no/file")}, "SL-render-hostfile-unreadable", "/no/file"),
        ("torchrun", replace(request(), results=Path("/a\ntouch b")), {}, "SL-results-control", "touch b"),
        ("torchrun", request("run.env[0].name=UID,run.env[0].value=5"), {}, "SL-env-of-shell", "UID"),
        ("torchrun", request(UNPACK), {}, "SL-only-on-cluster", "run.pod.initContainers"),
    ],
)
def test_what_is_wrong_is_said(starter, asked, more, code, named):
    refused = raised(script, starter, asked, **more)
    assert find_codes(refused) == [code] and named in str(refused)


def test_a_hostfile(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# ours\ngpu-01 slots=8\n\nme@10.0.0.2   slots=8 # the second\n")
    assert read_hostfile(file) == Hosts(["gpu-01", "me@10.0.0.2"], 8)
    text = script("hostfile", request(), hostfile=file)
    assert "hosts=(gpu-01 me@10.0.0.2)" in text and "PET_NNODES=2 PET_NPROC_PER_NODE=8" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert find_codes(raised(script, "hostfile", request(nodes=3), hostfile=file)) == [
        "SL-nodes-not-hostfile"
    ]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("", ["SL-render-hostfile-empty"]),
        ("a slots=8\na slots=8\n", ["SL-hostfile-twice"]),
        ("a slots=8\nb slots=4\n", ["SL-hostfile-slots"]),
        ("a slots=8\n-oProxyCommand=x\nb gpus=2\n", ["SL-hostfile-line", "SL-hostfile-line"]),
    ],
)
def test_a_hostfile_that_is_none(text, codes, tmp_path):
    (tmp_path / "hosts").write_text(text)
    assert find_codes(raised(read_hostfile, tmp_path / "hosts")) == codes
