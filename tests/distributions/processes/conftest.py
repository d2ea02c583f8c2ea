"""All distributions, built once per process of the tests."""

import pytest

from tests.distributions.built import HOMES, build, copy_tree


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Name -> what was built of it."""
    tree = copy_tree(tmp_path_factory.mktemp("tree"))
    return {name: build(tree, name, tmp_path_factory.mktemp(name)) for name in HOMES}
