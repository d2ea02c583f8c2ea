"""Weights that torchvision publishes, downloaded without torch to where torch looks for them below a TORCH_HOME."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from pathlib import Path

from trainer.failures import DataMissing
from trainer.prepare.request import Request
from trainer.settings.published_weights import PUBLISHED_FILES, SERVER

BELOW_HOME = Path("hub", "checkpoints")
PIECE_BYTES = 1 << 20
SILENCE_S = 60.0
"""Without a byte, after which the server counts as not reached."""


def write_weights(request: Request, folder: Path) -> None:
    """The file of one network, in `folder`/hub/checkpoints; its name holds the first digits of its sha256.

    Raises:
        DataMissing: the server has no such file.
        OSError: the server cannot be reached, the volume is full, or what came is not that file.
    """
    name = PUBLISHED_FILES[request.source]
    place = folder / BELOW_HOME
    place.mkdir(parents=True)
    digest = hashlib.sha256()
    try:
        with (
            urllib.request.urlopen(f"{SERVER}/{name}", timeout=SILENCE_S) as answer,
            open(place / name, "wb") as file,
        ):
            while piece := answer.read(PIECE_BYTES):
                digest.update(piece)
                file.write(piece)
    except urllib.error.HTTPError as failure:
        if failure.code == 404:
            raise DataMissing(
                f"--weights {request.source!r}: {SERVER}/{name}: {failure} [SL-published-absent]"
            ) from failure
        raise
    wanted = name.rpartition("-")[2].removesuffix(".pth")
    if not digest.hexdigest().startswith(wanted):
        raise OSError(
            f"{name}: its sha256 begins with {digest.hexdigest()[:8]}, not with {wanted} "
            "[SL-published-sha256]"
        )
