"""What was read of one rank as a file. No pickle: it may lie on a volume that others write to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_origin

import msgspec
import numpy as np

from stratlab.analysis.measuring.rank import Reading
from stratlab.user_error import UserError


def write_reading(reading: Reading, path: Path) -> None:
    """Exactly: whole numbers, floats and arrays come back bit by bit."""
    path.write_bytes(msgspec.msgpack.encode(reading, enc_hook=_encode))


def load_reading(path: Path) -> Reading:
    """What `write_reading` has written.

    Raises:
        UserError: the file holds something else.
    """
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Reading, dec_hook=_decode)
    except (msgspec.DecodeError, TypeError, ValueError) as failure:
        raise UserError(
            f"{path}: no reading of this version, read the share again ({failure}) [SL-reading-other-version]"
        ) from failure


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} in a reading")


def _decode(kind: Any, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    if (get_origin(kind) or kind) is np.ndarray:
        dtype, shape, data = value
        return np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()  # one's own, and writable
    raise NotImplementedError(f"{kind} in a reading")
