"""Marks inside objectives that optimistix and jaxopt evaluate, also in line searches under vmap."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.libraries.checks import lane, tapped

STARTS = jnp.array([0.3, 2.0, 9.0], jnp.float32)


def counted(fun: Any) -> tuple[Any, list[float]]:
    """The oracle: the same objective, its arguments noted by a callback of JAX's own."""
    seen: list[float] = []

    def objective(x: Any, *rest: Any) -> Any:
        jax.debug.callback(lambda x: seen.append(float(x)), x, ordered=True)
        return fun(x, *rest)

    return objective, seen


class TestOptimistix:
    optimistix: Any = None

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        self.optimistix = pytest.importorskip("optimistix", reason="optimistix is not installed: hatch run libs:test")

    def minimise(self, objective: Any, start: Any) -> Any:
        solver = self.optimistix.BFGS(rtol=1e-4, atol=1e-4)
        return self.optimistix.minimise(objective, solver, start, args=None, max_steps=64, throw=False).value

    @staticmethod
    def objective(x: Any, args: Any) -> Any:
        return jnp.sqrt(1.0 + (x - 1.0) ** 2) + 0.1 * x**2

    def logged(self, start: Any) -> Any:
        def objective(x: Any, args: Any) -> Any:
            lox.log({"x": x})
            return self.objective(x, args)

        return self.minimise(objective, start)

    def test_every_evaluation_of_the_line_search_is_a_record(self) -> None:
        objective, seen = counted(self.objective)
        expected = self.minimise(objective, STARTS[1])
        jax.effects_barrier()
        found, rows = tapped(self.logged, STARTS[1])
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        np.testing.assert_allclose(rows["x"], seen, rtol=1e-6)
        assert len(seen) > 3

    def test_each_lane_has_its_own_records(self) -> None:
        """The loops of optimistix ask whether any lane goes on."""
        spooled = lox.spool(self.logged, capacity=100)
        found, logs = jax.jit(jax.vmap(spooled))(STARTS)
        alone = [spooled(start) for start in STARTS]
        lengths = [int(logs.counts["x"]) for _, logs in alone]
        assert len(set(lengths)) > 1
        assert logs.counts["x"].tolist() == lengths
        for i, (value, own) in enumerate(alone):
            np.testing.assert_allclose(found[i], value, rtol=1e-4)
            np.testing.assert_allclose(lane(logs, i).trim()["x"], own.trim()["x"], rtol=1e-3, atol=1e-4)

    def test_the_gradient_through_a_root_finder_is_unchanged(self) -> None:
        def root(scale: Any) -> Any:
            def residual(y: Any, scale: Any) -> Any:
                lox.log({"residual": y}, reduce="count")
                return y**3 - scale

            solver = self.optimistix.Bisection(rtol=1e-4, atol=1e-4)
            options = {"lower": 0.0, "upper": 4.0}
            return self.optimistix.root_find(residual, solver, jnp.float32(1.0), args=scale, options=options).value

        scale = jnp.float32(8.0)
        value, logs = lox.spool(root)(scale)
        np.testing.assert_allclose(value, 2.0, rtol=1e-3)
        if importlib.metadata.version("lineax") == "0.1.0":  # the newest one for JAX 0.9
            # It evaluates the function for its derivative in a vmap of one lane, and values there have its axis.
            with pytest.raises(lox.LoxError, match=r"'residual' is logged with the shape \(\) at .* and \(1,\) at"):
                lox.spool(jax.grad(root))(scale)
            return
        gradient, more = lox.spool(jax.grad(root))(scale)
        np.testing.assert_allclose(gradient, 1.0 / 12.0, rtol=1e-3)
        # The derivative of an implicit function evaluates it once more.
        assert int(more["residual"]) > int(logs["residual"]) > 10


class TestJaxopt:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("jaxopt", reason="jaxopt is not installed")

    def descend(self, start: Any, mark: bool) -> Any:
        import jaxopt

        def objective(x: Any) -> Any:
            if mark:
                lox.log({"x": x})
            return jnp.sum((x - 3.0) ** 4)

        solver = jaxopt.LBFGS(objective, maxiter=4, linesearch="zoom", tol=0.0, implicit_diff=False)
        return solver.run(start).params

    def test_a_line_search_under_vmap(self) -> None:
        starts = jnp.array([[0.5, 1.0], [8.0, -2.0]], jnp.float32)
        plain = jax.vmap(lambda start: self.descend(start, mark=False))(starts)
        spooled = lox.spool(lambda start: self.descend(start, mark=True), capacity=60)
        found, logs = jax.vmap(spooled)(starts)
        np.testing.assert_allclose(found, plain, rtol=1e-5)
        for i, start in enumerate(starts):
            alone = spooled(start)[1].trim()
            np.testing.assert_allclose(lane(logs, i).trim()["x"], alone["x"], rtol=1e-4, atol=1e-5)
