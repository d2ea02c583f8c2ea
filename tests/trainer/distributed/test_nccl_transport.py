"""What NCCL's log tells: lines of public reports, or by hand where there is none (tests/data/nccl_logs.json)."""

import importlib.util
import json
import mmap
import os
import socket
import time
from pathlib import Path

import pytest

from trainer.distributed.nccl_transport import (
    NcclLog,
    Present,
    RdmaPort,
    Transport,
    find_fall_backs,
    find_own_variables,
    find_present,
    hide_log,
    read_log,
    read_rdma_ports,
    read_transport,
)
from trainer.run import read_environment

LOGS = {
    each["name"]: "\n".join(each["lines"])
    for each in json.loads(Path("tests/data/nccl_logs.json").read_text())
}
READ = {
    "shm": ("2.27.5", "SHM", "", "", ("SHM/direct",)),
    "roce": ("2.27.3", "P2P", "RoCE", "yes", ("NET/IB/GDRDMA", "P2P/CUMEM")),
    "efa": ("2.27.3", "", "EFA", "yes", ("NET/Libfabric/GDRDMA",)),
    "tcp": ("2.27.3", "", "Socket", "no", ("NET/Socket",)),
    "slingshot": ("2.28.3", "P2P", "", "", ("P2P/CUMEM",)),
    "not opened": None,
    "infiniband": (
        *("2.28.9", "NVLink", "InfiniBand", "partly"),
        ("NET/IB/GDRDMA", "NET/IBext_v10", "NVLS", "P2P/CUMEM"),
    ),
    "pcie": ("2.29.2", "PCIe", "", "", ("P2P/IPC",)),
    "sockets within a node": ("2.29.2", "Socket", "", "no", ("NET/Socket",)),
    "nvlink between nodes": ("2.28.9", "", "NVLink", "", ("P2P/MNNVL",)),
    "tcp below libfabric": ("", "", "Socket", "no", ("NET/AWS Libfabric",)),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_transport_is_read_in_the_lines_of_reports(name):
    assert read_transport(LOGS[name]) == (Transport(*READ[name]) if READ[name] else None)


@pytest.mark.parametrize(
    ("joined", "wire"),
    [((), "P2P"), (("NVLink", "NVLink"), "NVLink"), (("PIX", "SYS"), "PCIe"), (("NVLink", "SYS"), "P2P")],
)
def test_without_a_graph_nvml_tells_what_p2p_is(joined, wire):
    assert read_transport(LOGS["roce"], joined).in_node == wire


FORMATS = (
    *("Channel %02d : %d[%d] -> %d[%d] via SHM/", "Channel %02d/%01d : %d[%d] -> %d[%d] via P2P/"),
    *("[send] via NET/%s/%d(%d)%s", "[receive] via COLLNET/%s/%d%s", "nNodes %d localRanks"),
    *("NVLS comm %p", "NET/IB : Using%s %s; OOB", "Pattern %d, crossNic %d", "type %s/%s, sameChannels"),
)


def test_the_installed_nccl_writes_lines_of_these_forms():
    """A newer NCCL with other words would leave every transport unknown."""
    found = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    if found is None:
        pytest.skip("NCCL is not installed")
    (folder,) = found.submodule_search_locations
    with open(Path(folder) / "lib" / "libnccl.so.2", "rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
            assert [each for each in FORMATS if library.find(each.encode()) < 0] == []


def test_a_log_of_our_own_is_read_once_and_is_no_choice_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env = {"NCCL_IB_HCA": "mlx5"}
    log = hide_log(env)
    assert env["NCCL_DEBUG"] == "INFO" and env["NCCL_DEBUG_FILE"] == str(log.path)
    assert find_own_variables(env) == {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}
    assert read_environment(env) == {"NCCL_IB_HCA": "mlx5"}
    log.path.write_text(LOGS["tcp"] + "\n")
    assert read_log(log).between_nodes == "Socket"
    assert not log.path.exists() and read_log(log) is None


@pytest.mark.parametrize("text", ["INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GD", ""])
def test_a_line_that_nccl_still_writes_names_nothing(tmp_path, text):
    (tmp_path / "log").write_text(text)
    assert read_log(NcclLog(tmp_path / "log")) is None
    assert read_log(NcclLog(Path("a\0b"))) is None


@pytest.mark.parametrize(
    "line",
    ["via P2P/" + " " * 60_000 + "x", "Pattern 4, " * 20_000, f"nNodes {'9' * 5000} via NET/IB/{'9' * 5000}"],
)
def test_an_odd_line_ends_nothing_and_costs_little(tmp_path, line):
    (tmp_path / "log").write_text(f"via SHM/direct\n {line}\n")
    began = time.process_time()
    read_log(NcclLog(tmp_path / "log"))
    assert time.process_time() - began < 1


@pytest.mark.parametrize("own", [{"NCCL_DEBUG": "INFO"}, {}])
def test_a_log_of_the_user_is_read_and_stays(tmp_path, own):
    env = {"NCCL_DEBUG_FILE": f"{tmp_path}/%h-%p.log", **own}
    kept = env["NCCL_DEBUG_FILE"]
    log = hide_log(env)
    log.path.write_text(LOGS["efa"] + "\n")
    assert log.path.name == f"{socket.gethostname().partition('.')[0]}-{os.getpid()}.log"
    assert read_log(log).between_nodes == "EFA" and log.path.exists()
    assert env["NCCL_DEBUG_FILE"] == kept and not find_own_variables(env)


def test_a_log_that_goes_elsewhere_is_unknown():
    env = {"NCCL_DEBUG": "WARN"}
    assert read_log(hide_log(env)) is None and env == {"NCCL_DEBUG": "WARN"}


def plant_port(sys: Path, device: str, **words: str) -> None:
    port = sys / "infiniband" / device / "ports" / "1"
    port.mkdir(parents=True)
    for name, word in words.items():
        (port / name).write_text(f"{word}\n")


def test_ports_of_a_node_are_told_apart(tmp_path):
    plant_port(tmp_path, "mlx5_0", state="4: ACTIVE", link_layer="InfiniBand", rate="400 Gb/sec (4X NDR)")
    plant_port(tmp_path, "mlx5_1", state="4: ACTIVE", link_layer="Ethernet", rate="nonsense")
    plant_port(tmp_path, "mlx5_2", state="1: DOWN", link_layer="InfiniBand", rate="400 Gb/sec")
    plant_port(tmp_path, "rdmap16s27", state="4: ACTIVE", link_layer="Unspecified")
    (tmp_path / "infiniband" / "rdmap16s27" / "device").mkdir()
    (tmp_path / "infiniband" / "rdmap16s27" / "device" / "vendor").write_text("0x1d0f\n")
    ports = read_rdma_ports(tmp_path)
    assert ports == [RdmaPort("InfiniBand", 50.0), RdmaPort("RoCE", None), RdmaPort("EFA", None)]
    assert find_present(ports, ["NVLink"], {}) == Present(True, ("EFA", "InfiniBand"))
    assert find_present(ports, ["NVLink", "SYS"], {"NCCL_IB_DISABLE": "1"}) == Present()
    assert find_present(ports[1:2], ["NVLink"], {"NCCL_P2P_DISABLE": "1"}) == Present()


TCP, ETHERNET, IB = (Transport("", "", name, "no") for name in ("Socket", "Socket", "InfiniBand"))
SHM, NVLINK, P2P = (Transport("", name, "", "") for name in ("SHM", "NVLink", "P2P"))


@pytest.mark.parametrize(
    ("ranks", "fell"),
    [
        ([(TCP, Present(rdma=("InfiniBand",)))] * 2, [True, True]),  # nobody uses what is there
        ([(IB, Present()), (TCP, Present())], [False, True]),  # another rank does better
        ([(TCP, Present()), (TCP, Present())], [False, False]),  # there is nothing else
        ([(IB, Present(rdma=("InfiniBand",))), (None, Present(rdma=("EFA",)))], [False, False]),
        ([(SHM, Present(joined=True)), (SHM, Present())], [True, False]),
        ([(NVLINK, Present(joined=True)), (P2P, Present(joined=True))], [False, False]),
    ],
)
def test_a_fall_back_is_one_where_a_faster_way_is_there(ranks, fell):
    assert [bool(reason) for reason in find_fall_backs(ranks)] == fell
