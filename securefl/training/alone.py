"""Record isolation for any torch model: a graph of one pass in which each record is a batch of one.

The model gets batches of *one* under `torch.func.vmap`, so its code has no access to another record, and its
layers need not be known. This code runs on made-up records alone. The operators of torch that one such pass
calls are written down, and every chunk of records passes through this graph. So nothing that Python code
keeps, counts or draws can carry a record into the pass of another. What is left to refuse:

- Functions with a `vmap` rule of their own, and operators that are not torch's: such a rule sees all records
  of a chunk. `generate_vmap_rule = True` is permitted.
- A graph that changes a tensor which it does not make, such as a buffer: the next chunk would see it.
- Random draws that the secret source cannot replace (`draws`).
- Code that assigns to the model's attributes, or branches on the values of a record: the graph would be that
  of one state, or of no record.

A refusal cannot reveal a record: the graph is made before a record is read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch._C._functorch import (
    _unwrap_for_grad,
    _wrap_for_grad,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
)
from torch._functorch.autograd_function import custom_function_call
from torch._functorch.eager_transforms import _create_differentiable, grad_increment_nesting
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from securefl.core.errors import ConfigError
from securefl.training.devices import in_mode
from securefl.training.draws import Dispatching, DrawCount, Drawing, RecordRandomness, TapeReader
from securefl.training.products import dense

Entries = Mapping[str, Tensor]
"""A model's parameters and buffers by name."""
_OPERATORS: Final = (HigherOrderOperator, OpOverload, OpOverloadPacket)
_FLATTENING: Final = ("index_fill", "ctc_loss")
"""torch maps these, and `embedding` of one table a record, over records in one flat tensor. An index outside
of a record's own part reads or writes that of the record beside it."""
_UNSET: Final = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Their memory holds what was there before, such as other records. In the graph it holds zeros."""
_READING: Final = ("_local_scalar_dense", "is_nonzero", "equal")
"""Numbers that code reads off a tensor. The graph would keep those of one state of the model."""
Call = Callable[..., Any]
"""One record's pass: the entries and columns without rows -> tensors without rows."""


class _Checking(TorchFunctionMode):
    """A context around a pass: dense layers by `dense`, and no function that sees several records."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # A single record has no rows to lay out, and its values do not change.
        given = {key: value for key, value in (kwargs or {}).items() if key != "memory_format"}
        name = getattr(func, "__name__", "")
        if func is linear:
            return dense(*args, **given)
        if name in _FLATTENING or (name == "embedding" and any(map(_of_each, (*args, *given.values())))):
            raise _seeing(f"{name} of each record's own tensor", "Compute it by `gather` or `torch.where`")
        if func is custom_function_call:
            own = args[0]
            if not own.generate_vmap_rule and own.vmap is not torch.autograd.Function.vmap:
                raise _seeing(f"{own.__name__} with a vmap rule of its own", "Set generate_vmap_rule = True")
        elif isinstance(func, _OPERATORS) and not str(func).startswith("aten"):
            raise _seeing(f"the operator {func}", "Compose it of torch's functions")
        return func(*args, **given)


def _of_each(given: Any) -> bool:
    """Whether this is a tensor of numbers that `vmap` has one of for each record."""
    inner = given
    while isinstance(inner, Tensor) and is_functorch_wrapped_tensor(inner):
        if is_batchedtensor(inner) and inner.is_floating_point():
            return True
        inner = get_unwrapped(inner)
    return False


def _seeing(what: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"Expected functions that torch maps over records itself, got {what}. It may see all records of a "
        f"chunk. {remedy}."
    )


def once(
    call: Callable[..., Any], columns: Sequence[Tensor], tape: RecordRandomness | None
) -> tuple[Any, DrawCount]:
    """Compute `call` for each row of the columns, in one pass of the model's own code.

    Returns results of shape (rows, ...), and the number of random values that each record drew.
    """
    taken = TapeReader(tape, len(columns[0]))
    # By torch's formula for attention: vmap would call a kernel once for each record.
    with _slow_ways_unsaid(), sdpa_kernel(SDPBackend.MATH), Drawing(taken), _Checking():
        return vmap(call, randomness="different")(*columns), taken.length


@contextmanager
def _slow_ways_unsaid() -> Iterator[None]:
    """Silence torch's warning that it computes a function record by record. Here that is intended."""
    before = torch._C._debug_only_are_vmap_fallback_warnings_enabled()  # type: ignore[attr-defined]
    torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._functorch._set_vmap_fallback_warning_enabled(before)  # type: ignore[attr-defined]


def entries_of(model: nn.Module) -> dict[str, Tensor]:
    """The values of the model now, in memory that it shares."""
    return {name: one.detach() for name, one in [*model.named_parameters(), *model.named_buffers()]}


class _Around(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[..., Tensor], *given: Tensor) -> Tensor:
        return compute(*given)


def under(entries: Entries, model: nn.Module, compute: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """`compute` for given tensors, while the model has these entries."""
    names = {id(one): name for name, one in [*model.named_parameters(), *model.named_buffers()]}
    around = _Around(model)
    # Each layer's own, by the layer's first name: of a layer of two names, torch would write back the entries
    # given here in place of the model's.
    held = {
        f"{place}.{key}": entries[names[id(one)]]
        for place, layer in around.named_modules()
        for key, one in [*layer._parameters.items(), *layer._buffers.items()]
        if one is not None
    }
    # torch writes back what the model puts in their place.
    kept = dict(held)
    found: Tensor = functional_call(around, held, (compute, *given), tie_weights=False)
    if any(held[name] is not one for name, one in kept.items()):
        raise _keeping("a parameter or buffer")
    return found


def with_gradients(value: Callable[[Entries], Tensor], at: Entries) -> tuple[dict[str, Tensor], Tensor]:
    """The gradients of `value` at these entries, and the value: `torch.func.grad_and_value`.

    That function would import torch's compiler, which takes a second.
    """
    with grad_increment_nesting() as level, torch.enable_grad():
        own = _create_differentiable({name: _wrap_for_grad(one, level) for name, one in at.items()})
        found = value(own)
        slopes = torch.autograd.grad(
            found, list(own.values()), create_graph=True, allow_unused=True, materialize_grads=True
        )
        gradients = {name: _unwrap_for_grad(one, level) for name, one in zip(own, slopes, strict=True)}
        return gradients, _unwrap_for_grad(found, level)


def _keeping(what: str) -> ConfigError:
    return ConfigError(
        f"Expected nothing that a pass changes, got {what}. Other records would see it: keep nothing between "
        "passes."
    )


@contextmanager
def _restored(model: nn.Module) -> Iterator[set[str]]:
    """A context that restores the layers' attributes and entries. It gives the names of assigned ones."""
    before = [
        (own, dict(own))
        for layer in model.modules()
        for own in (vars(layer), layer._parameters, layer._buffers)
    ]
    changed = set[str]()
    yield changed
    for own, kept in before:
        changed |= {key for key in {**own, **kept} if own.get(key, own) is not kept.get(key, kept)}
        own.clear()
        own.update(kept)


class _Recording(Dispatching):
    """A context that writes down every operator of torch below `vmap` and gradients, in `graph`.

    constants: the tensors that were made before, by name, without `given`.
    """

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.constants = fx.Graph(), dict[str, Tensor]()
        self._nodes = WeakTensorKeyDictionary(
            {one: self.graph.placeholder(f"given{at}") for at, one in enumerate(given)}
        )

    def node(self, of: Tensor) -> fx.Node:
        if of not in self._nodes:
            self.constants[name := f"constant{len(self.constants)}"] = of
            self._nodes[of] = self.graph.get_attr(name)
        found: fx.Node = self._nodes[of]
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name in _READING:
            raise ConfigError(
                "Expected a pass of tensors alone, got a number that code reads off one (`item`, `float`, "
                "`if`). It would stay when the model changes. Compute with the tensor itself."
            )
        taken, named = tree_map_only(Tensor, self.node, (tuple(args), dict(kwargs or {})))
        made = func(*args, **(kwargs or {}))
        node = self.graph.call_function(func, taken, named)
        if name in _UNSET:
            made.zero_()
            node = self.graph.call_function(torch.ops.aten.zero_.default, (node,))
        if isinstance(made, Tensor):
            self._nodes[made] = node
        elif isinstance(made, list | tuple):
            for at, one in enumerate(made):
                if isinstance(one, Tensor):
                    self._nodes[one] = self.graph.call_function(operator.getitem, (node, at))
        return made


@dataclass(frozen=True)
class Graph:
    """The pass of one chunk, as operators of torch alone. `traced` makes it.

    length: the number of random values that a record draws.
    """

    length: DrawCount
    run: fx.GraphModule

    def __call__(
        self, entries: Entries, columns: Sequence[Tensor], tape: RecordRandomness | None = None
    ) -> Any:
        """The results for each row of the columns, (rows, ...). tape: of each row, if the model draws.

        columns: of the shapes of `traced`.
        """
        own = tape or _blank(columns, self.length)
        return self.run(*entries.values(), own.uniform, own.normal, *columns)


def _blank(columns: Sequence[Tensor], length: DrawCount) -> RecordRandomness:
    empty = columns[0].new_zeros(len(columns[0]), 0, dtype=torch.float32)
    return RecordRandomness(
        empty.new_zeros(len(empty), length.uniform), empty.new_zeros(len(empty), length.normal)
    )


def traced(model: nn.Module, call: Call, columns: Sequence[Tensor]) -> Graph:
    """The graph of `call` for each row of these public columns.

    Raises ConfigError if the model's code or the graph keeps something. Other exceptions of the model pass
    through, also those of `vmap`.
    """
    with _restored(model):
        _, length = once(partial(call, entries_of(model)), columns, None)
    # In this pass the model may make tensors that it keeps for good, such as a mask.
    with torch.no_grad(), in_mode(model, training=False):
        model(columns[0][:1].clone())
    entries, tape = entries_of(model), _blank(columns, length)
    recording = _Recording([*entries.values(), tape.uniform, tape.normal, *columns])
    with _restored(model) as changed, recording:
        made, _ = once(partial(call, entries), columns, tape)
    if changed:
        raise _keeping(f"the attribute {min(changed)!r} of a layer")
    recording.graph.output(tree_map_only(Tensor, recording.node, made))
    graph = Graph(length, fx.GraphModule(recording.constants, recording.graph))
    held = [(one, one._version, one.clone()) for one in [*entries.values(), *recording.constants.values()]]
    graph(entries, columns, tape)
    if any(one._version != version or not same(one, value) for one, version, value in held):
        raise _keeping("a parameter, a buffer or another tensor, in place")
    return graph


def same(one: Tensor, other: Tensor) -> bool:
    """Whether both have one shape and type, and the same values. nan equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
