"""Saving and loading: bitwise at the same number of ranks, refused on every rank, and nothing in it that runs code."""

import builtins
import os
from collections import OrderedDict
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from stratlab_spec.settings.config import ConfigError
from tests.ranks import run_ranks
from tests.trainer.checkpoint.test_dcp_files import Call
from tests.trainer.older_python import pickle_enums_by_name
from tests.trainer.saving import save_state
from tests.trainer.strategies.small import largest_difference, make_config, start, steps
from trainer.checkpoint.deepspeed_files import refuse_code


def save_at_3(folder: Path, out: Path, strategy: str, **settings) -> None:
    """One rank: trains to step 3, saves, goes on to step 6 and leaves the state of then."""
    config = make_config(strategy, int(os.environ["WORLD_SIZE"]), **settings)
    engine = start(config)
    steps(engine, config, 1, 3)
    folder.mkdir(parents=True, exist_ok=True)
    save_state(engine, folder)
    steps(engine, config, 4, 6)
    leave(engine, out)


def load_and_continue(folder: Path, out: Path, strategy: str, **settings) -> None:
    """One rank: an engine with other weights loads the state of step 3 and goes on to step 6."""
    config = make_config(strategy, int(os.environ["WORLD_SIZE"]), **settings)
    engine = start(config.model_copy(update={"seed": 7}))
    engine.load(folder)
    steps(engine, config, 4, 6)
    leave(engine, out)


def leave(engine, out: Path) -> None:
    state = engine.gather_state()
    assert bool(state) == (dist.get_rank() == 0)
    if state:
        torch.save(state, out)
    engine.close()
    dist.barrier()


def read(path: Path) -> dict:
    return torch.load(path, weights_only=True)


def test_a_resumed_run_is_the_same_run_bitwise(tmp_path):
    strategies = {"ddp": "fp32", "fsdp": "bf16", "zero1": "fp16", "zero3": "bf16_native"}

    def each() -> None:
        for strategy, precision in strategies.items():
            settings = {"clip_norm": 0.5, "precision": precision}
            for work, out in ((save_at_3, "whole"), (load_and_continue, "resumed")):
                work(tmp_path / f"{strategy} state", tmp_path / f"{strategy} {out}", strategy, **settings)

    run_ranks(each, 2)
    for strategy in strategies:
        whole, resumed = (read(tmp_path / f"{strategy} {name}") for name in ("whole", "resumed"))
        assert largest_difference(whole, resumed) == 0.0, strategy


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zero2") / "state"
    run_ranks(lambda: save_at_3(folder, folder.parent / "one", "zero2"), 1)
    return folder


@pytest.fixture
def refusals(tmp_path):
    def of(folder: Path, *strategies: str, world_size: int = 1) -> list[str]:
        """What the strategies say, each the same on every rank."""
        out = tmp_path / "out"

        def attempt() -> None:
            for strategy in strategies:
                with pytest.raises(ConfigError) as failure:
                    load_and_continue(folder, out, strategy)
                out.with_suffix(f".{strategy}.{os.environ['RANK']}").write_text(str(failure.value))

        run_ranks(attempt, world_size)
        said = [{path.read_text() for path in tmp_path.glob(f"out.{strategy}.*")} for strategy in strategies]
        assert [len(texts) for texts in said] == [1] * len(strategies)
        return [texts.pop() for texts in said]

    return of


def test_a_folder_without_a_state_is_refused_on_every_rank(tmp_path, refusals):
    (said,) = refusals(tmp_path / "nothing", "zero2", world_size=2)
    assert str(tmp_path / "nothing") in said


def test_a_file_with_code_is_refused_before_anybody_unpickles_it(saved, refusals, tmp_path):
    ran = tmp_path / "ran"
    planted = next((saved / "deepspeed").glob("*optim_states.pt"))
    whole = planted.read_bytes()
    torch.save({"state": Call(open, str(ran), "w")}, planted)
    assert all(planted.name in said for said in refusals(saved, "zero2", "zero3", "fsdp"))
    assert not ran.exists()
    torch.load(planted, weights_only=False)
    assert ran.exists()
    planted.write_bytes(whole[:-100])
    assert planted.name in refusals(saved, "zero2")[0], "a truncated one"


def save_by_name(folder: Path, out: Path, strategy: str) -> None:
    pickle_enums_by_name()
    save_at_3(folder, out, strategy)


def refused(folder: Path, content: Any, protocol: int) -> str:
    """What `refuse_code` says of a file with that content; "" = nothing."""

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
