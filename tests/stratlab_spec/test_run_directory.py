"""What becomes of a file that is replaced as a whole."""

import os
import threading

from stratlab_spec.run_directory import write_whole


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_a_pipe_stays_and_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "values")
    reader.join(timeout=20)
    assert read == ["values"] and pipe.is_fifo()
