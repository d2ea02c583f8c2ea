from __future__ import annotations

from pathlib import Path

from stratlab.run_directory.places import find_rank_logs, find_rank_traces, is_beside


def test_files_of_ranks_go_by_their_number(tmp_path: Path) -> None:
    for folder, name in (("traces", "rank{}_trace.json"), ("ranks", "rank{}.log")):
        (tmp_path / folder).mkdir()
        for rank in (10, 9, 0):
            (tmp_path / folder / name.format(rank)).touch()
    (tmp_path / "traces" / "manifest.json").touch()
    (tmp_path / "ranks" / "rank0.json").touch()
    assert list(find_rank_traces(tmp_path)) == list(find_rank_logs(tmp_path)) == [0, 9, 10]
    assert find_rank_logs(tmp_path)[9].name == "rank9.log"
    assert find_rank_traces(tmp_path / "absent") == {}


def test_a_page_lies_beside_a_run_in_its_results(tmp_path: Path) -> None:
    run = tmp_path / "out" / "runs" / "demo" / "ddp"
    pages = {"out/runs/demo/report": True, "out/report": True, "out": True, "elsewhere": False, ".": False}
    assert {page: is_beside(run, tmp_path / page) for page in pages} == pages
    assert not is_beside(Path("/results/demo/ddp"), Path("/tmp/report")), "the root holds no results"
    assert is_beside(Path("/results/demo/ddp"), Path("/results/demo/report"))
