"""How lox's primitives are compiled: to nothing, to the code of a function, or to a host call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import callback as _callback
from jax._src import sharding_impls as _sharding_impls
from jax._src.interpreters import mlir

from lox._jax.compat import Effect


def define_lowering(primitive: Any, rule: Callable[..., Any]) -> None:
    mlir.register_lowering(primitive, rule, cacheable=False)


lower_fun = mlir.lower_fun


def lower_to_host_call(
    ctx: Any,
    call: Callable[..., Any],
    operands: Sequence[Any],
    ordered: Effect | None,
    checked: bool,
    types: Sequence[Any] | None = None,
) -> Any:
    """Call ``call(*numpy_arrays) -> tuple of arrays`` on the host while the compiled program runs. ``types`` are those of the
    operands, where not all that came in are sent.

    JAX checks the results each time, which is a fifth of the cost of a call. ``checked=False`` skips that.
    """
    token = ctx.tokens_in.get(ordered) if ordered is not None else None
    types = list(ctx.avals_in if types is None else types)
    results, token, emitted = _callback.emit_python_callback(
        # JAX reads the layouts of the operands from the context.
        dataclasses.replace(ctx, avals_in=types),
        call,
        token,
        list(operands),
        types,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=ordered is not None,  # on a TPU, the core waits for the host to send it
        sharding=_host_call_sharding(ctx) if ordered is None else None,
    )
    callbacks = ctx.module_context.host_callbacks
    if not checked and token is None and callbacks and callbacks[-1] is emitted:
        callbacks[-1] = call
    if ordered is not None:
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({ordered: token})))
    return results


def _host_call_sharding(ctx: Any) -> Any:
    """Inside ``shard_map``, a call on each device; under automatic sharding, one call with the whole value; else None."""
    context = ctx.module_context.axis_context
    if isinstance(context, _sharding_impls.SPMDAxisContext):
        return _callback._get_sdy_array_list_for_callbacks(ctx.avals_out)
    if isinstance(context, _sharding_impls.ShardingContext):
        whole = _sharding_impls.SdyArray(mesh_shape=(), dim_shardings=(), logical_device_ids=(0,))
        number = max(1, len(ctx.avals_out))
        # JAX < 0.10 keeps a list of shardings, later versions a tuple.
        kind = list if jax.__version_info__ < (0, 10) else tuple
        return _sharding_impls.SdyArrayList(kind([whole] * number))
    return None


def automatic_axes(ctx: Any) -> tuple[str, ...]:
    """In a shard_map, the mesh axes that are left to the compiler; () elsewhere."""
    context = ctx.module_context.axis_context
    if not isinstance(context, _sharding_impls.SPMDAxisContext):
        return ()
    # In JAX 0.9 the context has only the axes of the innermost shard_map. The abstract mesh has all of them.
    manual = {*context.manual_axes, *jax.sharding.get_abstract_mesh().manual_axes}
    return tuple(axis for axis in context.mesh.axis_names if axis not in manual)


def current_device_count(ctx: Any) -> int:
    return int(getattr(ctx.module_context.axis_context, "num_devices", 1) or 1)


def platform(ctx: Any) -> str:
    """The platform that a program is lowered for; of several, the first."""
    return str((ctx.platforms or ctx.module_context.platforms)[0])


def may_split_values(ctx: Any) -> bool:
    """Whether the compiler may have split values between devices."""
    return current_device_count(ctx) > 1 or bool(automatic_axes(ctx))
