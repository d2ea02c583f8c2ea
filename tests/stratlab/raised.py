"""What a call raises, so that its codes can be looked at in one line."""

from collections.abc import Callable
from typing import Any

import pytest


def raised(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The exception that `call` must raise."""
    with pytest.raises(Exception) as failure:
        call(*arguments, **options)
    return failure.value
