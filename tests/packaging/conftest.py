"""Wheels built once, for every test here that installs them."""

import pytest

from tests.packaging.wheels import DISTRIBUTIONS, build


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    return {name: build(name, folder) for name in DISTRIBUTIONS}
