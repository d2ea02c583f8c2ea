"""Runs copied by wandb's own package, read back from its file."""

import json
import struct

import pytest

from stratlab import UserError
from stratlab.metrics import build_id, build_points, export_to_wandb, list_exported
from tests.codes import find_codes
from tests.stratlab.compare.building import build

BLOCK = 32768


def read_log(content):
    """Yield the records of LevelDB's log format, after wandb's header: crc (4 bytes), length (2), type (1), data."""
    whole, first, middle, last = 1, 2, 3, 4
    place, parts = 7, b""
    while place < len(content):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts = (b"" if kind in (whole, first) else parts) + content[place + 7 : place + 7 + length]
        place += 7 + length
        assert kind in (whole, first, middle, last)
        if kind in (whole, last):
            yield parts


def test_every_number_of_a_run_is_in_wandb_s_file(tmp_path):
    from wandb.proto import wandb_internal_pb2

    build(tmp_path / "demo", ["ddp"], device="cpu")
    (run,) = list_exported([tmp_path / "demo"])
    assert list_exported([tmp_path / "demo/ddp"])[0].name == run.name
    (sentence,) = export_to_wandb([run], "lab", "", tmp_path / "out", offline=True)
    (file,) = (tmp_path / "out").rglob("*.wandb")
    assert build_id(run) in file.name and str(tmp_path / "out") in sentence
    rows, config = {}, {}
    for data in read_log(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            assert (record.run.project, record.run.display_name) == ("lab", run.name)
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif record.HasField("history"):
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            rows[items.pop("_step")] = {
                name: value for name, value in items.items() if not name.startswith("_")
            }
    assert rows == build_points(run.metrics) and len(rows) > 3 and config["strategy"] == "ddp"


def test_what_cannot_be_copied_is_refused(tmp_path):
    with pytest.raises(UserError) as refusal:
        list_exported([tmp_path / "absent"])
    assert refusal.value.exit_code == 3
    build(tmp_path / "demo", ["ddp"], device="cpu")
    runs = list_exported([tmp_path / "demo"])
    with pytest.raises(UserError) as refusal:
        [*export_to_wandb(runs, "no/such project", "", tmp_path / "out", offline=True)]
    assert find_codes(str(refusal.value)) == ["SL-wandb-failed"]
