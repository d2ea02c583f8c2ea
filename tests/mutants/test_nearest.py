from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.nearest import find_nearest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "pack/room/thing.py": "",
        "pack/room/user.py": "from pack.room.thing import a",
        "tests/pack/room/test_thing.py": "",
        "tests/pack/room/test_user.py": "",
        "tests/pack/room/test_neighbour.py": "",
        "tests/pack/room/ranks/test_thing.py": "",
        "tests/pack/other/test_far.py": "from pack.room import thing",
        "tests/pack/room/test_other.py": "from pack.room.thing_two import b",
        "tests/pack/room/nightly/test_thing.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_mirror_importers_their_importers_mirrors_and_the_room(tree: Path) -> None:
    assert find_nearest("pack/room/thing.py", tree) == (
        "tests/pack/room/test_thing.py",
        "tests/pack/other/test_far.py",
        "tests/pack/room/test_user.py",
        "tests/pack/room/test_neighbour.py",
        "tests/pack/room/test_other.py",
        "tests/pack/room/ranks/test_thing.py",
    )


def test_a_module_without_a_mirror_has_the_tests_of_its_room(tree: Path) -> None:
    (tree / "pack" / "room" / "lonely.py").write_text("")
    assert find_nearest("pack/room/lonely.py", tree)[0] == "tests/pack/room/test_neighbour.py"
