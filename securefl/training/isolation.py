"""Record isolation of a model: no record's result depends on another record, by one of two constructions.

- **layers**: the model consists of listed layers that compute each row on its own (`row_wise`). It computes a
  batch as a whole.
- **alone**: any other model. It computes each record in a batch of one, many at a time under `vmap`
(`alone`).

A model that fits neither is refused, with the reason. Public passes (`probes`) precede the passes over
records. They detect last bits that depend on a row's place, and a model that computes a batch otherwise than
its records one by one. Training would see one function of such a model, and evaluation another.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from securefl.core.errors import ConfigError, SecureFLError
from securefl.core.keys import SecretKey
from securefl.training import row_wise
from securefl.training.alone import Alone, Isolation, require_none_kept, wrapped_now
from securefl.training.devices import in_mode, of_memory
from securefl.training.draws import Drawing, Length, Taken, Tape, tape_of
from securefl.training.losses import Loss, losses_of
from securefl.training.probes import Probe, all_probes, codes_of, mixed, probes_of, stay_apart
from securefl.training.products import RowsAlike

Read = Callable[..., Tensor]
"""Columns (rows, *shape) -> (rows, ...), by a pass through a model."""

RECORD_ERRORS: Final = (IndexError, RuntimeError, ValueError)
"""The errors of kernels for a record that they cannot compute, such as a code beyond an embedding."""
_PUBLIC: Final = SecretKey(bytes(32))
"""The key of the draws of public passes."""
_NEAR: Final = 1e-3
"""The permitted difference of a record's outputs in a batch and alone, relative to the largest of them."""


@dataclass(frozen=True)
class Way:
    """alone: whether records are computed one by one. reason: the part that is not a listed layer, or ""."""

    alone: bool
    reason: str = ""


def scheme_of(model: nn.Module) -> Way:
    """The construction that applies to the model, in the present modes of its layers."""
    reason = row_wise.outside(model)
    return Way(alone=reason is not None, reason=reason or "")


# Models that passed their tests -----------------------------------------------------------------------

_TRIED: Final[WeakKeyDictionary[nn.Module, dict[Hashable, Isolation]]] = WeakKeyDictionary()


def _key(model: nn.Module, columns: Sequence[Tensor], *more: Hashable) -> Hashable:
    layers = tuple(
        (name, type(layer), layer.training, len(layer._forward_hooks), len(layer._forward_pre_hooks))
        for name, layer in model.named_modules()
    )
    entries = tuple((name, tuple(one.shape), one.requires_grad) for name, one in model.named_parameters())
    shapes = tuple((tuple(one.shape[1:]), one.dtype, str(one.device)) for one in columns)
    return layers, entries, shapes, more


def _once(
    model: nn.Module, key: Hashable, explore: Callable[[], Isolation], again: Callable[[], object]
) -> Isolation:
    """The findings of `explore`, which is called once a model and key. Later calls run only `again`."""
    tried = _TRIED.setdefault(model, {})
    if key not in tried:
        tried[key] = explore()
    else:
        again()
    return tried[key]


@contextmanager
def _public(model: nn.Module) -> Iterator[None]:
    """Turn an error of a public pass into a ConfigError, since the model causes it. Errors of memory pass."""
    try:
        yield
    except RECORD_ERRORS as error:
        if isinstance(error, RuntimeError) and of_memory(error):
            raise
        text = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"Expected {type(model).__name__} to compute made-up records of this shape, got "
            f"{type(error).__name__}: {text[:300]}. Correct the model."
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


def require_apart(model: nn.Module, read: Read, *columns: Tensor, rows: int) -> None:
    """Test a model of listed layers: the shapes of its layers' inputs, and probes of all kinds.

    columns: only their shapes, types and device are used.

    Dropout is off during the test: a row's mask is random and does not depend on other rows. Raises
    ConfigError that names the first layer in which a row depends on its place, or on other rows.
    """
    codes = codes_of(model)
    usual = probes_of(columns, rows, codes=codes)

    def explore() -> Isolation:
        _require_rows(model, read, usual, rows)
        for _, probe in all_probes(columns, rows, codes):
            _try(model, read, probe)
        return Isolation()

    with _undrawn(model), RowsAlike(), _public(model):
        key = _key(model, columns, "layers", rows, getattr(read, "__qualname__", ""))
        _once(model, key, explore, lambda: _try(model, read, usual))


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


def _require_rows(model: nn.Module, read: Read, probe: Probe, rows: int) -> None:
    """Raises ConfigError if the inputs of a listed layer are not one row a record."""
    found: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, given: tuple[Any, ...]) -> None:
            reason = (
                row_wise.misread(layer, given[0], rows) if isinstance(given[0], Tensor) else "takes no tensor"
            )
            if reason is not None:
                found.append(f"layer {name!r} ({layer}) {reason}")

        return note

    handles = [layer.register_forward_pre_hook(look(name)) for name, layer in row_wise.listed(model)]
    try:
        read(*probe[0])
    except RECORD_ERRORS:
        if not found:
            raise
    finally:
        for handle in handles:
            handle.remove()
    if found:
        raise ConfigError(
            f"Expected layers that take one row a record, {found[0]}. Give it inputs with rows first, and "
            "work along other dimensions."
        )


def _try(model: nn.Module, read: Read, probe: Probe) -> None:
    if stay_apart(*(read(*part) for part in probe)):
        return
    raise ConfigError(
        "Expected a model that computes each row of a chunk on its own, got one whose "
        f"{_culprit(model, read, probe)} does not do so. A record's result would depend on the others, "
        "and the noise would be too small. Use another model, or train without record-level privacy."
    )


def _culprit(model: nn.Module, read: Read, probes: Probe) -> str:
    """A text that names the first innermost layer that mixes rows."""
    seen: list[tuple[str, nn.Module, Any]] = []

    def note(name: str) -> Callable[..., None]:
        return lambda layer, _, output: seen.append((name, layer, output))

    handles = [layer.register_forward_hook(note(name)) for name, layer in model.named_modules() if name]
    try:
        for probe in probes:
            read(*probe)
    finally:
        for handle in handles:
            handle.remove()
    half = len(seen) // 2
    for (name, layer, full), (_, _, alone) in zip(seen[:half], seen[half:], strict=True):
        # Hooks run when a layer ends, so an inner layer comes before its outer layer.
        if not stay_apart(full, alone):
            return f"layer {name!r} ({layer})"
    return f"the forward of {type(model).__name__}"


def require_slopes_apart(model: nn.Module, x: Tensor, y: Tensor, loss: Loss, rows: int) -> None:
    """Raises ConfigError unless the gradient of one row's loss is zero with respect to all other rows.

    x, y: only their shapes, types and device are used. For codes, the gradient at their embeddings is tested.
    """
    inputs, targets = (part.clone() for part in probes_of((x, y), rows, codes=codes_of(model))[0])
    given: list[Tensor] = [inputs.requires_grad_()] if inputs.is_floating_point() else []

    def note(_layer: nn.Module, _given: Any, output: Tensor) -> None:
        given.append(output)

    embeddings = [] if given else [layer for layer in model.modules() if type(layer) is nn.Embedding]
    handles = [layer.register_forward_hook(note) for layer in embeddings]
    own = rows // 2 + 1
    with _undrawn(model), RowsAlike(), torch.enable_grad(), _public(model):
        try:
            losses = losses_of(model(inputs), targets, loss)
        finally:
            for handle in handles:
                handle.remove()
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


def length_of(model: nn.Module, x: Tensor, rows: int) -> Length:
    """The number of random values that each record draws in a pass of a model of listed layers."""
    if not row_wise.drawing(model):
        return Length()
    taken, probe = Taken(None, rows), probes_of((x,), rows, codes=codes_of(model))[0][0]
    with torch.no_grad(), Drawing(taken), _public(model):
        model(probe)
    return taken.length


# Alone ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gradients:
    """Each row's gradients of the trained parameters, (rows, *shape) by name, and its loss, (rows,)."""

    each: dict[str, Tensor]
    losses: Tensor


class LoneGradients:
    """Per-record gradients of a model's trained parameters, with each record computed alone."""

    def __init__(self, model: nn.Module, loss: Loss, found: Isolation) -> None:
        self._loss = loss
        self._alone = Alone(model, found)
        self.found = found

    def __call__(self, columns: Sequence[Tensor], tape: Tape | None, *, public: bool = False) -> Gradients:
        """Compute the gradients of one chunk.

        columns: records (rows, *shape) and targets (rows, ...), in memory that no other tensor shares.
        """
        model = self._alone.model
        # Copies: a forward that changes a parameter in place changes only these, and is refused below.
        entries = {name: one.detach().clone() for name, one in model.named_parameters()}
        free = {name for name, one in model.named_parameters() if one.requires_grad}
        kept = {name: one.detach().clone() for name, one in model.named_buffers()}
        versions = {name: one._version for name, one in (entries | kept).items()}

        def call(watched: Any, record: Tensor, target: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            def value(trained: dict[str, Tensor]) -> Tensor:
                given = {**entries, **kept, **trained}
                # A copy, since the pass may change it.
                one = record[None].clone()
                with watched([one, *given.values()]):
                    outputs = functional_call(model, given, (one,))
                if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != 1:
                    raise ConfigError("Expected one row of outputs for one record, got something else.")
                return losses_of(outputs, target[None], self._loss)[0]

            return grad_and_value(value)({name: entries[name] for name in free})

        each, losses = self._alone.mapped(call, columns, tape, public=public)
        for name, one in (entries | kept).items():
            if one._version != versions[name]:
                raise ConfigError(
                    "Expected a forward pass that changes no parameter or buffer in place, got one that "
                    f"changes {name!r}. Make a new tensor."
                )
        return Gradients({name: each[name] for name in entries if name in free}, losses)


def lone_gradients(model: nn.Module, x: Tensor, y: Tensor, loss: Loss, rows: int) -> LoneGradients:
    """The function that computes a model's per-record gradients, after public passes tested the model.

    x, y: only their shapes, types and device are used. Raises ConfigError if the model's records cannot be
    kept apart, or if it computes a batch otherwise than its records one by one.
    """
    codes, columns = codes_of(model), (x, y)

    def explore() -> Isolation:
        before = wrapped_now()
        found = Isolation()
        gradients = LoneGradients(model, loss, found)
        full, _ = probes_of(columns, rows, codes=codes)
        # In this pass the model may create tensors that it keeps for good, such as a mask.
        with torch.no_grad(), in_mode(model, training=False):
            model(full[0][:1].clone())
        gradients(_copies(full), None, public=True)
        tape = tape_of(full[0], full[1], found.length, _PUBLIC)
        first = gradients(_copies(full), tape, public=True)
        _require_again(model, first, gradients(_copies(full), tape, public=True))
        for kind, probe in all_probes(columns, rows, codes):
            if kind in ("usual", "large", "around zero"):
                _require_places(model, gradients, probe)
        _require_same_model(model, columns, rows, codes, found)
        require_none_kept(before)
        return found

    with _public(model), _restored(model):
        found = _once(model, _key(model, columns, "gradients", rows, loss), explore, lambda: None)
    return LoneGradients(model, loss, found)


def _copies(columns: Sequence[Tensor]) -> list[Tensor]:
    return [column.clone() for column in columns]


def _require_places(model: nn.Module, gradients: LoneGradients, probe: Probe) -> None:
    found = []
    for part in probe:
        tape = tape_of(part[0], part[1], gradients.found.length, _PUBLIC)
        came = gradients(_copies(part), tape, public=True)
        found.append([came.losses, *came.each.values()])
    if not all(stay_apart(*pair) for pair in zip(*found, strict=True)):
        raise ConfigError(
            "Expected a model whose records have the same bits in every place of a chunk, got "
            f"{type(model).__name__}, whose kernels differ by place here. Use another model, or train "
            "without record-level privacy."
        )


def _require_again(model: nn.Module, first: Gradients, again: Gradients) -> None:
    pairs = zip([first.losses, *first.each.values()], [again.losses, *again.each.values()], strict=True)
    if not all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs):
        raise ConfigError(
            "Expected the same gradients again for the same records, got others from "
            f"{type(model).__name__}. It keeps state from one pass to the next, or draws from its own "
            "generator. Remove that."
        )


def _require_same_model(
    model: nn.Module, columns: Sequence[Tensor], rows: int, codes: int, found: Isolation
) -> None:
    """Raises ConfigError if the model's outputs for a batch differ from those of its records one by one."""
    x = mixed(columns, rows, codes)[0]
    modes = (False, True) if not found.length else (False,)
    for training in modes:
        with in_mode(model, training=training), torch.no_grad():
            try:
                together = model(x.clone())
            except RECORD_ERRORS as error:
                raise ConfigError(
                    f"Expected a model that takes batches, got {type(error).__name__}: {error}"
                ) from error
            reader = Alone(model, Isolation(length=Length(), constants=dict(found.constants)))

            def call(watched: Any, record: Tensor) -> Tensor:
                one = record[None].clone()
                with watched([one]):
                    outputs: Tensor = model(one)
                return outputs[0]

            by_one = reader.mapped(call, (x.clone(),), None, public=True)
            found.constants.update(reader.found.constants)
        if not _alike(together, by_one):
            with torch.no_grad(), in_mode(model, training=training), _undrawn(model):
                culprit = _first_unlike(model, x)
            raise ConfigError(
                "Expected a model that computes the same for a batch as for its records one by one, "
                f"{culprit} does not{' in training' if training else ''}. Its records would see each other "
                "in a batch, and not in private training. Compute each record on its own: no norm, maximum, "
                "order or attention over rows."
            )


def _first_unlike(model: nn.Module, x: Tensor) -> str:
    """A text that names the first innermost layer with other outputs for a batch than record by record."""
    seen: list[tuple[str, nn.Module, tuple[Any, ...]]] = []

    def note(name: str) -> Callable[..., None]:
        return lambda layer, given, output: seen.append((name, layer, (*given, output)))

    whole = f"the forward of {type(model).__name__}"
    handles = [layer.register_forward_hook(note(name)) for name, layer in model.named_modules() if name]
    try:
        model(x.clone())
        batch = list(seen)
        seen.clear()
        for row in x:
            model(row[None].clone())
    except RECORD_ERRORS:
        return whole
    finally:
        for handle in handles:
            handle.remove()
    for at, (name, layer, values) in enumerate(batch):
        own = zip(*(one for _, _, one in seen[at :: len(batch)]), strict=False)
        *given, output = (_unlike(one, parts) for one, parts in zip(values, own, strict=False))
        if any(given):
            return whole  # no earlier layer differs, so the code between the layers does
        if output:
            return f"layer {name!r} ({layer})"
    return whole


def _unlike(together: Any, parts: Sequence[Any]) -> bool:
    if not all(isinstance(one, Tensor) and one.ndim > 0 for one in (together, *parts)):
        return False
    return len({one.shape[1:] for one in parts}) == 1 and not _alike(together, torch.cat(list(parts)))


def _alike(together: Any, by_one: Any) -> bool:
    if not (isinstance(together, Tensor) and isinstance(by_one, Tensor)) or together.shape != by_one.shape:
        return False
    one, other = together.double().flatten(1), by_one.double().flatten(1)
    if not torch.equal(torch.isfinite(one), torch.isfinite(other)):
        return False
    one, other = one.nan_to_num(), other.nan_to_num()
    room = _NEAR * torch.maximum(one.abs().amax(1), other.abs().amax(1)) + 1e-6
    return bool(((one - other).abs().amax(1) <= room).all())


def lone_reader(model: nn.Module, read: Read, columns: Sequence[Tensor], rows: int) -> Read:
    """The function `read` with each record computed alone, after public passes tested the model.

    The model is in evaluation mode. columns: only their shapes, types and device are used. Raises ConfigError
    as `lone_gradients` does.
    """
    codes = codes_of(model)

    def reader(found: Isolation, *, public: bool) -> Read:
        def call(watched: Any, *record: Tensor) -> Tensor:
            given = [one[None].clone() for one in record]
            with watched(given):
                came = read(*given)
            return came[0]

        def mapped(*given: Tensor) -> Tensor:
            came: Tensor = Alone(model, found).mapped(call, given, None, public=public)
            return came

        return mapped

    def explore() -> Isolation:
        found = Isolation()
        tried = reader(found, public=True)
        full, _ = probes_of(columns, rows, codes=codes)
        read(*(column[:1].clone() for column in full))
        first = tried(*_copies(full))
        if found.length:
            raise ConfigError(
                f"Expected no random draws in evaluation mode, got draws of {type(model).__name__}."
            )
        for kind, probe in all_probes(columns, rows, codes):
            if kind in ("usual", "large", "around zero") and not stay_apart(
                *(tried(*_copies(part)) for part in probe)
            ):
                raise ConfigError(
                    f"Expected a model whose records have the same bits in every place of a chunk, got "
                    f"{type(model).__name__}, whose kernels differ by place here. Use another model."
                )
        if not torch.equal(first.nan_to_num(), tried(*_copies(full)).nan_to_num()):
            raise ConfigError(
                "Expected the same outputs again for the same records, got others from "
                f"{type(model).__name__}. It keeps state from one pass to the next. Remove that."
            )
        _require_same_model(model, columns, rows, codes, Isolation(Length(1), dict(found.constants)))
        return found

    with _public(model), _restored(model):
        key = _key(model, columns, "read", rows, getattr(read, "__qualname__", ""))
        found = _once(model, key, explore, lambda: None)
    return reader(found, public=False)


# Records that a kernel refuses ------------------------------------------------------------------------


def raising(compute: Callable[[slice], object], count: int, error: Exception) -> list[int]:
    """The positions of the records that raise when computed alone, after all `count` together raised `error`.

    compute: called with the slice of one record at a time. Raises `error` if no record raises alone, or if
    the cause is a lack of memory.
    """
    if isinstance(error, RuntimeError) and of_memory(error):
        raise error
    found = []
    for at in range(count):
        try:
            compute(slice(at, at + 1))
        except RECORD_ERRORS:
            found.append(at)
    if not found:
        raise error
    return found


# A sentence for reports --------------------------------------------------------------------------------


def sentence(model: nn.Module, rows: int) -> str:
    """A sentence on how private training keeps this model's records apart, and the memory that this takes.

    rows: the rows of a chunk whose records are computed alone. The model's modes do not change.
    """
    with in_mode(model, training=True):
        way = scheme_of(model)
    if not way.alone:
        return "row-wise layers compute a batch as a whole, and each record's gradient follows from its rows"
    values = sum(one.numel() for one in model.parameters() if one.requires_grad)
    return (
        f"each record's gradient is computed alone, as a batch of one under vmap, since {way.reason}; "
        f"{rows} gradients of {values:,} values take {rows * values * 4 / 1e6:,.1f} MB at a time"
    )
