"""Links to files: relative, escaped, gone from a copy of the page."""

from __future__ import annotations

from pathlib import Path

from stratlab.drawing import drop_file_links, link, link_file, link_ranks, only_here, set_way_back, way_back


def test_a_file_is_linked_as_the_page_sees_it(tmp_path: Path) -> None:
    page = tmp_path / "demo" / "report"
    strange = tmp_path / "demo" / "a b#1?<i>"
    strange.mkdir(parents=True)
    assert link_file("rank 0", strange / "rank0.log", page) == (
        '<a class="file" href="../a%20b%231%3F%3Ci%3E/rank0.log">rank 0</a>'
    )
    assert 'href="../a%20b%231%3F%3Ci%3E/"' in link_file("<all>", strange, page)
    assert "&lt;all&gt;" in link_file("<all>", strange, page)


def test_of_many_ranks_the_folder_is_linked(tmp_path: Path) -> None:
    few = link_ranks({i: tmp_path / f"rank{i}.log" for i in range(8)}, tmp_path)
    many = link_ranks({i: tmp_path / f"rank{i}.log" for i in range(9)}, tmp_path)
    assert len(few) == 8 and many[:8] == few
    assert many[8] == '<a class="file" href="./">all 9</a>'
    assert link_ranks({}, tmp_path) == []


def test_a_copy_elsewhere_has_the_words_alone(tmp_path: Path) -> None:
    html = link_file("rank 0", tmp_path / "rank0.log", tmp_path) + link("MLflow", "https://host/#/x")
    assert drop_file_links(html) == 'rank 0<a href="https://host/#/x">MLflow</a>'
    (tmp_path / "report.html").touch()
    back = way_back(tmp_path / "report.html", tmp_path)
    assert "Comparison" in back and drop_file_links(back) == way_back(None, tmp_path)
    assert drop_file_links(f"<p>{only_here('<b> hold')}</p>") == "<p></p>"


def test_a_page_leads_back_once_there_is_where_to(tmp_path: Path) -> None:
    page, folder = tmp_path / "report" / "report.html", tmp_path / "ddp" / "analysis"
    empty = str(way_back(page, folder))
    assert empty == '<p class="back"></p>' == way_back(None, folder)
    page.parent.mkdir()
    page.touch()
    filled = set_way_back(f"<h1>ddp</h1>{empty}<p>{empty}</p>", page, folder)
    assert filled.startswith('<h1>ddp</h1><p class="back"><a class="file" href="../../report/report.html">')
    assert filled.endswith(f"<p>{empty}</p>"), "the first place alone"
    assert set_way_back(filled, page, folder) == filled
