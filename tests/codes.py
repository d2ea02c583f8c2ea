"""The codes of messages: `[SL-...]` at the end of a sentence. Tests assert these, so that the words stay free."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

CODE = re.compile(r"\[(SL-[a-z0-9]+(?:-[a-z0-9]+)*)\]")


def find_codes(said: object) -> list[str]:
    """List the codes in a text or in an exception's text, in their order."""
    return CODE.findall(str(said))


@contextmanager
def refuses(
    error: type[Exception] | tuple[type[Exception], ...], code: str, *told: str
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """The block ends with this error, which has this code alone and names all of `told`."""
    with pytest.raises(error) as failure:
        yield failure
    said = str(failure.value)
    assert find_codes(said) == [code] and all(part in said for part in told), said
