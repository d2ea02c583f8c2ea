"""Read back by TensorBoard's own reader."""

import json
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stratlab_spec.run_directory import HEADLINES, RunDirectory
from tests.codes import find_codes
from trainer.launch.tensorboard import EventWriter, build_first_record, build_record, build_records, main


def read(folder: Path) -> dict[str, list[tuple[float, int, float]]]:
    """Tag -> (wall time, step, value) of all its points."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {
        tag: [(point.wall_time, point.step, point.value) for point in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def test_tensorboards_reader_returns_what_was_written(tmp_path: Path) -> None:
    values = [0.0, -1.5, 1e-30, 2.31, 16777217.0, 3e38, 1e39, -1e39]
    tags = {f"system/rank{number}/größe": value for number, value in enumerate(values)}
    steps = (0, 1, 127, 128, 300, 2**31)
    content = build_first_record(1.7e9) + b"".join(build_record(1.7e9 + s, s, tags) for s in steps)
    (tmp_path / "events.out.tfevents.1700000000.here").write_bytes(content)
    found = read(tmp_path)
    with np.errstate(over="ignore"):
        assert found == {
            tag: [(1.7e9 + s, s, float(np.float32(value))) for s in steps] for tag, value in tags.items()
        }


LINES = [
    {"t": 1.5e9, "attempt": 1, "step": 1, "kind": "train", "loss": 2.31, "profiled": False, "samples": 64},
    {"t": 1.5e9 + 1, "attempt": 1, "step": 2, "kind": "train", "loss": 2.29, "profiled": True, "samples": 64},
    {"t": 1.5e9 + 1, "attempt": 1, "step": 2, "kind": "system", "rank3_host_memory_gib": 0.8},
    {"t": 1.5e9 + 2, "attempt": 1, "step": 2, "kind": "event", "name": "profile", "text": "..."},
]


def make_run(results: Path, name: str = "ddp") -> RunDirectory:
    folder = RunDirectory(results, "demo", name)
    folder.create()
    folder.config.write_text("{}")
    write(folder, LINES)
    return folder


def write(folder: RunDirectory, lines: list[dict[str, object]], end: str = "") -> None:
    with folder.metrics.open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines) + end)


def expected(folder: RunDirectory) -> dict[str, list[tuple[float, int, float]]]:
    """Every number of metrics.jsonl, worked out here from the file alone."""
    found: dict[str, list[tuple[float, int, float]]] = {}
    for text in folder.metrics.read_text().splitlines():
        line = json.loads(text)
        for key, value in line.items():
            if isinstance(value, bool | str) or key in ("t", "attempt", "step"):
                continue
            if line["kind"] == "system" and key.startswith("rank"):
                rank, _, rest = key.partition("_")
                key = f"system/{rank}/{rest}"
            key = key if key in HEADLINES else f"detail/{key}"
            point = (int(line["t"] * 1000) / 1000, line["step"], float(np.float32(value)))
            found.setdefault(key, []).append(point)
    return found


def test_every_number_of_the_metrics_is_there_and_a_second_export_replaces_the_first(tmp_path, capsys):
    folders = [make_run(tmp_path, name) for name in ("ddp", "fsdp")]
    assert main([str(folders[0].path.parent), "--output", str(tmp_path / "boards")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    for folder in folders:
        assert read(tmp_path / "boards/demo" / folder.path.name) == expected(folder)
    assert set(expected(folders[0])) == {"loss", "detail/samples", "detail/system/rank3/host_memory_gib"}
    assert not folders[0].tensorboard.exists()
    for step in (3, 4):
        write(folders[0], [{**LINES[0], "step": step}])
        assert main([str(folders[0].path)]) == 0
    assert len(list(folders[0].tensorboard.iterdir())) == 1
    assert read(folders[0].tensorboard) == expected(folders[0])


def test_a_writer_goes_on_behind_the_last_whole_line(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    whole = folder.metrics.stat().st_size
    write(folder, [], end='{"t": 1')
    _, offset, left_out = build_records(folder.metrics, 0)
    assert (offset, left_out) == (whole, 0)
    assert build_records(folder.metrics, offset) == (b"", whole, 0)


def test_what_cannot_be_written_is_refused_and_nothing_is(tmp_path, capsys):
    folder, twin = make_run(tmp_path / "r1"), make_run(tmp_path / "r2")
    (tmp_path / "file").touch()
    for arguments, code, told in (
        ([folder.path, twin.path, "--output", tmp_path / "both"], 2, "SL-boards-clash"),
        ([folder.path.parent, tmp_path], 3, "SL-no-metrics"),
        ([folder.path, "--output", tmp_path / "file"], 2, "SL-board-unwritable"),
    ):
        assert (main([*map(str, arguments)]), find_codes(capsys.readouterr().err)) == (code, [told])
    assert not (tmp_path / "both").exists() and not folder.tensorboard.exists()
    assert main([str(folder.path), str(folder.path.parent), "--output", str(tmp_path / "one")]) == 0


def test_a_launcher_follows_its_own_run_and_no_other(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    folder.append_attempt("started", 1, "another")
    writer = EventWriter(folder, "mine")
    writer._write()
    assert not folder.tensorboard.exists()
    folder.append_attempt("started", 2, "mine")
    writer._write()
    write(folder, [{**LINES[0], "step": 3}], '{"t": 1.5e9, "st')  # half a line
    writer._write()
    assert max(step for _, step, _ in read(folder.tensorboard)["loss"]) == 3
    write(folder, [], 'ep": 4, "kind": "train", "loss": 1.0}\n')
    writer.start()
    writer.finish()
    assert read(folder.tensorboard) == expected(folder)
