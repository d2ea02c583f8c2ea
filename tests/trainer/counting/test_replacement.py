from __future__ import annotations

import pytest

from trainer.memory_estimation.storages import replaced


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    def own(self) -> str:
        return "own"


def test_everything_is_put_back_also_after_a_failure():
    before = dict(vars(Owner))
    with pytest.raises(KeyError), replaced(Owner, own=lambda self: "new", inherited=lambda self: "new"):
        assert Owner().own() == Owner().inherited() == "new" and Base().inherited() == "base"
        raise KeyError
    assert dict(vars(Owner)) == before
    with pytest.raises(AssertionError), replaced(Owner, missing=1):
        pass
