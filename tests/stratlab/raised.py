"""What a call raises, so that its codes can be looked at in one line."""

import pytest


def raised(call, *arguments, **options):
    """The exception that `call` must raise."""
    with pytest.raises(Exception) as failure:
        call(*arguments, **options)
    return failure.value
