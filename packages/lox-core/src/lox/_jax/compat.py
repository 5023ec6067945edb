"""What lox uses of JAX's internals, and forks between JAX versions. The files next to this one have the rest.

No other folder imports ``jax._src``. Each fork has a comment with the version up to or from which it is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.custom_batching
import jax.extend
import numpy as np
from jax._src import config as _config
from jax._src import core as _core
from jax._src import effects as _effects
from jax._src import source_info_util as _source_info_util
from jax._src.interpreters import ad, batching
from jax._src.interpreters import partial_eval as _pe
from jax._src.lax import lax as _lax
from jax._src.state.types import AbstractRef, AccumEffect, WriteEffect

from lox._jax import hi_primitives

# What every commit is tested with; see CONTRIBUTING.md.
TESTED_JAX = ("0.9.0", "0.10.2", "0.12.0.1")

# --- effects ---------------------------------------------------------------------------------------------------------

Effect = _effects.Effect


# Our own effects, and whether JAX keeps them in order.
our_effects: dict[type[Effect], bool] = {}


def allow_effect(effect_type: type[Effect], *, ordered: bool = False) -> None:
    """Let one of our effects pass through every transformation."""
    our_effects[effect_type] = ordered
    if _are_registered:  # a module that was imported after the first mark
        register_effects()


_are_registered = False


def register_effects() -> None:
    """Tell JAX about our effects.

    Without ``partial_eval_kept_effects``, ``grad`` of a ``scan`` loses the effects of its body in silence.
    """
    global _are_registered
    _are_registered = True
    for effect_type, ordered in our_effects.items():
        for allowed in (
            _effects.lowerable_effects,
            _effects.control_flow_allowed_effects,
            _effects.custom_derivatives_allowed_effects,
            _effects.remat_allowed_effects,
            _effects.partial_eval_kept_effects,
        ):
            allowed.add_type(effect_type)
        if ordered:
            _effects.ordered_effects.add_type(effect_type)
            # It is not really shardable: the lowering refuses several devices, with a better message than JAX's.
            _effects.shardable_ordered_effects.add_type(effect_type)


def is_our_effect(effect: Any) -> bool:
    return isinstance(effect, tuple(our_effects))


# --- primitives ------------------------------------------------------------------------------------------------------

Primitive = jax.extend.core.Primitive
Tracer = jax.core.Tracer
ShapedArray = jax.core.ShapedArray


def define_batching(primitive: Any, rule: Callable[..., Any]) -> None:
    """``rule(axis_data, args, dims, **params)`` is called even if no operand is batched."""
    batching.fancy_primitive_batchers[primitive] = rule


def vmap_again(
    fun: Callable[..., Any], axis_data: Any, dims: Sequence[Any], out_dims: Sequence[Any]
) -> Callable[..., Any]:
    """Applies the ``vmap`` that a batching rule was called for to another function, which returns a list."""
    name = None if axis_data.name is _core.no_axis_name else axis_data.name
    options = {"axis_size": axis_data.size, "axis_name": name, "spmd_axis_name": axis_data.spmd_name}
    return jax.vmap(fun, in_axes=tuple(dims), out_axes=list(out_dims), **options)


def holds_effect(params: dict[str, Any], kinds: type[Effect] | tuple[type[Effect], ...]) -> bool:
    """Whether something inside an equation has an effect of these kinds."""
    return any(isinstance(effect, kinds) for jaxpr in jaxprs_in_params(params) for effect in jaxpr.effects)


def move_to_front(axis_data: Any, value: Any, dim: Any) -> Any:
    """``value`` with its lane axis first. A value without one is broadcast."""
    return batching.bdim_at_front(value, dim, axis_data.size)


def define_staging(primitive: Any, effects: frozenset[Effect]) -> None:
    """A staging rule for primitives without results. JAX's own caches the types of results for each set of params, which takes
    longer than making the equation."""

    def rule(trace: Any, source_info: Any, *tracers: Any, **params: Any) -> list[Any]:
        return trace.emit_eqn(tracers, [], primitive, params, effects, source_info)

    _pe.custom_staging_rules[primitive] = rule


def define_jvp_binding_primals(primitive: Any) -> None:
    """A jvp rule for primitives that carry no gradient: bind the primals, drop the tangents."""

    def rule(primals: Any, tangents: Any, **params: Any) -> Any:
        del tangents
        outs = primitive.bind(*primals, **params)
        return outs, [ad.Zero(_core.typeof(out).to_tangent_aval()) for out in outs]

    ad.primitive_jvps[primitive] = rule


# --- tracing ---------------------------------------------------------------------------------------------------------


def type_key(array: Any) -> Any:
    """A key that is equal for arrays for which a function is traced to the same jaxpr."""
    if isinstance(array, Tracer):
        return jax.typeof(array)
    if isinstance(array, jax.Array):
        # Random keys have no weak types.
        return array.shape, array.dtype, getattr(array, "weak_type", False), array.sharding
    return array.shape, array.dtype


def trace_context() -> Any:
    """What JAX's trace caches depend on besides the function and its arguments (x64 mode, mesh, user contexts, ...)."""
    return _config.trace_context()


def tracing_now() -> bool:
    return not _core.trace_state_clean()


# --- jaxprs ----------------------------------------------------------------------------------------------------------

Literal = jax.extend.core.Literal
# Public from JAX 0.10 on.
jaxprs_in_params = getattr(jax.extend.core, "jaxprs_in_params", None) or _core.jaxprs_in_params


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """The jaxpr and its constants. JAX < 0.11 has open and closed jaxprs; from 0.11 there is one class."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def variable_of(tracer: Any) -> Any:
    """The variable that a value has in the jaxpr for which it was traced; None if it was not traced for one."""
    return getattr(tracer, "val", None) if isinstance(tracer, _pe.DynamicJaxprTracer) else None


def holds_tracers(jaxpr: Any) -> bool:
    """Whether a jaxpr, or one inside it, has a constant that is being traced."""
    body, consts = open_jaxpr(jaxpr)
    # Not `jaxprs_in_params`, which takes the constants away from closed jaxprs.
    params = (leaf for eqn in body.eqns for value in eqn.params.values() for leaf in _several(value))
    return any(isinstance(const, Tracer) for const in consts) or any(
        holds_tracers(value) for value in params if hasattr(value, "eqns")
    )


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def is_ref(value: Any) -> bool:
    return is_ref_type(_core.typeof(value))


def is_ref_type(aval: Any) -> bool:
    """Whether it is the type of a mutable array."""
    return isinstance(aval, AbstractRef)


def writes_refs(jaxpr: Any) -> bool:
    """Whether a jaxpr changes mutable arrays that it was given."""
    return any(isinstance(effect, (WriteEffect, AccumEffect)) for effect in jaxpr.effects)


def uses_refs(eqn: Any) -> bool:
    """Whether an equation is given mutable arrays, or makes some inside it."""
    if any(is_ref_type(atom.aval) for atom in (*eqn.invars, *eqn.outvars)):
        return True
    inner = (open_jaxpr(jaxpr)[0] for jaxpr in all_jaxprs_in_params(eqn.params))
    return any(uses_refs(each) for jaxpr in inner for each in jaxpr.eqns)


def returned_refs(jaxpr: Any) -> dict[int, int]:
    """Which results are mutable arrays, and which of the arguments they are."""
    body, _ = open_jaxpr(jaxpr)
    refs = {i: atom for i, atom in enumerate(body.outvars) if isinstance(atom.aval, AbstractRef)}
    return {i: body.invars.index(atom) for i, atom in refs.items()}


def mode_for(dtypes: Iterable[Any]) -> AbstractContextManager[Any]:
    """A context in which values of these types can be made. A function may itself have entered x64 mode and logged in it."""
    if jax.config.jax_enable_x64 or not _WIDE.intersection(dtypes):
        return contextlib.nullcontext()
    return jax.enable_x64(True)


_WIDE = frozenset(map(np.dtype, (np.int64, np.uint64, np.float64, np.complex128)))


def cast(array: Any, dtype: Any) -> Any:
    """An array as this type. Outside x64 mode, ``astype`` would make a wide array narrow."""
    if array.dtype == dtype:
        return array
    with mode_for([dtype]):
        return jax.lax.convert_element_type(array, dtype)


def constant(value: Any, dtype: Any) -> Any:
    """A literal of a jaxpr as a value of its own type. Outside x64 mode, JAX would make a wide array of numpy narrow."""
    array = np.asarray(value, dtype)
    if array.dtype not in _WIDE:
        return array
    with mode_for([array.dtype]):
        return jax.numpy.asarray(array)


def weak_like(array: Any, like: Any) -> Any:
    """An array that is weakly typed if the other one is."""
    weak = getattr(jax.typeof(like), "weak_type", False)
    if getattr(jax.typeof(array), "weak_type", False) == weak:
        return array
    with mode_for([array.dtype]):
        return _lax._convert_element_type(array, array.dtype, weak_type=weak)


def array_of(value: Any, aval: Any) -> Any:
    """A constant of a jaxpr as an array of this type, weakly typed if the type is. Tangents of integers have no such type."""
    if aval.dtype == jax.dtypes.float0:
        # JAX < 0.10 wraps it in its own class while tracing, and returns numpy.
        return np.asarray(value) if jax.__version_info__ < (0, 10) else value
    with mode_for([aval.dtype]):
        return _lax._convert_element_type(np.asarray(value), aval.dtype, weak_type=getattr(aval, "weak_type", False))


def bind_eqn(eqn: Any, invals: Sequence[Any]) -> Sequence[Any]:
    """Run an equation as it is. JAX < 0.10 has a ``get_bind_params`` that returns (subfuns, params)."""
    primitive = eqn.primitive
    bound = primitive.get_bind_params(eqn.params)
    if type(bound) is tuple:
        subfuns, bound = bound
        invals = (*subfuns, *invals)
    out = primitive.bind(*invals, **bound)
    return list(out) if primitive.multiple_results else [out]  # some return a sequence of their own


def has_mesh(eqn: Any) -> bool:
    """Whether an equation was traced in the context of a mesh."""
    mesh = eqn.ctx.cur_abstract_mesh
    return mesh is not None and not mesh.empty


def scan_arities(params: dict[str, Any]) -> tuple[int, int]:
    """The numbers of constants and carried values. In JAX < 0.11 they are params; later versions have a tree of the inputs."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def call_backward(bwd: Any, *args: Any) -> Sequence[Any]:
    """Call the flat backward rule of a ``custom_vjp``. In JAX >= 0.11 it returns (cotangents, internal logs)."""
    results = bwd.call_wrapped(*args)
    return results[0] if isinstance(results, tuple) and len(results) == 2 and isinstance(results[0], list) else results


def call_thunk(thunk: Any, *args: Any) -> Any:
    """The lazily traced rules in ``custom_jvp_call`` and ``custom_vjp_call`` are wrapped functions."""
    return thunk.call_wrapped(*args)


def is_zero_tangent(tangent: Any) -> bool:
    return type(tangent) is ad.Zero


def instantiate_zeros(tangent: Any) -> Any:
    return ad.instantiate_zeros(tangent)


def zeros_of(aval: Any) -> Any:
    """A tangent of this type that is zero."""
    return ad.instantiate_zeros(ad.Zero(aval))


def zero_tangent(primal: Any) -> Any:
    """What a ``custom_jvp`` rule returns for a result that has no tangent."""
    return jax.custom_derivatives.SymbolicZero(_core.typeof(primal).to_tangent_aval())


def is_linear(operand: Any) -> bool:
    """Whether an operand of a transpose rule is linear, and so has no value."""
    return ad.is_undefined_primal(operand)


def define_jvp(primitive: Any, rule: Callable[..., Any]) -> None:
    ad.primitive_jvps[primitive] = rule


def savable_policy(policy: Any, state: Iterable[Any]) -> Any:
    """The policy of a checkpoint that carries lox's own ``state``.

    JAX < 0.11 rounds what a policy saves with an operation that complex numbers do not have, and running means are kept in
    complex numbers. They are computed again instead.
    """
    if policy is None or jax.__version_info__ >= (0, 11) or not any(map(_is_complex, state)):
        return policy
    return _SavesNoComplex(policy)


@dataclasses.dataclass(frozen=True)
class _SavesNoComplex:
    """Equal for equal policies, so that a checkpoint is traced once."""

    policy: Callable[..., Any]

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> Any:
        makes_complex = primitive.name == "complex" or any(map(_is_complex, avals))
        return False if makes_complex else self.policy(primitive, *avals, **params)


def _is_complex(value: Any) -> bool:
    return jax.numpy.issubdtype(getattr(value, "dtype", bool), np.complexfloating)


def define_transpose(primitive: Any, rule: Callable[..., Any]) -> None:
    ad.primitive_transposes[primitive] = rule


def define_linear(primitive: Any, transpose: Callable[..., Any]) -> None:
    """Define ``transpose(cotangent, operand, **params)`` for a primitive that is linear in its only operand."""
    ad.deflinear2(primitive, transpose)


def type_of(operand: Any) -> Any:
    """The type of an operand of a transpose rule, which may have no value."""
    return operand.aval if ad.is_undefined_primal(operand) else _core.typeof(operand)


def reshaped(aval: Any, shape: tuple[int, ...]) -> Any:
    """The type of a reshaped array."""
    return jax.lax.reshape_p.abstract_eval(aval, new_sizes=shape, dimensions=None, sharding=None)[0]


current_name_stack = _source_info_util.current_name_stack


def source_context(eqn: Any, outer_stack: Any) -> Any:
    """A context with the name stack and traceback of the code that an equation was traced from."""
    source = eqn.source_info
    stack = outer_stack + source.name_stack if source.name_stack.stack else outer_stack
    return _source_info_util.user_context(source.traceback, name_stack=stack)


def all_jaxprs_in_params(params: dict[str, Any]) -> Iterator[Any]:
    """Every jaxpr that an equation holds. In JAX >= 0.11 some primitives are objects with jaxprs inside (``custom_root``)."""
    yield from jaxprs_in_params(params)
    prim = hi_primitives.primitive_of(params)
    if prim is not None:
        yield from jaxprs_in_params(hi_primitives.params_with_jaxprs(prim))


def close(jaxpr: Any, consts: Sequence[Any]) -> Any:
    return jax.extend.core.ClosedJaxpr(getattr(jaxpr, "jaxpr", jaxpr), list(consts))


# --- calling ---------------------------------------------------------------------------------------------------------


def evaluator(jaxpr: Any) -> Callable[..., list[Any]]:
    """A function that evaluates a closed jaxpr on flat arguments."""
    return jax.extend.core.jaxpr_as_fun(jaxpr)


_SEQUENTIAL = jax.custom_batching.sequential_vmap(lambda: None).vmap_rule.__code__


def is_sequential(rule: Any) -> bool:
    """Whether a function with a rule for ``vmap`` was made by ``jax.custom_batching.sequential_vmap``."""
    return getattr(getattr(rule, "rule", None), "__code__", None) is _SEQUENTIAL


def key_impl_name(dtype: Any) -> str:
    """The name of the generator of a PRNG key dtype. ``jax.random.key_impl`` takes only arrays."""
    return str(dtype._impl.name)
