"""Record isolation of a model: no record's result depends on another record, by one of two constructions.

- **layers**: the model consists of listed layers that compute each row on its own (`row_wise.outside`). It
  computes a batch as a whole.
- **alone**: any other model. It computes each record in a batch of one, many at a time under `vmap`
  (`alone`).

A model that fits neither is refused, with the reason. Public passes (`probes`) precede the passes over
records. They detect last bits that depend on a row's place, and a model that computes a batch otherwise than
its records one by one. Training would see one function of such a model, and evaluation another.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from securefl.core.errors import ConfigError, SecureFLError
from securefl.core.keys import SecretKey
from securefl.training import row_wise
from securefl.training.alone import (
    Call,
    Entries,
    Graph,
    entries_of,
    once,
    same,
    traced,
    under,
    with_gradients,
)
from securefl.training.clipped import Whole
from securefl.training.devices import in_mode, of_memory
from securefl.training.draws import DrawCount, Drawing, RecordRandomness, TapeReader, tape_of
from securefl.training.losses import TrainingLoss, losses_of
from securefl.training.probes import all_probes, codes_of, mixed, probes_of, stay_apart
from securefl.training.products import RowsAlike

T = TypeVar("T")
Read = Callable[..., Tensor]
"""Columns (rows, *shape) -> (rows, ...), by a pass through a model."""

RECORD_ERRORS: Final = (IndexError, RuntimeError, ValueError)
"""The errors of kernels for a record that they cannot compute, such as a code beyond an embedding."""
_PUBLIC: Final = SecretKey(bytes(32))
"""The key of the draws of public passes."""
_BY_ONE: Final = 8
"""The rows of a chunk that a model of listed layers computes one by one too, of every kind of probe."""
_NEAR: Final = 1e-3
"""The permitted difference of a record's outputs in a batch and alone, relative to the largest of them."""


# Models that passed their tests -----------------------------------------------------------------------

_TRIED: Final[WeakKeyDictionary[nn.Module, dict[Hashable, tuple[Hashable, Any]]]] = WeakKeyDictionary()


def _key(model: nn.Module, columns: Sequence[Tensor], rows: int) -> Hashable:
    """What the findings for a model hang on: its layers, hooks, settings and shapes, but no values."""
    layers = tuple(
        (name, type(layer), len(layer._forward_hooks), len(layer._forward_pre_hooks), *_settings(layer))
        for name, layer in model.named_modules()
    )
    entries = tuple((name, tuple(one.shape), one.requires_grad) for name, one in model.named_parameters())
    shapes = tuple((tuple(one.shape[1:]), one.dtype, str(one.device)) for one in columns)
    return layers, entries, shapes, rows


def _settings(layer: nn.Module) -> Iterator[Hashable]:
    for key, value in vars(layer).items():
        yield key, value if isinstance(value, bool | int | float | str) else id(value)


def _once(model: nn.Module, what: Hashable, key: Hashable, explore: Callable[[], tuple[T, bool]]) -> T:
    """The findings of `explore`, which is called again if the key differs from that of the last call.

    With its findings it says whether they are kept. Values are not in the key: under a broadcast that
    overflows nothing could be compared, and the next one must be tested.
    """
    tried = _TRIED.setdefault(model, {})
    if what in tried and tried[what][0] == key:
        known: T = tried[what][1]
        return known
    found, kept = explore()
    if kept:
        tried[what] = key, found
    return found


@contextmanager
def _public(model: nn.Module) -> Iterator[None]:
    """Turn an error of a public pass into a ConfigError, since the model causes it. Errors of memory pass."""
    try:
        yield
    except SecureFLError:
        raise
    except Exception as error:  # the model is the caller's code: it can raise any exception
        if isinstance(error, RuntimeError) and of_memory(error):
            raise
        text = str(error).strip().partition("\n")[0]
        if isinstance(error, IndexError):
            text += ". Keep codes that `forward` computes inside their table: x[:, 0].long().clamp(0, n - 1)"
        if "nested" in text:
            text += " Make nn.TransformerEncoder with enable_nested_tensor=False"
        raise ConfigError(
            f"Expected {type(model).__name__} to compute made-up records of this shape, each on its own, got "
            f"{type(error).__name__}: {text[:300]}. Correct the model: it may compute with tensors alone, by "
            "functions that torch.func.vmap can follow, and torch.where in place of a branch on values."
        ) from error


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore parameters and buffers if the context raises a refusal."""
    parts: list[dict[str, Any]] = [
        entries for layer in model.modules() for entries in (layer._parameters, layer._buffers)
    ]
    before = [dict(entries) for entries in parts]
    values = [one.detach().clone() for one in [*model.parameters(), *model.buffers()]]
    held = [*model.parameters(), *model.buffers()]
    try:
        yield
    except SecureFLError:
        for entries, kept in zip(parts, before, strict=True):
            entries.clear()
            entries.update(kept)
        with torch.no_grad():
            for one, value in zip(held, values, strict=True):
                one.copy_(value)
        raise


# By layers --------------------------------------------------------------------------------------------


def require_apart(model: nn.Module, what: Hashable, read: Read, *columns: Tensor, rows: int) -> None:
    """Test a model of listed layers: a batch beside its records one by one, and probes of all kinds.

    A layer that takes rows for another dimension, such as `Softmax(0)`, computes a batch otherwise.

    what: names the function that `read` computes. columns: only their shapes, types and device are used.

    Dropout is off during the test: a row's mask is random and does not depend on other rows. Raises
    ConfigError if a row depends on its place, or on other rows.
    """

    def explore() -> tuple[None, bool]:
        codes = codes_of(model)
        together = mixed(columns, rows, codes)
        own = [read(*(part[at : at + 1] for part in together)) for at in range(_BY_ONE)]
        compared = _compared(model, read(*together)[:_BY_ONE], torch.cat(own))
        for probe in all_probes(columns, rows, codes):
            if not stay_apart(*(read(*part) for part in probe)):
                raise _refused(model, "compute each row of a chunk on its own")
        return None, compared

    with _undrawn(model):
        key = _key(model, columns, rows)
        with RowsAlike(), _public(model):
            _once(model, ("layers", what), key, explore)


@contextmanager
def _undrawn(model: nn.Module) -> Iterator[None]:
    """A context in which dropout is off."""
    dropouts = row_wise.drawing(model)
    for layer in dropouts:
        layer.training = False
    try:
        yield
    finally:
        for layer in dropouts:
            layer.training = True


def require_slopes_apart(model: nn.Module, x: Tensor, y: Tensor, loss: TrainingLoss, rows: int) -> None:
    """Raises ConfigError unless the gradient of one row's loss is zero with respect to all other rows.

    x, y: only their shapes, types and device are used. For codes, the gradient at their embeddings is tested.
    Raises it too if a layer with trained parameters takes another number of rows than the records'.
    """
    inputs, targets = (part.clone() for part in probes_of((x, y), rows, codes=codes_of(model))[0])
    given: list[Tensor] = [inputs.requires_grad_()] if inputs.is_floating_point() else []

    def note(_layer: nn.Module, _given: Any, output: Tensor) -> None:
        given.append(output)

    def require_rows(layer: nn.Module, taken: tuple[Tensor], _output: Any) -> None:
        if len(taken[0]) != rows:
            raise ConfigError(
                f"Expected layer {layer} to take one row a record ({rows}), got {len(taken[0])} rows. "
                "Flatten other dimensions than the first, or freeze it."
            )

    embeddings = [] if given else [layer for layer in model.modules() if type(layer) is nn.Embedding]
    trained = [
        layer
        for layer in model.modules()
        if any(one.requires_grad for one in layer.parameters(recurse=False))
    ]
    own = rows // 2 + 1
    with _undrawn(model), RowsAlike(), torch.enable_grad(), _public(model):
        with ExitStack() as hooks:
            for table in embeddings:
                hooks.enter_context(table.register_forward_hook(note))
            for layer in trained:
                hooks.enter_context(layer.register_forward_hook(require_rows))
            losses = losses_of(model(inputs), targets, loss)
        free = [one for one in given if one.requires_grad]
        if not losses.requires_grad or not free:
            return
        slopes = torch.autograd.grad(losses[own], free, allow_unused=True)
    for slope in slopes:
        if slope is not None and bool(slope[torch.arange(rows) != own].count_nonzero()):
            raise ConfigError(
                f"Expected each record's loss to depend on that record alone, got a loss of "
                f"{type(model).__name__} that depends on other records too. Its layers mix rows: use another "
                "model."
            )


def length_of(model: nn.Module, x: Tensor, rows: int) -> DrawCount:
    """The number of random values that each record draws in a pass of a model of listed layers."""
    if not row_wise.drawing(model):
        return DrawCount()
    taken, probe = TapeReader(None, rows), probes_of((x,), rows, codes=codes_of(model))[0][0]
    with torch.no_grad(), Drawing(taken), _public(model):
        model(probe)
    return taken.length


# Alone ------------------------------------------------------------------------------------------------


def lone_gradients(
    model: nn.Module, x: Tensor, y: Tensor, loss: TrainingLoss, rows: int
) -> tuple[Callable[[Tensor, Tensor, RecordRandomness | None], Any], DrawCount]:
    """A model's per-record gradients (`per_record.Gradients`), after public passes tested the model.

    x, y: only their shapes, types and device are used. Returns the function and the number of random values
    that a record draws. Raises ConfigError if the model's records cannot be kept apart, or if it computes a
    batch otherwise than its records one by one.
    """
    free = [name for name, one in model.named_parameters() if one.requires_grad]

    def call(entries: Entries, record: Tensor, target: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        def value(trained: Entries) -> Tensor:
            # A copy, since the pass may change it.
            outputs = under({**entries, **trained}, model, model, record[None].clone())
            if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != 1:
                came = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
                raise ConfigError(f"Expected outputs (1, outputs) for one record, got {came}.")
            return losses_of(outputs, target[None], loss)[0]

        return with_gradients(value, {name: entries[name] for name in free})

    graph = _graph(model, ("gradients", loss), call, (x, y), rows)
    trained = [model.get_parameter(name) for name in free]

    def gradients(x: Tensor, y: Tensor, tape: RecordRandomness | None) -> tuple[list[Any], Tensor]:
        found, losses = graph(entries_of(model), (x, y), tape)
        return [
            ((one,), Whole(own.contiguous())) for one, own in zip(trained, found.values(), strict=True)
        ], losses

    return gradients, graph.length


def lone_reader(model: nn.Module, what: Hashable, read: Read, columns: Sequence[Tensor], rows: int) -> Read:
    """The function `read` with each record computed alone, after public passes tested the model.

    The model is in evaluation mode. columns: only their shapes, types and device are used. Raises ConfigError
    as `lone_gradients` does, and if the model draws.
    """

    def call(entries: Entries, *record: Tensor) -> Tensor:
        return under(entries, model, read, *(one[None].clone() for one in record))[0]

    graph = _graph(model, (what,), call, columns, rows)
    if graph.length:
        raise ConfigError(
            f"Expected no random draws in evaluation mode, got draws of {type(model).__name__}."
        )

    def mapped(*given: Tensor) -> Tensor:
        found: Tensor = graph(entries_of(model), given)
        return found

    return mapped


def _graph(model: nn.Module, what: Hashable, call: Call, columns: Sequence[Tensor], rows: int) -> Graph:
    """The graph of this call, after tests on public records, or that of an earlier call of this kind."""
    codes = codes_of(model)

    def explore() -> tuple[Graph, bool]:
        full, _ = probes_of(columns, rows, codes=codes)
        graph, entries = traced(model, call, full), entries_of(model)

        def passed(part: Sequence[Tensor]) -> list[Tensor]:
            return tree_leaves(graph(entries, part, _tape(part, graph.length)))

        others = mixed(columns, rows, codes)
        again, _ = once(partial(call, entries), others, _tape(others, graph.length))
        if not all(map(same, passed(others), tree_leaves(again))):
            raise _refused(model, "give the same results again, without state and generators of its own")
        for probe in all_probes(columns, rows, codes):
            if not all(map(stay_apart, *map(passed, probe))):
                raise _refused(model, "compute a record by the same bits in every place of a chunk")
        return graph, _same_model(model, columns, rows, codes, draws=bool(graph.length))

    with _restored(model), _public(model):
        return _once(model, what, _key(model, columns, rows), explore)


def _tape(columns: Sequence[Tensor], length: DrawCount) -> RecordRandomness | None:
    return tape_of(columns[0], columns[-1], length, _PUBLIC) if length else None


def _refused(model: nn.Module, what: str) -> ConfigError:
    return ConfigError(
        f"Expected a model that can {what}, got {type(model).__name__}, which does not. Its records would "
        "see each other: compute each on its own, without a norm, maximum, order or attention over rows."
    )


def _same_model(model: nn.Module, columns: Sequence[Tensor], rows: int, codes: int, *, draws: bool) -> bool:
    """Whether outputs for a batch could be compared with those of its records one by one: see `_compared`."""
    x, compared = mixed(columns, rows, codes)[0], True
    for training in {False, model.training and not draws}:
        with in_mode(model, training=training), torch.no_grad():
            together = model(x.clone())
            by_one, _ = once(lambda record: model(record[None].clone())[0], (x,), None)
        compared &= _compared(model, together, by_one)
    return compared


def _compared(model: nn.Module, together: Any, by_one: Any) -> bool:
    """Whether a record has finite outputs in the batch and alone. Raises ConfigError if they differ."""
    if isinstance(together, Tensor) and isinstance(by_one, Tensor) and together.shape == by_one.shape:
        one, other = together.double().flatten(1), by_one.double().flatten(1)
        known = torch.isfinite(one) & torch.isfinite(other)
        # Where both overflow, as under a hostile broadcast, one kernel makes NaN of what is -inf in another.
        overflow = bool(one.isinf().any() and other.isinf().any())
        finite = overflow or torch.equal(torch.isfinite(one), torch.isfinite(other))
        one, other = one.where(known, 0.0), other.where(known, 0.0)
        room = _NEAR * torch.maximum(one.abs().amax(1), other.abs().amax(1)) + 1e-6
        if finite and bool(((one - other).abs().amax(1) <= room).all()):
            return not overflow and bool(known.all(1).any())
    raise _refused(model, "compute a batch as it computes its records one by one")


# Records that a kernel refuses ------------------------------------------------------------------------


def without_raising(compute: Callable[..., T], columns: Sequence[Tensor]) -> tuple[T, list[int]]:
    """The result of `compute` for all records, and the positions of those for which it raises.

    Zeros are computed in their place, or ones if zeros are padding, of which the model reads none alone. They
    change no bit of the other records. The error of `compute` is raised if it raises for no record alone, or
    if the cause is a lack of memory.
    """
    try:
        return compute(*columns), []
    except RECORD_ERRORS as error:
        if isinstance(error, RuntimeError) and of_memory(error):
            raise
        bad = list[int]()
        for at in range(len(columns[0])):
            try:
                compute(*(column[at : at + 1] for column in columns))
            except RECORD_ERRORS:
                bad.append(at)
        if not bad:
            raise
    usable = [column.clone() for column in columns]
    for column in usable:
        column[bad] = 0
    with suppress(*RECORD_ERRORS):
        return compute(*usable), bad
    for column in usable:
        column[bad] = 1
    return compute(*usable), bad


# A sentence for reports --------------------------------------------------------------------------------


def sentence(model: nn.Module, rows: int) -> str:
    """A sentence on how private training keeps this model's records apart, and the memory that this takes.

    rows: the rows of a chunk whose records are computed alone. The model's modes do not change.
    """
    with in_mode(model, training=True):
        reason = row_wise.outside(model)
    if reason is None:
        return "row-wise layers compute a batch as a whole, and each record's gradient follows from its rows"
    values = sum(one.numel() for one in model.parameters() if one.requires_grad)
    return (
        f"each record's gradient is computed alone, as a batch of one under vmap, since {reason}; "
        f"{rows} gradients of {values:,} values take {rows * values * 4 / 1e6:,.1f} MB at a time"
    )
