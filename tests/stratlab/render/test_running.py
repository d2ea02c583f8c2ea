"""What the scripts do when they run, with stand-ins for ssh, srun, scontrol, docker and Python on the path."""

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from stratlab import script as hostfile
from stratlab.script import Start, build_docker, build_hostfile, build_slurm, build_torchrun

SLEEP = "/bin/sleep"
"""The real one, where the script has a stand-in."""
SHOW = 'echo "$TRAINER_RUN|$PET_NNODES|$PET_NPROC_PER_NODE|$PET_RDZV_ENDPOINT|$HOSTNAME|$*"'
"""A program's line that shows what a trainer would go by."""


@pytest.fixture
def start(tmp_path):
    return Start(
        name="try", env={"TRAINER_RUN": "try"}, secrets=["TOKEN"], nodes=2, processes=4,
        results=tmp_path / "my runs", mount="/results", accelerator="", image="trainer:1", grace_s=30,
        shared_memory="", memory="", cpus="", rdma=False,
    )  # fmt: skip


@pytest.fixture
def path(tmp_path):
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def put(path, **programs):
    for name, lines in programs.items():
        (path / name).write_text(f"#!/bin/bash\n{lines}\n")
        (path / name).chmod(0o755)


def run(script, path, **env):
    """With programs of `path` before all others, and variables of an earlier run, which must not count."""
    old = {"TRAINER_RUN": "old", "PET_NNODES": "9", "TRAINER_LR": "5", "TOKEN": "secret"}
    old |= {"PET_RDZV_ENDPOINT": "old:1", "PET_MASTER_ADDR": "old", "STRATLAB_X": "old"}
    given = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", **old, **env}
    return subprocess.run(
        ["bash", "-c", script], env=given, cwd=path, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "starter", [build_slurm, build_torchrun, build_docker, lambda s: build_hostfile(s, "ab")]
)
def test_without_a_secret_nothing_starts(starter, start, path):
    put(path, **dict.fromkeys(("srun", "scontrol", "python", "docker", "ssh"), "touch started"))
    one = replace(start, nodes=1) if starter is build_docker else start
    done = run(starter(one), path, TOKEN="", NODE_RANK="0", MASTER_ADDR="a")
    assert done.returncode not in (0, 13) and "TOKEN" in done.stderr and not (path / "started").exists()


@pytest.mark.parametrize(
    ("ended", "culprit", "code", "requeued"),
    [(0, "", 0, False), (1, 12, 12, False), (143, 127, 127, False), (10, 128, 128, True)],
)
def test_slurm_starts_again_what_may_end_otherwise(ended, culprit, code, requeued, start, path):
    put(
        path,
        srun=f"echo started; exit {ended}",
        scontrol='[ "$1" = show ] && echo a || echo "scontrol $*"',
        python=f'echo "$*" >> asked; echo {culprit}',
        sleep='echo "sleep $*"',  # until SLURM ends what it requeues
    )
    done = run(build_slurm(start), path, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[1-2]")
    lines = [line for line in done.stdout.splitlines() if line.startswith(("scontrol", "sleep"))]
    assert done.returncode == code, done.stderr
    assert lines == (["scontrol requeue 7", "sleep 60"] if requeued else [])
    asked = (path / "asked").read_text().split() if ended else []
    wanted = ["-m", "trainer.program", "culprit", "--code", str(ended)] if ended else []
    assert asked[:3] + asked[-2:] == wanted


@pytest.mark.parametrize(("task", "name"), [("1", "try"), ("3", "try-r3")])
def test_slurm_starts_one_trainer_on_each_node(task, name, start, path):
    task_of_node_1 = "export SLURM_NODEID=1 SLURMD_NODENAME=n2"
    put(
        path,
        srun=f'printf "%s\\n" "$@" > given; {task_of_node_1}; eval "${{@: -3:2}} \\"\\${{@: -1}}\\""',
        scontrol="[ \"$3\" = 'n[1-2]' ] && printf 'n1\\nn2\\n'",
        python=SHOW + '; echo "$STRATLAB_NODE|$TRAINER_LR|$PET_MASTER_ADDR|$STRATLAB_X"; '
        'echo "$PET_RDZV_BACKEND|$PET_RDZV_ID|$PET_RDZV_CONF|$PET_MAX_RESTARTS"',
    )
    env = {"SLURM_JOB_ID": "40007", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_ARRAY_TASK_ID": task}
    done = run(build_slurm(start, repeats=3), path, **env)
    place = f"{name}|2|4|n1:20007|{name}-worker-1|-m trainer"
    shown = [place, "n2|||", f"c10d|{name}|read_timeout=15|0"]
    assert done.stdout.splitlines()[:3] == shown, done.stderr
    logs = f"{start.results}/default/.logs/{name}"
    options = ["--kill-on-bad-exit=0", "--wait=0", "--open-mode=append", f"--output={logs}/node%n.log"]
    assert (path / "given").read_text().splitlines()[:4] == options and Path(logs).is_dir()


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ((0, 134), 134),
        ((134, 12), 12),
        ((10, 12), 10),
        ((143, 137), 137),  # the kill, not the stop that followed
        ((137, 143), 137),
        ((134, 143), 143),
        ((137, 12), 12),  # what is permanent wins
    ],
)
def test_the_first_cause_among_hosts_is_the_exit_code(codes, code, start, path):
    put(
        path,
        ssh=f'[ "$3" = a ] && {{ echo $$ > first; exit {codes[0]}; }}; until [ -e seen ]; do {SLEEP} 0.02; done; '
        f"exit {codes[1]}",
        sleep=f'[ -s first ] && ! kill -0 "$(<first)" 2> /dev/null && touch seen; exec {SLEEP} 0.02',
    )
    done = run(build_hostfile(start, ["a", "b"]), path)
    assert done.returncode == code, done.stderr
    ended = [line.split()[::5] for line in done.stdout.splitlines()]
    assert ended == [["a", str(codes[0])], ["b", str(codes[1])]]
    logs = start.results / "default/.logs/try"
    shown = [line for line in done.stderr.splitlines() if line.endswith(".log:")]
    assert shown == [f"{host}, {logs}/node{i}.log:" for i, host in enumerate("ab") if codes[i]]


@pytest.mark.parametrize(("first", "asked", "code"), [(134, False, 134), (12, False, 12), (0, True, 143)])
def test_a_host_that_is_stopped_is_not_the_cause(first, asked, code, start, path, monkeypatch):
    monkeypatch.setattr(hostfile, "AFTER_FAILURE_S", 60 if asked else 0)
    log = start.results / "default/.logs/try/node1.log"
    there = f"until [ -s {shlex.quote(str(log))} ]; do {SLEEP} 0.02; done"
    tell = "[ -e asked ] || { touch asked; kill -TERM $PPID; }; " if asked else ""
    put(
        path,
        ssh=f'[ "$3" = a ] && {{ {there}; exit {first}; }}; shift 3; exec sh -c "$*"',
        python=f"trap 'echo told; exit 143' TERM; {SLEEP} 20 & echo there; wait",
        sleep=f"{there}; {tell}{SLEEP} 0.1",
    )
    done = run(build_hostfile(start, ["a", "b"]), path)
    assert done.returncode == code, done.stderr
    assert log.read_text() == "there\ntold\n"


def test_each_host_starts_its_trainer(start, path):
    wild = "a\nEND_OF_SHARE\nEND_OF_SHARE_\ntouch there\n'"
    hosts = ["me@10.0.0.1", "b"]
    put(
        path,
        ssh='echo "$3" >> hosts; shift 3; exec env -u TOKEN sh -c "$*"',
        python=SHOW + '; echo "$TOKEN$WILD$port"',
    )
    env = {**start.env, "WILD": wild, "port": "80"}
    done = run(build_hostfile(replace(start, env=env), hosts), path, TOKEN="it's $x", PORT="4444")
    assert done.returncode == 0, done.stderr
    logs = [(start.results / f"default/.logs/try/node{index}.log").read_text() for index in (0, 1)]
    place = "try|2|4|10.0.0.1:4444|try-worker-{}|-m trainer\nit's $x{}80\n"
    assert logs == [place.format(index, wild) for index in (0, 1)]
    assert sorted((path / "hosts").read_text().split()) == sorted(hosts) and not (path / "there").exists()


@pytest.mark.parametrize(
    ("nodes", "env", "shown"),
    [
        (1, {}, ["", "4", "", "-m trainer"]),
        (2, {"NODE_RANK": "1", "MASTER_ADDR": "m"}, ["2", "4", "m:29500", "try-worker-1", "-m trainer"]),
        (2, {"NODE_RANK": "1"}, []),
    ],
)
def test_torchrun_has_the_place_of_its_machine(nodes, env, shown, start, path):
    put(path, python=SHOW + "; exit 12")
    done = run(build_torchrun(replace(start, nodes=nodes)), path, HOSTNAME="", **env)
    found = done.stdout.strip().split("|")
    if not shown:
        assert done.returncode not in (0, 12) and done.stdout == ""
        return
    assert done.returncode == 12 and found[0] == "try"
    assert [each for i, each in enumerate(found[1:]) if nodes > 1 or i != 3] == shown
