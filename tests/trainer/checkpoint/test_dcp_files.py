"""What torch.distributed.checkpoint would unpickle from a folder, and what is read of it here."""

import builtins
import copy
import io
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from stratlab_spec.settings.config import ConfigError
from tests.codes import refuses
from trainer.checkpoint.deepspeed_files import NativeTensors, read_metadata, read_sharded

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def fresh() -> dict[str, Any]:
    return {
        "model": {"w": torch.zeros(6)},
        "optimizer": {
            "state.w.step": torch.tensor(0.0), "param_groups.w.lr": 0.0, "param_groups.w.betas": (),
        },
        "loss_scale": torch.zeros(2),
    }  # fmt: skip


@pytest.fixture
def saved(tmp_path) -> Path:
    state = fresh()
    state["model"]["w"] += torch.arange(6)
    state["optimizer"] |= {"param_groups.w.lr": 0.5, "param_groups.w.betas": (0.9, 0.99)}
    dcp.save(state, checkpoint_id=tmp_path / "state")
    return tmp_path / "state"


def repickle(folder: Path, change: Any) -> None:
    found = pickle.loads((folder / ".metadata").read_bytes())
    (folder / ".metadata").write_bytes(pickle.dumps(change(found) or found))


def test_what_was_saved_is_read(saved):
    state = fresh()
    read_sharded(state, saved)
    assert state["model"]["w"].tolist() == list(range(6))
    assert state["optimizer"]["param_groups.w.betas"] == (0.9, 0.99)
    tensors = NativeTensors(saved)
    assert tensors.weight("w").tolist() == list(range(6)) and tensors.weight("v") is None
    assert [*tensors.moments("w")] == ["step"]


def test_of_getattr_only_torch_s_own_enum_is_read(saved):
    """Python 3.11.2 pickles a member of an enum so, 3.11.7 and 3.12 do not."""

    def plant(value: Any) -> None:
        found = pickle.loads((saved / ".metadata").read_bytes())
        found.planner_data = value
        (saved / ".metadata").write_bytes(pickle.dumps(found))

    plant(Call(getattr, _MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST"))
    assert read_metadata(saved).planner_data is _MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST

    for value, named in (
        (Call(getattr, _MEM_FORMAT_ENCODING, "mro"), "'mro'"),
        (Call(getattr, Metadata, "__init__"), "'__init__'"),
        (Call(getattr, {}, "clear"), "{}, 'clear'"),
    ):
        plant(value)
        with refuses(ConfigError, "SL-metadata-refused", named):
            read_metadata(saved)


def plant_entry(saved: Path, content: Any, name: str) -> None:
    """`content`, pickled as torch does, in the place of an entry."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    (saved / "planted").write_bytes(buffer.getvalue())

    def plant(found: Any) -> None:
        index = next(i for i in found.storage_data if i.fqn == name)
        info = copy.copy(found.storage_data[index])
        info.relative_path, info.offset, info.length = "planted", 0, len(buffer.getvalue())
        found.storage_data[index] = info

    repickle(saved, plant)


def program(path: Path) -> Call:
    return Call(os.system, f"touch {path}")


def plant_metadata(saved: Path, content: Any) -> None:
    repickle(saved, lambda found: setattr(found, "planner_data", content))


@pytest.mark.parametrize(
    ("plant", "content", "code", "runs_in_torch"),
    [
        (
            plant_metadata, lambda path: Call(builtins.exec, f"open({str(path)!r}, 'w').close()"),
            "metadata-refused", True,
        ),
        (
            plant_metadata, lambda path: Call(torch.serialization._open_file, str(path), "w"),
            "metadata-refused", True,
        ),
        (partial(plant_entry, name="optimizer.param_groups.w.lr"), program, "value-not-plain", True),
        (partial(plant_entry, name="model.w"), program, "tensors-not-plain", False),
    ],
    ids=["a function", "a class that opens files", "a value", "a tensor"],
)  # fmt: skip
def test_what_is_planted_is_refused_where_torch_would_run_it(
    saved, tmp_path, plant, content, code, runs_in_torch
):
    ran = tmp_path / "ran"
    plant(saved, content=content(ran))
    with refuses(ConfigError, f"SL-{code}"):
        read_sharded(fresh(), saved)
    assert not ran.exists()
    if code == "metadata-refused":
        with pytest.raises(ConfigError):
            NativeTensors(saved)
    if runs_in_torch:
        dcp.load(fresh(), checkpoint_id=saved)
        assert ran.exists(), "what is guarded against happens without the guard"


def test_a_file_outside_of_the_folder_is_not_read(saved, tmp_path):
    def move(found: Any) -> None:
        for info in found.storage_data.values():
            info.relative_path = f"../{info.relative_path}"

    for file in saved.glob("*.distcp"):
        file.rename(tmp_path / file.name)
    repickle(saved, move)
    dcp.load(fresh(), checkpoint_id=saved)
    with refuses(ConfigError, "SL-metadata-refused", " ../"):
        read_sharded(fresh(), saved)


def test_what_is_no_metadata_is_refused(saved):
    for content in (b"", b"garbage", pickle.dumps({"state_dict_metadata": {}})):
        (saved / ".metadata").write_bytes(content)
        with refuses(ConfigError, "SL-metadata-refused"):
            read_metadata(saved)
    (saved / ".metadata").unlink()
    with refuses(RuntimeError, "SL-metadata-missing"):
        read_sharded(fresh(), saved)
