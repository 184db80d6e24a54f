"""Norms, gated products and rotations of any architecture, one kernel each where proven equal.

The library's modules stay, and so does the way their weights come and go: a kernel reads `weight` when
it runs, and linears are called as modules. Only the forward of an instance is replaced, never a class
or a function of the library. Compiling the layer instead would cost seconds of every run's start and
drop roundings; a library of kernels would name the architectures that it knows.

A replacement is made where the module's own code gives the kernel's result (`proofs.py`). What
doesn't, and every call unlike those proven, runs as the library has it.

The residual addition before a layer's second norm is no module's: it stands in the layer's own forward.
For layers of the common form

    h = hidden + self_attn(input_layernorm(hidden));  h + mlp(post_attention_layernorm(h))

the forward is written here, with addition and norm in one kernel, and used where the layer's own code,
run on stand-ins for its four parts, hands the same tensors from one to the next and gives the same sum.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from scoremode.engines.torch.fused.proofs import (
    ACTIVATIONS,
    Gate,
    Given,
    NotFused,
    differing,
    prove_gate,
    prove_gated,
    prove_norm,
    prove_rotation,
    random,
    running_its_code,
    shell,
)
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.weights.expert_weights import has_gate, is_experts
from scoremode.engines.torch.weights.experts import GATE
from scoremode.lib.fallback import is_missing

FUSED = "triton"
OTHERWISE = "eager (a call unlike those proven)"

# Takes how something was computed.
Note = Callable[[str], None]
# In the order in which the layer calls them.
PARTS: tuple[str, ...] = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
# A keyword that no layer knows.
_EXTRA = "scoremode"
_ROTATION = "apply_rotary_pos_emb"
# Every nn.Module has these of its own.
_SHARED = {name for name, value in vars(nn.Module()).items() if isinstance(value, (dict, set))}


class Fused:
    """A record of what computes the parts of a model that have kernels."""

    def __init__(self) -> None:
        self._outcomes: dict[str, dict[str, None]] = {}

    def note(self, name: str, outcome: str) -> None:
        self._outcomes.setdefault(name, {})[outcome] = None

    def describe(self) -> dict[str, str]:
        """Outcomes by class or function: `triton`, `eager (why)`, or both where instances or calls
        differ."""
        return {name: " and ".join(seen) for name, seen in sorted(self._outcomes.items())}


def fuse(skeleton: Skeleton, device: torch.device, dtype: torch.dtype) -> Fused:
    """Gives the skeleton's layers, and what is around them, kernels on a CUDA device.

    Nothing happens on a CPU, or in float32, where the order of a norm's sum would show.
    """
    if device.type != "cuda" or dtype == torch.float32:
        return Fused()
    return fuse_modules([skeleton.model, *skeleton.layers], device, dtype)


def fuse_modules(roots: Iterable[nn.Module], device: torch.device, dtype: torch.dtype) -> Fused:
    """`fuse` for all modules under `roots`, on any device that Triton's kernels run on."""
    fused = Fused()
    missing = is_missing()
    finder = _Finder(fused, device, dtype)
    for root in roots:
        for module in root.modules():
            name, make = finder.kind(module)
            if make is None:
                continue
            try:
                if missing is not None:
                    raise NotFused(missing)
                place = GATE if is_experts(module) else "forward"
                if place in vars(module):
                    raise NotFused(f"its {place} was replaced")
                setattr(module, place, make(module))
            except NotFused as reason:
                fused.note(name, f"eager ({reason})")
    return fused


class _Finder:
    """Knows what may be fused, and remembers what was proven of modules that look alike."""

    def __init__(self, fused: Fused, device: torch.device, dtype: torch.dtype):
        self._fused, self._device, self._dtype = fused, device, dtype
        self._known: dict[tuple[Any, ...], Any] = {}
        self._rotations: dict[Callable[..., Any], Rotation] = {}

    def kind(
        self, module: nn.Module
    ) -> tuple[str, Callable[[nn.Module], Callable[..., Any]] | None]:
        """The name under which `module` is described, and what makes its forward or raises NotFused;
        None for a module of no kind."""
        name, parts = type(module).__name__, set(module._modules)
        if is_experts(module) and has_gate(module):
            return name, self._experts
        if "RMSNorm" in name and not parts:
            return name, self._norm
        if {"gate_proj", "up_proj", "down_proj"} <= parts or {"gate_up_proj", "down_proj"} <= parts:
            return name, self._gated
        if parts == set(PARTS):
            return name, self._layer
        if _ROTATION in inspect.unwrap(type(module).forward).__code__.co_names:
            return _ROTATION, self._rotated
        return name, None

    def _proven(self, prove: Callable[..., Any], module: nn.Module) -> Any:
        """Returns what `prove` says of the module, or said of one like it."""
        key = _alike(module)
        if key not in self._known:
            try:
                self._known[key] = prove(module, self._dtype, self._device)
            except NotFused as reason:
                self._known[key] = reason
        known = self._known[key]
        if isinstance(known, NotFused):
            raise known
        return known

    def _norm(self, module: nn.Module) -> Callable[..., Any]:
        form, eps = self._proven(prove_norm, module)
        return norm_forward(module, form, eps, self._dtype, self._note_of(module))

    def _gated(self, module: nn.Module) -> Callable[..., Any]:
        activation = self._proven(prove_gated, module)
        return gated_forward(module, activation, self._dtype, self._note_of(module))

    def _experts(self, module: nn.Module) -> Callable[..., Any]:
        form = self._proven(prove_gate, module)
        return gate_of_experts(form, self._dtype, self._note_of(module))

    def _layer(self, module: nn.Module) -> Callable[..., Any]:
        norm = module.get_submodule("post_attention_layernorm")
        if "RMSNorm" not in type(norm).__name__ or "forward" in vars(norm):
            raise NotFused("its second norm has no kernel")
        form, eps = self._proven(prove_norm, norm)
        handed = self._proven(prove_layer, module)
        return layer_forward(module, handed, form, eps, self._dtype, self._note_of(module))

    def _rotated(self, module: nn.Module) -> Callable[..., Any]:
        own = type(module).forward
        if not isinstance(own, FunctionType):
            raise NotFused("the forward that calls it is no function")
        eager = inspect.unwrap(own).__globals__.get(_ROTATION)
        if not callable(eager):
            raise NotFused("is no function of the module")
        if eager not in self._rotations:
            note = partial(self._fused.note, _ROTATION)
            self._rotations[eager] = Rotation(eager, self._dtype, self._device, note)
        return MethodType(rebind(own, _ROTATION, self._rotations[eager]), module)

    def _note_of(self, module: nn.Module) -> Note:
        return partial(self._fused.note, type(module).__name__)


def _alike(module: nn.Module) -> tuple[Any, ...]:
    """The key shared by modules that compute alike: class, settings, parts, shapes and dtypes of
    weights.

    A setting of any other type than the plain ones makes a module alike to none but itself.
    """
    settings = []
    for name, value in vars(module).items():
        if type(value) in (bool, int, float, str, type(None)):
            settings.append((name, value))
        elif name not in _SHARED:
            settings.append((name, id(value)))
    weights = [(n, p.shape, p.dtype) for n, p in module._parameters.items() if p is not None]
    parts = [(n, type(m)) for n, m in module._modules.items()]
    return type(module), tuple(settings), tuple(weights), tuple(parts)


def norm_forward(
    module: Any, form: str, eps: float, dtype: torch.dtype, note: Note
) -> Callable[..., Any]:
    """The forward of a norm of `form`, one of NORMS."""
    from scoremode.engines.torch.fused.kernels import NormForm, rms_norm

    eager, number = module.forward, NormForm[form]
    note(FUSED)

    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not is_usual(x, dtype):
            note(OTHERWISE)
            return eager(x, *args, **kwargs)
        return rms_norm(x, module.weight, eps, number)[0]

    return forward


def gated_forward(
    module: Any, activation: str, dtype: torch.dtype, note: Note
) -> Callable[..., Any]:
    """The forward of a gated product with `activation`, one of ACTIVATIONS."""
    from scoremode.engines.torch.fused.kernels import Activation, gate

    eager, number, act = module.forward, Activation[activation], ACTIVATIONS[activation]
    merged = "gate_up_proj" in module._modules
    note(FUSED)

    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            note(OTHERWISE)
            return eager(x, *args, **kwargs)
        if merged:
            gated, up = module.gate_up_proj(x).chunk(2, -1)
        else:
            gated, up = module.gate_proj(x), module.up_proj(x)
        if is_usual(gated, dtype) and is_usual(up, dtype):
            # A linear's output is nobody else's: it takes the product.
            product = gate(gated, up, number, gated if gated.is_contiguous() else None)
        else:
            note(OTHERWISE)
            product = act(gated) * up
        del gated, up
        return module.down_proj(product)

    return forward


def gate_of_experts(
    form: Gate, dtype: torch.dtype, note: Note
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]:
    """The function that makes one tensor of gates and ups, None of any that are unlike those proven."""
    from scoremode.engines.torch.fused.kernels import Activation, gate

    number = Activation[form.activation]
    note(FUSED)

    def apply(gated: torch.Tensor, up: torch.Tensor) -> torch.Tensor | None:
        if not gated.dtype == up.dtype == dtype:
            note(OTHERWISE)
            return None
        return gate(gated, up, number, limit=form.limit, alpha=form.alpha)

    return apply


class Rotation:
    """A stand-in for the library's function in one forward; proven at the first call of each kind,
    when the dtype of its tables is seen."""

    def __init__(
        self, eager: Callable[..., Any], dtype: torch.dtype, device: torch.device, note: Note
    ):
        self._eager, self._note = eager, note
        self._dtype, self._device = dtype, device
        # By dtype of the tables, width of a head, and whether tables are half as wide; None where the
        # kernel is not the same.
        self._rounded: dict[tuple[torch.dtype, int, bool], bool | None] = {}

    def __call__(self, q: Any, k: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not self._fits(q, k, cos, sin):
            self._note(OTHERWISE)
            return self._eager(q, k, cos, sin, *args, **kwargs)
        kind = cos.dtype, q.shape[-1], 2 * cos.shape[-1] == q.shape[-1]
        if kind not in self._rounded:
            self._rounded[kind] = self._proven(*kind)
        rounded = self._rounded[kind]
        if rounded is None:
            return self._eager(q, k, cos, sin)
        from scoremode.engines.torch.fused.kernels import rotate

        if kind[2]:
            cos, sin = (torch.cat([table, table], -1) for table in (cos, sin))
        return rotate(q, k, cos, sin, rounded=rounded)

    def _proven(self, tables: torch.dtype, width: int, halves: bool) -> bool | None:
        try:
            proven = prove_rotation(
                self._eager, self._dtype, tables, width, self._device, halves=halves
            )
        except NotFused as reason:
            self._note(f"eager ({reason})")
            return None
        self._note(FUSED)
        return proven

    def _fits(self, q: Any, k: Any, cos: Any, sin: Any) -> bool:
        """Tells whether the tensors are like those proven: q and k [B, ·, T, d], tables
        [B or 1, T, d or d / 2]."""
        if not all(isinstance(x, torch.Tensor) for x in (q, k, cos, sin)):
            return False
        return (
            q.dim() == k.dim() == 4
            and is_usual(q, self._dtype)
            and is_usual(k, self._dtype)
            and (q.shape[0], *q.shape[2:]) == (k.shape[0], *k.shape[2:])
            and q.shape[-1] % 2 == 0
            and cos.dim() == 3
            and cos.shape[0] in (1, q.shape[0])
            and cos.shape[1] == q.shape[2]
            and cos.shape[2] in (q.shape[3], q.shape[3] // 2)
            and (cos.shape, cos.dtype) == (sin.shape, sin.dtype)
            # Those of half a head are put together, and lie as they should then.
            and (cos.shape[2] < q.shape[3] or cos.stride(-1) == sin.stride(-1) == 1)
        )


def is_usual(x: torch.Tensor, dtype: torch.dtype) -> bool:
    return x.dtype == dtype and x.dim() > 1 and x.stride(-1) == 1 and x.numel() > 0


def rebind(forward: FunctionType, name: str, value: Any) -> FunctionType:
    """A function of the same code with another value for one of its global names; of a wrapper, such as
    one that renames deprecated arguments, the same wrapper around such a function.

    Raises NotFused for a wrapper whose closure does not hold what it wraps.
    """
    inner = getattr(forward, "__wrapped__", None)
    if inner is None:
        return _copied(forward, {**forward.__globals__, name: value}, forward.__closure__)
    cells = forward.__closure__ or ()
    if not isinstance(inner, FunctionType) or not any(c.cell_contents is inner for c in cells):
        raise NotFused("the forward that calls it is wrapped")
    other = rebind(inner, name, value)
    closure = tuple(CellType(other) if c.cell_contents is inner else c for c in cells)
    made = _copied(forward, forward.__globals__, closure)
    vars(made)["__wrapped__"] = other
    return made


def _copied(
    function: FunctionType, names: dict[str, Any], closure: tuple[CellType, ...] | None
) -> FunctionType:
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class _Attention(nn.Module):
    """A stand-in for the attention: notes what it is called with."""

    def __init__(self, out: torch.Tensor):
        super().__init__()
        self.out = out
        self.calls: list[dict[str, Any]] = []

    def forward(self, **kwargs: Any) -> tuple[torch.Tensor, None]:
        self.calls.append(kwargs)
        return self.out.clone(), None


def prove_layer(layer: nn.Module, dtype: torch.dtype, device: torch.device) -> frozenset[str]:
    """The arguments that the layer hands on to its attention as they are; `scoremode` among them if
    unknown ones are.

    Raises NotFused for a layer that does more than this file's forward.
    """
    named, _ = _parameters(layer.forward)
    given = {name: object() for name in (*named, _EXTRA)}
    plain = {n: d for n, d in named.items() if d is not inspect.Parameter.empty}
    handed = _run(layer, given, dtype, device)
    # What is not given may be taken another way.
    if _run(layer, {**given, **plain}, dtype, device) != handed:
        raise NotFused("its arguments change what it computes")
    return handed


def _run(
    layer: nn.Module, values: dict[str, Any], dtype: torch.dtype, device: torch.device
) -> frozenset[str]:
    x, normed, attended, normed_again, out = random(5, 1, 4, 16).to(device, dtype)
    first, second, mlp = Given(normed), Given(normed_again), Given(out)
    attention = _Attention(attended)
    parts = dict(zip(PARTS, (first, attention, second, mlp), strict=True))
    with running_its_code():
        result = shell(layer, modules=parts)(x, **values)
    if [len(p.inputs) for p in (first, second, mlp)] != [1, 1, 1] or len(attention.calls) != 1:
        raise NotFused("its parts are not called once each")
    (call,) = attention.calls
    steps = [
        (x, first.inputs[0]),
        (normed, call.pop("hidden_states", None)),
        (x + attended, second.inputs[0]),
        (normed_again, mlp.inputs[0]),
        (x + attended + out, result),
    ]
    if any(differing(ours, theirs) > 0 for ours, theirs in steps):
        raise NotFused("computes something else")
    if any(name not in values or value is not values[name] for name, value in call.items()):
        raise NotFused("its attention is given something else")
    return frozenset(call)


def layer_forward(
    layer: Any, handed: frozenset[str], form: str, eps: float, dtype: torch.dtype, note: Note
) -> Callable[..., torch.Tensor]:
    """A forward for `layer`, whose second norm has `form` and `eps`."""
    from scoremode.engines.torch.fused.kernels import NormForm, rms_norm

    number = NormForm[form]
    signature = inspect.signature(layer.forward)
    _, others = _parameters(layer.forward)
    note(FUSED)

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        extra = values.pop(others, {}) if others else {}
        hidden = values.pop("hidden_states")
        rest = {name: value for name, value in values.items() if name in handed}
        if _EXTRA in handed:
            rest |= extra
        attended = layer.self_attn(hidden_states=layer.input_layernorm(hidden), **rest)[0]
        norm = layer.post_attention_layernorm
        if is_usual(attended, dtype) and is_usual(hidden, dtype):
            normed, hidden = rms_norm(attended, norm.weight, eps, number, hidden)
        else:
            note(OTHERWISE)
            hidden = hidden + attended
            normed = norm(hidden)
        del attended
        return hidden + layer.mlp(normed)

    return forward


def _parameters(forward: Callable[..., Any]) -> tuple[dict[str, Any], str | None]:
    """A bound forward's parameters besides the hidden state, with their defaults, and the name of its
    unnamed ones. Raises NotFused."""
    named, others = {}, None
    parameters = list(inspect.signature(forward).parameters.values())
    if not parameters or parameters[0].name != "hidden_states":
        raise NotFused("its first argument is not the hidden state")
    for p in parameters[1:]:
        if p.kind is p.VAR_KEYWORD:
            others = p.name
        elif p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            named[p.name] = p.default
        else:
            raise NotFused("has positional arguments without a name")
    if others is None:
        raise NotFused("takes no other arguments")
    return named, others
