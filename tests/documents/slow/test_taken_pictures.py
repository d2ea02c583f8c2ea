"""The pictures of the demo show its pages: three analyses and a comparison, drawn anew from kept runs."""

from docs.pictures.shown_pages import FOLDER, draw_demo, hash_page, read_mark


def test_the_pictures_of_the_demo_show_its_pages(tmp_path):
    for picture, page in draw_demo(tmp_path / "demo").items():
        assert read_mark(FOLDER / picture) == hash_page(page, tmp_path), f"{picture}: make pages"
