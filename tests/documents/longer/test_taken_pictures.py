"""A picture shows its page as today's program draws it: its mark is the page's hash. Those of the demo: slow/."""

from docs.pictures.shown_pages import FOLDER, draw_gpu, hash_given_to_mlflow, hash_page, read_mark


def test_the_picture_of_a_gpu_shows_its_page(tmp_path):
    page = draw_gpu(tmp_path)
    assert read_mark(FOLDER / "gpu.png") == hash_page(page, tmp_path), "make pages"
    page.write_text(page.read_text() + " ")
    assert read_mark(FOLDER / "gpu.png") != hash_page(page, tmp_path)


def test_the_picture_of_mlflow_shows_what_it_is_given():
    assert read_mark(FOLDER / "mlflow.png") == hash_given_to_mlflow(), "make pages"
