"""A picture shows its page as today's program draws it: its mark is the page's hash. Those of the demo: slow/."""

import shutil
from pathlib import Path

from docs.pictures.shown_pages import FOLDER, draw_gpu, hash_given_to_mlflow, hash_page, read_mark, write_mark
from experiments.kept_runs import MOST_BYTES


def test_the_picture_of_a_gpu_shows_its_page(tmp_path: Path) -> None:
    page = draw_gpu(tmp_path)
    assert read_mark(FOLDER / "gpu.png") == hash_page(page, tmp_path), "make pages"
    page.write_text(page.read_text() + " ")
    assert read_mark(FOLDER / "gpu.png") != hash_page(page, tmp_path)


def test_the_picture_of_mlflow_shows_what_it_is_given() -> None:
    assert read_mark(FOLDER / "mlflow.png") == hash_given_to_mlflow(), "make pages"


def test_a_mark_replaces_another_and_leaves_the_picture(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    shutil.copy(FOLDER / "gpu.png", picture)
    write_mark(picture, "another")
    assert read_mark(picture) == "another"
    write_mark(picture, read_mark(FOLDER / "gpu.png"))
    assert picture.read_bytes() == (FOLDER / "gpu.png").read_bytes()


def test_the_demo_is_small() -> None:
    assert (FOLDER / "demo.tar.xz").stat().st_size <= MOST_BYTES
