"""Everything lox takes from JAX's internals, and every fork between JAX versions.

No other file imports ``jax._src``. Each fork says up to or from which version it is needed.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.extend
from jax._src import callback as _callback
from jax._src import config as _config
from jax._src import core as _core
from jax._src import effects as _effects
from jax._src import sharding_impls as _sharding_impls
from jax._src import source_info_util as _source_info_util
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as _pe
from jax._src.lax.control_flow import loops as _loops
from jax._src.sharding_impls import UNSPECIFIED as _UNSPECIFIED

# --- effects ---------------------------------------------------------------------------------------------------------

Effect = _effects.Effect


_our_effects: list[type[Effect]] = []


def allow_effect(effect_type: type[Effect], *, ordered: bool = False) -> None:
    """Let an effect of our own pass through every transformation.

    Without ``partial_eval_kept_effects``, ``grad`` of a ``scan`` loses the effects of its body in silence.
    """
    _our_effects.append(effect_type)
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
        # Not that it is: the lowering refuses several devices, and says why.
        _effects.shardable_ordered_effects.add_type(effect_type)


# --- primitives ------------------------------------------------------------------------------------------------------

Primitive = jax.extend.core.Primitive
Tracer = jax.core.Tracer
ShapedArray = jax.core.ShapedArray


def define_batching(primitive: Any, rule: Callable[..., Any]) -> None:
    """``rule(axis_data, args, dims, **params)`` is called for every operand combination, all-unbatched included."""
    batching.fancy_primitive_batchers[primitive] = rule


def wrap_batching(primitive: Any, wrap: Callable[[Any, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``wrap(primitive, rule)`` in the place of a rule ``rule(axis_data, args, dims, **params)``."""
    batching.fancy_primitive_batchers[primitive] = wrap(primitive, batching.fancy_primitive_batchers[primitive])


def vmap_again(fun: Callable[..., Any], axis_data: Any, dims: Sequence[Any]) -> Callable[..., Any]:
    """The ``vmap`` that a batching rule was called for, of another function."""
    name = None if axis_data.name is _core.no_axis_name else axis_data.name
    options = {"axis_size": axis_data.size, "axis_name": name, "spmd_axis_name": axis_data.spmd_name}
    return jax.vmap(fun, in_axes=tuple(dims), **options)


def holds_effect(params: dict[str, Any], kinds: type[Effect] | tuple[type[Effect], ...]) -> bool:
    """Whether something inside an equation has an effect of these kinds."""
    return any(isinstance(effect, kinds) for jaxpr in jaxprs_in_params(params) for effect in jaxpr.effects)


def move_to_front(axis_data: Any, value: Any, dim: Any) -> Any:
    """``value`` with its lane axis first, broadcast to the axis size where it has none."""
    return batching.bdim_at_front(value, dim, axis_data.size)


def define_staging(primitive: Any, effects: frozenset[Effect]) -> None:
    """For primitives without results: JAX would remember the types of the results for every equation with other params,
    which takes longer than making the equation."""

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


# --- marks under differentiation ---------------------------------------------------------------------------------------
# When JAX differentiates a scan it moves what does not depend on carry or xs out of the loop: a mark would then run once
# instead of n times. For the derivative of a while loop it runs the whole loop a second time, with its marks. And what it
# stages out of calls and conditionals is kept for its results only: marks have none. Loops, calls and conditionals without
# marks are left to JAX.


def keep_in_loops(primitive: Any) -> None:
    """Under differentiation, equations of ``primitive`` stay in their loops, and run once."""
    _our_primitives.add(primitive)

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if not _taking_a_checkpointed_scan_apart():
            return trace.default_process_primitive(primitive, tracers, params)
        # A mark of constants depends on nothing, and would leave the loop with what is known.
        return _stage(trace, primitive, tracers, params)

    _pe.custom_partial_eval_rules[primitive] = rule
    _pe.partial_eval_jaxpr_custom_rules[primitive] = _pass_on_in_checkpoint


def _stage(trace: Any, primitive: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
    """Put an equation into the jaxpr that partial evaluation builds, whatever is known."""
    staged = [trace.instantiate_const(tracer) for tracer in tracers]
    out_avals, effects = primitive.abstract_eval(*(tracer.aval for tracer in staged), **params)
    outs = [_pe.JaxprTracer(trace, _pe.PartialVal.unknown(aval), None) for aval in out_avals]
    eqn = _pe.new_eqn_recipe(trace, staged, outs, primitive, params, effects, _source_info_util.current())
    trace.effect_handles.append(_pe.EffectHandle(staged, eqn))
    for out in outs:
        out.recipe = eqn
    return outs


def _taking_a_checkpointed_scan_apart() -> bool:
    """That pass is a partial evaluation like any other: the one thing that tells it apart is who started it."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _loops._scan_partial_eval_custom.__code__:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


_our_primitives: set[Any] = set()


def _holds_ours(params: dict[str, Any]) -> bool:
    return holds_effect(params, tuple(_our_effects))


def _is_ours(effect: Any) -> bool:
    return isinstance(effect, tuple(_our_effects))


_hoist: Any = _loops._scan_known_hoisting


def _hoist_without_marks(jaxpr: Any, consts: Any, num_residuals: int, *rest: Any) -> Any:
    """JAX's own way to move nothing, for loops with marks."""
    if any(map(_is_ours, jaxpr.effects)):
        return jaxpr, consts, [False] * num_residuals, []
    return _hoist(jaxpr, consts, num_residuals, *rest)


class _EverythingIsARef:
    """Stands in for the module in which JAX looks up what must not be moved out of a loop."""

    AbstractRef = object


def _take_apart_without_hoisting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Scans in ``jax.checkpoint``: JAX moves all invariants but references, so let everything be one."""
    in_place = types.FunctionType(original.__code__, {**original.__globals__, "state": _EverythingIsARef})

    def rule(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        return (in_place if _holds_ours(eqn.params) else original)(saveable, unknown, instantiated, eqn)

    return rule


def _run_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """While loops: JAX runs the known part, and stages the whole loop for the rest."""

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if not _holds_ours(params):
            return original(trace, *tracers, **params)
        if not _marks_are_known(tracers, params):
            tracers = tuple(map(trace.instantiate_const, tracers))
        handles = list(trace.effect_handles)
        outs = original(trace, *tracers, **params)
        _forget_repetition(trace, handles, outs)
        return outs

    return rule


def _marks_are_known(tracers: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether the known part of a while loop has all of its marks."""
    unknown = [not tracer.is_known() for tracer in tracers]
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    consts, carry = unknown[num_cond:][:num_body], unknown[num_cond + num_body :]
    while True:
        _, staged, carry_out, _ = _pe.partial_eval_jaxpr_nounits(params["body_jaxpr"], consts + carry, carry)
        if list(carry_out) == carry:
            break
        carry = [a or b for a, b in zip(carry, carry_out, strict=True)]
    _, staged_cond, _, _ = _pe.partial_eval_jaxpr_nounits(params["cond_jaxpr"], unknown[:num_cond] + carry, False)
    return not any(map(_is_ours, {*staged.effects, *staged_cond.effects}))


def _inline(trace: Any, primitive: Any, fun: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
    """JAX < 0.11, closed calls: it takes them apart, and loses the part that has no results but an effect."""
    del primitive, params
    with _core.set_current_trace(trace):
        return fun.call_wrapped(*tracers)


def _whole_with_marks(primitive: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls and conditionals: where a mark would be in the part that is staged, all of it is, and the effect is kept."""

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if _holds_ours(params):
            unknown = [not tracer.is_known() for tracer in tracers]
            unknown = unknown[1:] if primitive.name == "cond" else unknown
            staged = [_pe.partial_eval_jaxpr_nounits(jaxpr, unknown, False)[1] for jaxpr in _closed_jaxprs(params)]
            if any(_is_ours(effect) for jaxpr in staged for effect in jaxpr.effects):
                return _stage(trace, primitive, tracers, params)
        return original(trace, *tracers, **params)

    return rule


def _closed_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs of an equation with their constants, which ``jaxprs_in_params`` leaves behind."""
    for value in params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(part, "eqns"):
                yield part if hasattr(part, "consts") else close(part, ())


def _forget_repetition(trace: Any, handles: list[Any], outs: Sequence[Any]) -> None:
    """Of a loop that was run for its known results and staged for the others: no marks in the staged one."""
    unknown = [out for out in outs if isinstance(out, _pe.JaxprTracer) and not out.pval.is_known()]
    if len(unknown) == len(outs):
        return
    trace.effect_handles[:] = handles
    if not unknown:  # it was staged for its effect alone
        return
    eqn = unknown[0].recipe
    silent = eqn._replace(params=_silent(eqn.params), effects=_others(eqn.effects))  # a recipe, not an equation
    for out in unknown:
        out.recipe = silent


def _run_once_in_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    """While loops in ``jax.checkpoint``: what is computed again for the backward pass has no marks."""

    def rule(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        known, staged, *rest = original(saveable, unknown, instantiated, eqn)
        if known is not None and _holds_ours(eqn.params):
            staged = _silent_eqn(staged)
        return known, staged, *rest

    return rule


def _pass_on_in_checkpoint(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    """Equations of ours in ``jax.checkpoint``: JAX saves the results of what has an effect. A token need not be saved, and
    in a while loop cannot: where all is computed again, it is the one that came in."""
    del saveable
    number = len(eqn.outvars)
    variables = [(atom, there) for atom, there in zip(eqn.invars, instantiated, strict=True) if _is_variable(atom)]
    if any(unknown):
        return None, eqn, [True] * number, [True] * number, [atom for atom, there in variables if not there]
    if not (number and _passes_on(eqn)):
        return eqn, None, [False] * number, [False] * number, []
    token = eqn.invars[0]
    passed = eqn.replace(invars=[token], primitive=jax.lax.copy_p, params={}, effects=set())
    return eqn, passed, [False], [True], [atom for atom, there in variables[:1] if atom is token and not there]


def _is_variable(atom: Any) -> bool:
    return not isinstance(atom, Literal)


def _silent_eqn(eqn: Any) -> Any:
    return eqn.replace(params=_silent(eqn.params), effects=_others(eqn.effects))


def _others(effects: Any) -> Any:
    return frozenset(effect for effect in effects if not _is_ours(effect))


def _silent(value: Any) -> Any:
    """A copy of a jaxpr, or of what holds jaxprs, without our equations."""
    if isinstance(value, dict):
        return {name: _silent(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(_silent, value)) if type(value) in (tuple, list) else value
    if hasattr(value, "eqns") and hasattr(value, "consts") and hasattr(value, "jaxpr"):
        return close(_silent(value.jaxpr), value.consts) if value.jaxpr is not value else _silent_jaxpr(value)
    return _silent_jaxpr(value) if hasattr(value, "eqns") else value


def _silent_jaxpr(jaxpr: Any) -> Any:
    if not any(map(_is_ours, jaxpr.effects)):
        return jaxpr
    passed: dict[Any, Any] = {}  # results of ours that are one of their operands, as it came in

    def origin(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else passed.get(atom, atom)

    eqns = []
    for eqn in jaxpr.eqns:
        eqn = eqn.replace(invars=[*map(origin, eqn.invars)])
        if eqn.primitive in _our_primitives and _passes_on(eqn):
            passed.update(zip(eqn.outvars, eqn.invars, strict=False))
        else:
            eqns.append(_silent_eqn(eqn) if any(map(_is_ours, eqn.effects)) else eqn)
    return jaxpr.replace(eqns=eqns, outvars=[*map(origin, jaxpr.outvars)], effects=_others(jaxpr.effects))


def _passes_on(eqn: Any) -> bool:
    """Whether the results are the first operands: none at all, or the token that orders calls of the host."""
    return len(eqn.outvars) == int(eqn.params.get("has_token", False))


def _mind_the_marks() -> None:
    _loops._scan_known_hoisting = _hoist_without_marks
    rules, checkpoint_rules = _pe.custom_partial_eval_rules, _pe.partial_eval_jaxpr_custom_rules
    for primitive in [p for p in rules if p.name in ("jit", "eval_jaxpr", "cond", "remat2", "checkpoint")]:
        rules[primitive] = _whole_with_marks(primitive, rules[primitive])
    rules[_loops.while_p] = _run_once(rules[_loops.while_p])
    checkpoint_rules[_loops.while_p] = _run_once_in_checkpoint(checkpoint_rules[_loops.while_p])
    if jax.__version_info__ < (0, 11):
        _pe.call_partial_eval_rules[_core.closed_call_p] = _inline
    checkpoint_rules[_loops.scan_p] = _take_apart_without_hoisting(checkpoint_rules[_loops.scan_p])


_mind_the_marks()


def define_lowering(primitive: Any, rule: Callable[..., Any]) -> None:
    mlir.register_lowering(primitive, rule, cacheable=False)


lower_fun = mlir.lower_fun


def lower_to_host_call(
    ctx: Any, call: Callable[..., Any], operands: Sequence[Any], ordered: Effect | None, checked: bool
) -> Any:
    """Call ``call(*numpy_arrays) -> tuple of arrays`` on the host while the compiled program runs.

    JAX looks at the results each time, which is a fifth of a call: ``checked=False`` leaves that out.
    """
    token = ctx.tokens_in.get(ordered) if ordered is not None else None
    results, token, emitted = _callback.emit_python_callback(
        ctx,
        call,
        token,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=True,
        sharding=_host_call_sharding(ctx) if ordered is None else None,
    )
    callbacks = ctx.module_context.host_callbacks
    if not checked and token is None and callbacks and callbacks[-1] is emitted:
        callbacks[-1] = call
    if ordered is not None:
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({ordered: token})))
    return results


def _host_call_sharding(ctx: Any) -> Any:
    """In ``shard_map`` on each device; under automatic sharding once, with the whole value; else no annotation."""
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
    # JAX 0.9 has only the axes of the innermost shard_map there; the mesh of the context knows them all.
    manual = {*context.manual_axes, *jax.sharding.get_abstract_mesh().manual_axes}
    return tuple(axis for axis in context.mesh.axis_names if axis not in manual)


def current_device_count(ctx: Any) -> int:
    return int(getattr(ctx.module_context.axis_context, "num_devices", 1) or 1)


# --- tracing ---------------------------------------------------------------------------------------------------------


def type_key(array: Any) -> Any:
    """Equal for arrays with which a function is traced to the same jaxpr."""
    if isinstance(array, Tracer):
        return jax.typeof(array)
    if isinstance(array, jax.Array):
        # Random keys have no weak types.
        return array.shape, array.dtype, getattr(array, "weak_type", False), array.sharding
    return array.shape, array.dtype


def trace_context() -> Any:
    """What JAX's own trace caches depend on besides function and arguments (x64 mode, mesh, user contexts, ...)."""
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


def bind_eqn(eqn: Any, invals: Sequence[Any]) -> Sequence[Any]:
    """Run an equation as it stands. Several versions of ``get_bind_params`` exist: (subfuns, params) before 0.10."""
    params = eqn.params
    bound = eqn.primitive.get_bind_params(params)
    if isinstance(bound, tuple):
        subfuns, bound = bound
        out = eqn.primitive.bind(*subfuns, *invals, **bound)
    else:
        out = eqn.primitive.bind(*invals, **bound)
    return list(out) if eqn.primitive.multiple_results else [out]


def specified_or_none(shardings: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(None if sharding is _UNSPECIFIED else sharding for sharding in shardings)


def scan_arities(params: dict[str, Any]) -> tuple[int, int]:
    """Numbers of constants and carried values. JAX < 0.11 has them as params, later versions a tree of the inputs."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def call_backward(bwd: Any, *args: Any) -> Sequence[Any]:
    """The flat backward rule of a ``custom_vjp``. From 0.11 on it returns (cotangents, logs of JAX's own)."""
    results = bwd.call_wrapped(*args)
    return results[0] if isinstance(results, tuple) and len(results) == 2 and isinstance(results[0], list) else results


def call_thunk(thunk: Any, *args: Any) -> Any:
    """The lazily traced rules in ``custom_jvp_call`` and ``custom_vjp_call`` are wrapped functions."""
    return thunk.call_wrapped(*args)


def is_zero_tangent(tangent: Any) -> bool:
    return type(tangent) is ad.Zero


def instantiate_zeros(tangent: Any) -> Any:
    return ad.instantiate_zeros(tangent)


def define_jvp(primitive: Any, rule: Callable[..., Any]) -> None:
    ad.primitive_jvps[primitive] = rule


def define_transpose(primitive: Any, rule: Callable[..., Any]) -> None:
    ad.primitive_transposes[primitive] = rule


current_name_stack = _source_info_util.current_name_stack


def source_context(eqn: Any, outer_stack: Any) -> Any:
    """Name stack and traceback of the code that an equation was traced from."""
    source = eqn.source_info
    stack = outer_stack + source.name_stack if source.name_stack.stack else outer_stack
    return _source_info_util.user_context(source.traceback, name_stack=stack)


def all_jaxprs_in_params(params: dict[str, Any]) -> Iterator[Any]:
    """Every jaxpr an equation holds. From 0.11 on some primitives are objects with jaxprs inside (``custom_root``)."""
    yield from jaxprs_in_params(params)
    prim = params.get("_prim")
    if prim is not None:
        yield from jaxprs_in_params(prim.params)


def close(jaxpr: Any, consts: Sequence[Any]) -> Any:
    return jax.extend.core.ClosedJaxpr(getattr(jaxpr, "jaxpr", jaxpr), list(consts))


# --- calling ---------------------------------------------------------------------------------------------------------

_JittedFunction = type(jax.jit(lambda: None))


def is_function(fun: Any) -> bool:
    """A plain Python function or a jitted one: no state that changes between calls."""
    return isinstance(fun, (types.FunctionType, _JittedFunction))


def evaluator(jaxpr: Any) -> Callable[..., list[Any]]:
    """A function that evaluates a closed jaxpr on flat arguments."""
    return jax.extend.core.jaxpr_as_fun(jaxpr)


def jit_options(fun: Any) -> dict[str, Any] | None:
    """Static and donated arguments of a jitted function; None where it is not one, or was given more than those."""
    info = getattr(fun, "_jit_info", None)
    if not isinstance(fun, _JittedFunction) or info is None:
        return None
    shardings = (*info.in_shardings_leaves, *info.out_shardings_leaves)
    layouts = (*info.in_layouts_leaves, *info.out_layouts_leaves)
    if any(s is not _UNSPECIFIED for s in shardings) or any(layout is not None for layout in layouts):
        return None
    if info.device is not None or info.backend is not None or info.compiler_options_kvs:
        return None
    return {
        "static_argnums": info.static_argnums,
        "static_argnames": info.static_argnames,
        "donate_argnums": info.donate_argnums,
        "donate_argnames": info.donate_argnames,
        "keep_unused": info.keep_unused,
    }


def jit_of_equation(eqn: Any, run: Callable[..., Any], kept: Collection[Any]) -> Callable[..., Any]:
    """A jit equation as a function of its variables that is dispatched as the jitted function was.

    ``kept``: variables that somebody still wants, a logged value say, whatever the function was to do with them.
    """
    params = eqn.params
    plain = all(s is _UNSPECIFIED for s in (*params["in_shardings"], *params["out_shardings"]))
    if not plain or params["compiler_options_kvs"] or params["keep_unused"]:
        return run
    variables = [
        donated and atom not in kept
        for donated, atom in zip(params["donated_invars"], eqn.invars, strict=True)
        if not isinstance(atom, Literal)
    ]
    return jax.jit(run, donate_argnums=tuple(i for i, donated in enumerate(variables) if donated))


def is_known_form(eqn: Any) -> bool:
    """Whether lox knows this use of a primitive.

    From 0.11 on several primitives share the name ``call_hi_primitive``; lox knows ``custom_root``. A conditional with
    a branch for each platform cannot be made again by ``lax.switch``.
    """
    prim = eqn.params.get("_prim")
    known_primitive = prim is None or type(prim).__name__ == "CustomRoot"
    return known_primitive and eqn.params.get("branches_platforms") is None


def varying_axes(array: Any) -> frozenset[str]:
    """The mesh axes along which devices differ: ``vma`` up to 0.9, part of ``manual_axis_type`` from 0.10 on."""
    aval = array if isinstance(array, ShapedArray) else jax.typeof(array)
    manual = getattr(aval, "manual_axis_type", None)
    return manual.varying if manual is not None else getattr(aval, "vma", frozenset())


def manual_axes_here() -> tuple[str, ...]:
    """The mesh axes of the shard_maps around the code that is being traced."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def vary_over(array: Any, axes: Iterable[str]) -> Any:
    """An array that JAX takes to differ between the devices along ``axes``."""
    here = varying_axes(array)
    missing = tuple(axis for axis in axes if axis not in here)
    return jax.lax.pcast(array, missing, to="varying") if missing else array


def vary_like(array: Any, like: Any) -> Any:
    return vary_over(array, sorted(varying_axes(like)))


def split_of(aval: Any) -> Any:
    """How a type says that its arrays are split between devices (explicit sharding); None where it does not."""
    sharding = getattr(aval, "sharding", None)
    spec = getattr(sharding, "spec", ())
    return sharding if spec and any(part is not None for part in spec) else None


def split_of_rows(rows: Any) -> Any:
    """How each of the rows along axis 0 is split."""
    sharding = split_of(jax.typeof(rows))
    along = () if sharding is None else tuple(sharding.spec)[1:]
    return sharding.update(spec=along) if any(part is not None for part in along) else None


def is_split(leaf: Any) -> bool:
    return split_of(jax.typeof(leaf) if isinstance(leaf, jax.Array) else leaf) is not None


def zeros_split(shape: Sequence[int], dtype: Any, like: Any) -> Any:
    """Zeros that are split as ``like`` says, along their last axes."""
    if like is None:
        return jax.numpy.zeros(shape, dtype)
    leading = (None,) * (len(shape) - len(like.spec))
    return jax.numpy.zeros(shape, dtype, out_sharding=like.update(spec=(*leading, *like.spec)))


def split_like(array: Any, like: Any) -> Any:
    """An array with the type of ``like``, also in how it is split between devices."""
    wanted, given = getattr(like, "sharding", None), jax.typeof(array).sharding
    return array if wanted is None or wanted == given else jax.sharding.reshard(array, wanted)


def manual_axes_of(eqn: Any) -> frozenset[str]:
    """The mesh axes a shard_map is manual over. The parameter was renamed in 0.10."""
    params = eqn.params
    return params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]


def key_impl_name(dtype: Any) -> str:
    """The generator of a dtype of random keys; ``jax.random.key_impl`` wants an array."""
    return str(dtype._impl.name)
