"""The codes of messages: `[SL-...]` at the end of a sentence. Tests assert these, so that the words stay free."""

import re

CODE = re.compile(r"\[(SL-[a-z0-9]+(?:-[a-z0-9]+)*)\]")


def find_codes(said: object) -> list[str]:
    """List the codes in a text or in an exception's text, in their order."""
    return CODE.findall(str(said))
