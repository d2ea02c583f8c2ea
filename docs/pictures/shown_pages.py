"""The pages that pictures show, drawn from kept runs; and the mark by which a picture names its page.

    gpu.png           five strategies on one H200 (tests/data/runs/h200)
    comparison.png    the demo (demo.tar.xz, kept by `python -m docs.pictures.keep_demo`)
    report.png        its slowest run
    mlflow.png        its runs on MLflow's page

A picture's mark is a hash: of its page, or of what MLflow is given. A picture whose mark is another one is out of date.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from experiments.kept_runs import PLACE, unpack_runs
from stratlab.api import compare

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
H200 = ROOT / "tests/data/runs/h200"
DEMO = FOLDER / "demo.tar.xz"
GIVEN_TO_MLFLOW = (DEMO, ROOT / "stratlab_spec/run_directory.py", ROOT / "stratlab/tracking.py")
KEYWORD = b"page"
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def draw_gpu(folder: Path) -> Path:
    """The page of gpu.png."""
    compare(H200, output=folder)
    return folder / "report.html"


def draw_demo(folder: Path) -> dict[str, Path]:
    """The pages of comparison.png and report.png, by picture.

    Args:
        folder: empty; gets the folder of the demo's comparison.
    """
    comparison = unpack_runs(DEMO, folder)
    compare(comparison, output=comparison / "report")
    slowest = max(comparison.glob("*/summary.json"), key=_read_step_ms).parent
    return {
        "comparison.png": comparison / "report/report.html",
        "report.png": slowest / "analysis/report.html",
    }


def _read_step_ms(summary: Path) -> float:
    return float(json.loads(summary.read_text())["step_time_ms_p50"])


def hash_page(page: Path, folder: Path) -> str:
    """Of the page without the folders of this machine."""
    text = page.read_text().replace(str(folder), PLACE).replace(str(ROOT), PLACE)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_given_to_mlflow() -> str:
    """Of the demo, and of the code that names metrics and writes descriptions and views."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in GIVEN_TO_MLFLOW)).hexdigest()


def write_mark(picture: Path, mark: str) -> None:
    """Puts the mark into a PNG, as a text chunk before its last one."""
    chunks = [chunk for chunk in _read_chunks(picture) if chunk[:4] != b"tEXt"]
    chunks.insert(-1, b"tEXt" + KEYWORD + b"\0" + mark.encode())
    coded = (struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in chunks)
    picture.write_bytes(SIGNATURE + b"".join(coded))


def read_mark(picture: Path) -> str:
    """ "" where it has none."""
    start = b"tEXt" + KEYWORD + b"\0"
    return next(
        (one.removeprefix(start).decode() for one in _read_chunks(picture) if one.startswith(start)), ""
    )


def _read_chunks(picture: Path) -> Iterator[bytes]:
    """Kind and content of each chunk."""
    content = picture.read_bytes()
    at = len(SIGNATURE)
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        yield content[at + 4 : at + 8 + size]
        at += 12 + size
