"""What lies in the files of a checkpoint: read in whatever Python it was written, and nothing in it that runs code."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.trainer.older_python import pickle_enums_by_name
from tests.trainer.strategies.ranks.test_state import load_and_continue, read, save_at_3
from tests.trainer.strategies.small import largest_difference


def save_by_name(folder: Path, out: Path, strategy: str) -> None:
    """One rank: as the image's Python saves."""
    pickle_enums_by_name()
    save_at_3(folder, out, strategy)


def save_as_before(folder: Path, out: Path, strategy: str) -> None:
    """One rank: as the image's Python saved while enums went into the files."""
    from enum import Enum

    from trainer.engines import deepspeed_checkpoint as deepspeed_files
    from trainer.engines import deepspeed_checkpoint as deepspeed_snapshot

    as_plain = deepspeed_files.as_plain

    def keep_enums(value, where="state", tensor=lambda held: held):
        return value if isinstance(value, Enum) else as_plain(value, where, tensor)

    deepspeed_files.as_plain = deepspeed_snapshot.as_plain = keep_enums
    save_by_name(folder, out, strategy)


def test_older_checkpoints_of_that_python_are_still_read(tmp_path):
    """By their own strategy, and as plain tensors by another stage."""
    folder, strategies = tmp_path / "state", ("zero2", "zero3")

    def resume() -> None:
        for strategy in strategies:
            load_and_continue(folder, tmp_path / strategy, strategy)

    run_ranks(lambda: save_as_before(folder, tmp_path / "whole", "zero2"), 1)
    run_ranks(resume, 1)
    for strategy in strategies:
        assert largest_difference(read(tmp_path / "whole"), read(tmp_path / strategy)) < 1e-5


class Call:
    """Pickled as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def refused(folder: Path, content: Any, protocol: int) -> str:
    """What `refuse_code` says of a file with that content; "" = nothing."""
    import torch

    from stratlab_spec.settings.config import ConfigError
    from trainer.checkpoint.deepspeed_files import refuse_code

    torch.save(content, folder / "planted.pt", pickle_protocol=protocol)
    try:
        refuse_code(folder)
    except ConfigError as failure:
        return str(failure)
    return ""


@pytest.mark.parametrize("protocol", [2, 3])
def test_of_getattr_only_the_stages_are_read(protocol, tmp_path):
    def look() -> None:
        from deepspeed.runtime.zero.config import ZeroStageEnum

        for form in (Call(ZeroStageEnum, 2), Call(getattr, ZeroStageEnum, "gradients")):
            assert refused(tmp_path, {"zero_stage": form}, protocol) == ""
        for form, named in (
            (Call(getattr, ZeroStageEnum, "mro"), "'mro'"),
            (Call(getattr, Call(getattr, ZeroStageEnum, "gradients"), "to_bytes"), "'to_bytes'"),
            (Call(getattr, {}, "gradients"), "{}, 'gradients'"),
            (Call(builtins.eval, "1"), "eval"),
            (Call(os.system, "true"), "posix.system"),
        ):
            said = refused(tmp_path, {"zero_stage": form}, protocol)
            assert "planted.pt" in said and named in said, (form.call, said)

    run_ranks(look, 1)


def test_a_state_is_written_as_plain_values_or_not_at_all():
    def look() -> None:
        from collections import OrderedDict
        from enum import IntEnum, StrEnum

        import numpy as np
        import torch

        from trainer.engines.deepspeed_checkpoint import as_plain

        class Stage(IntEnum):
            two = 2

        class Word(StrEnum):
            fused = "fused"

        tensor = torch.ones(2)
        state = OrderedDict({"a": [Stage.two, (np.float32(0.5), np.int64(3))], Word.fused: tensor})
        state._metadata = OrderedDict({"": {"version": np.int32(2)}})
        plain = as_plain(state)
        assert type(plain) is OrderedDict and plain == {"a": [2, (0.5, 3)], "fused": tensor}
        assert plain["fused"] is tensor, "shared, where nothing else is asked for"
        assert as_plain(state, tensor=torch.zeros_like)["fused"].tolist() == [0, 0]
        assert plain._metadata == {"": {"version": 2}}
        leaves = [plain["a"][0], *plain["a"][1], *plain, plain._metadata[""]["version"]]
        assert [type(leaf) for leaf in leaves] == [int, float, int, str, str, int]
        assert state["a"][0] is Stage.two, "what DeepSpeed goes on with is not changed"
        with pytest.raises(AssertionError) as unreadable:
            as_plain({"b": [1, Path("x")]})
        assert "state['b'][1]" in str(unreadable.value)

    run_ranks(look, 1)
