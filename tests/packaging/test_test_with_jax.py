"""``hatch run jax:test JAX`` takes a version, ``newest``, a wheel or a checkout."""

from __future__ import annotations

import pytest

from scripts import test_with_jax


def test_a_version_is_that_version():
    assert test_with_jax.requirement("0.12.0") == ["jax==0.12.0"]
    assert test_with_jax.requirement("0.13.0rc1") == ["jax==0.13.0rc1"]


def test_the_newest_is_taken_even_where_an_older_one_is_installed():
    assert test_with_jax.requirement("newest") == ["--upgrade", "jax"]


def test_a_wheel_is_installed_and_a_checkout_is_run_as_it_stands(tmp_path):
    wheel = tmp_path / "jax-0.13.0-py3-none-any.whl"
    wheel.touch()
    assert test_with_jax.requirement(str(wheel)) == [str(wheel)]
    assert test_with_jax.requirement(str(tmp_path)) == ["--editable", str(tmp_path)]


def test_anything_else_is_an_error_that_says_what_it_can_be():
    with pytest.raises(SystemExit, match="'0dev' is neither a version, nor 'newest', nor a wheel or a checkout of JAX"):
        test_with_jax.requirement("0dev")
    with pytest.raises(SystemExit, match="hatch run jax:test JAX"):
        test_with_jax.main([])
