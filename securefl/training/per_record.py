"""Per-record gradients, clipped and summed in one backward pass.

Batches are computed in chunks of a fixed number of rows (`chunks`), so a record's clipped gradient has the
same bits in every batch. Norms, products and sums are in float64 (`clipped`). The error of a sum is 1e-16 of
it for each record, so one more record moves it by its own gradient.

Only gradients with respect to the layers' outputs are propagated. With a layer's input they give each
record's gradient of the layer's parameters. For a dense layer it is an outer product, whose norm needs no
product (Goodfellow, arXiv 1510.01799). The clipped sum of such gradients is one matrix product (the
book-keeping of Bu et al., ICML 2023). A sampler of Opacus computes the per-record gradients of other layers.

`ClippedSum` does this for models of listed layers (`isolation`). For other models, `LoneSum` computes each
record's gradient alone and holds it as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from securefl.core.errors import ConfigError
from securefl.training.clipped import Outer, Whole, scales
from securefl.training.devices import one_thread
from securefl.training.draws import Drawing, Length, Taken, Tape
from securefl.training.isolation import RECORD_ERRORS, Gradients, LoneGradients, raising
from securefl.training.losses import Loss, losses_of
from securefl.training.products import ROWS, RowsAlike, padded

Sampler = Callable[[nn.Module, Tensor, Tensor], dict[nn.Parameter, Tensor]]
"""(layer, input (n, ...), gradient of its output (n, ...)) -> gradients (n, *shape) of its parameters."""


@dataclass(frozen=True)
class _Use:
    """A call of a layer: its input, and its output's node of the autograd graph before in-place changes."""

    layer: nn.Module
    input: Tensor
    version: int
    output: GradientEdge

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.layer.parameters() if parameter.requires_grad]

    def checked_input(self, records: int) -> Tensor:
        if len(self.input) != records or self.input._version != self.version:
            raise ConfigError(
                f"Expected layer {self.layer} to take one row a record ({records}) that nothing changes in "
                f"place, got {len(self.input)} rows. Train it without record-level privacy, or freeze it."
            )
        return self.input


_Part = tuple[Sequence[Tensor | None], Any]
"""The records' gradient of some parameters: those of a dense layer as an `Outer`, or one as a `Whole`."""


def _add(parts: Sequence[_Part], scale: Tensor, sums: Mapping[Any, Tensor]) -> None:
    """Add the first records' gradients times `scale` to the sums of trained parameters."""
    for parameters, own in parts:
        own.add(scale, *map(sums.get, parameters))


class Sum(Protocol):
    """(x, y) -> the sum over records of min(1, C / |g|) g, flat (d,) float64, in the order of `trained`.

    A record counts as zero if the model raises an error for it, or if its loss or gradient norm is not
    finite.
    """

    @property
    def length(self) -> Length:
        """The number of random values that a record's pass draws, and that the tape must hold."""
        ...

    def __call__(self, x: Tensor, y: Tensor, tape: Tape | None = None) -> Tensor:
        """x: (n, *shape), y: (n,) or (n, targets), n >= 0. tape: None if the model draws nothing."""
        ...


def _parts_of(trained: Sequence[nn.Parameter], device: torch.device) -> tuple[Tensor, dict[Tensor, Tensor]]:
    """A sum of zeros (d,) in float64, and each parameter's part of it as a view."""
    lengths = [parameter.numel() for parameter in trained]
    total = torch.zeros(sum(lengths), dtype=torch.float64, device=device)
    parts = torch.split(total, lengths)
    return total, {p: part.view_as(p) for p, part in zip(trained, parts, strict=True)}


class ClippedSum:
    """A `Sum` of a model of listed layers. `clipped_sums` makes it.

    A dropped record changes no bit: the sum is the same as without it.
    """

    def __init__(
        self,
        model: nn.Module,
        trained: Sequence[nn.Parameter],
        clip_norm: float,
        loss: Loss,
        sampler: Sampler,
        rows: int,
        length: Length,
    ) -> None:
        self._model, self._trained, self._loss, self._sampler = model, trained, loss, sampler
        self._rows, self.length = rows, length
        self._clip_norm = clip_norm
        self.uses: list[_Use] = []

    def __call__(self, x: Tensor, y: Tensor, tape: Tape | None = None) -> Tensor:
        total, sums = _parts_of(self._trained, x.device)
        usable = [
            self._tried(
                x[at : at + self._rows], y[at : at + self._rows], _rows_of(tape, at, self._rows), sums
            )
            for at in range(0, len(x), self._rows)
        ]
        if all(bool(part.all()) for part in usable):
            return total
        # Their factors hold nan, and zero times nan is nan. So the sum is computed again without these
        # records.
        kept = torch.cat(usable)
        return self(x[kept], y[kept], None if tape is None else tape[kept])

    def _tried(self, x: Tensor, y: Tensor, tape: Tape | None, sums: dict[Tensor, Tensor]) -> Tensor:
        """`_add`, also if the model raises for a record. If a record is unusable, the sums are invalid."""
        try:
            return self._add(x, y, tape, sums)
        except RECORD_ERRORS as error:
            scratch = {parameter: torch.zeros_like(part) for parameter, part in sums.items()}
            bad = raising(
                lambda at: self._add(x[at], y[at], None if tape is None else tape[at], scratch), len(x), error
            )
        usable = torch.ones(len(x), dtype=torch.bool, device=x.device)
        usable[bad] = False
        return usable

    def _add(self, x: Tensor, y: Tensor, tape: Tape | None, sums: dict[Tensor, Tensor]) -> Tensor:
        """Add the clipped gradients of one chunk's records. Returns a mask of the usable ones, bool (n,)."""
        self.uses.clear()
        n = len(x)
        inputs, targets = padded(x, self._rows), padded(y, self._rows)
        with RowsAlike(), self._drawing(tape):
            outputs = self._model(inputs)
        losses = losses_of(outputs, targets, self._loss)
        edges = [use.output for use in self.uses]
        slopes = torch.autograd.grad(losses.sum(), edges, allow_unused=True) if edges else ()
        with torch.no_grad():
            parts = self._parts(slopes, self._rows)
            if not parts:
                raise ConfigError(
                    "Expected the loss to depend on a trained layer's output, got one that depends on none."
                )
            scale, finite = scales([own.squares() for _, own in parts], self._clip_norm)
            _add(parts, scale[:n], sums)
            return (finite & torch.isfinite(losses))[:n]

    def _drawing(self, tape: Tape | None) -> AbstractContextManager[Any]:
        if tape is None:
            return nullcontext()
        return Drawing(Taken(_padded_tape(tape, self._rows), self._rows))

    def _parts(self, slopes: Sequence[Tensor | None], records: int) -> list[_Part]:
        """The records' gradients as parts, one for each parameter or dense layer."""
        # A parameter that is used twice must be one part, since its gradients add up before the norm.
        times = Counter(parameter for use in self.uses for parameter in use.parameters())
        dense, explicit = list[_Part](), dict[nn.Parameter, Tensor]()
        for use, slope in zip(self.uses, slopes, strict=True):
            taken = use.checked_input(records)
            if slope is None:  # the loss does not depend on it
                continue
            alone = all(times[parameter] == 1 for parameter in use.parameters())
            if type(use.layer) is nn.Linear and taken.ndim == 2 and alone:
                both = use.layer.weight, use.layer.bias
                trained = (one is not None and one.requires_grad for one in both)
                dense.append((both, Outer.of(taken, slope, *trained)))
                continue
            for parameter, found in self._sampler(use.layer, taken, slope).items():
                if parameter.requires_grad:
                    explicit[parameter] = explicit[parameter] + found if parameter in explicit else found
        return [*dense, *(((parameter,), Whole(found)) for parameter, found in explicit.items())]


def _rows_of(tape: Tape | None, at: int, rows: int) -> Tape | None:
    return None if tape is None else tape[at : at + rows]


def _padded_tape(tape: Tape, rows: int) -> Tape:
    return Tape(padded(tape.uniform, rows), padded(tape.normal, rows))


class LoneSum:
    """A `Sum` of any model, from gradients that `lone_gradients` computes record by record.

    trained: the parameters by name, in the order of `LoneGradients`. rows: the rows of a chunk. All gradients
    of a chunk are held at a time.
    """

    def __init__(
        self,
        gradients: LoneGradients,
        trained: Mapping[str, nn.Parameter],
        clip_norm: float,
        rows: int,
    ) -> None:
        self._gradients, self._trained, self._rows = gradients, trained, rows
        self._clip_norm = clip_norm

    @property
    def length(self) -> Length:
        return self._gradients.graph.length

    def __call__(self, x: Tensor, y: Tensor, tape: Tape | None = None) -> Tensor:
        total, sums = _parts_of(list(self._trained.values()), x.device)
        with one_thread(), torch.no_grad():
            for at in range(0, len(x), self._rows):
                own = _rows_of(tape, at, self._rows)
                self._add(x[at : at + self._rows], y[at : at + self._rows], own, sums)
        return total

    def _add(self, x: Tensor, y: Tensor, tape: Tape | None, sums: dict[Tensor, Tensor]) -> None:
        """Add the clipped gradients of one chunk's records."""
        n, bad = len(x), list[int]()

        def compute(at: slice) -> Gradients:
            own = None if tape is None else _padded_tape(tape[at], self._rows)
            return self._gradients((padded(x[at], self._rows), padded(y[at], self._rows)), own)

        try:
            found = compute(slice(0, n))
        except RECORD_ERRORS as error:
            bad = raising(compute, n, error)
            x, y = x.clone(), y.clone()
            x[bad], y[bad] = 0, 0
            found = compute(slice(0, n))
        parts = [
            ((self._trained[name],), Whole(each[:n].detach().contiguous()))
            for name, each in found.each.items()
        ]
        scale, finite = scales([own.squares() for _, own in parts], self._clip_norm)
        usable = finite & torch.isfinite(found.losses[:n])
        usable[bad] = False
        for _, own in parts:
            own.gradients[~usable] = 0  # zero times nan is nan
        _add(parts, torch.where(usable, scale, 0), sums)


@contextmanager
def clipped_sums(
    model: nn.Module,
    layers: Sequence[nn.Module],
    trained: Sequence[nn.Parameter],
    clip_norm: float,
    loss: Loss,
    sampler: Sampler,
    rows: int = ROWS,
    length: Length = Length(),  # noqa: B008 - frozen
) -> Iterator[ClippedSum]:
    """A context with a `ClippedSum` that hooks `layers`, which hold all of `trained`.

    Its hooks are removed at the end.

    rows: the rows of a chunk. length: the number of random values of a record.
    """
    made = ClippedSum(model, trained, clip_norm, loss, sampler, rows, length)

    def note(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or not isinstance(output, Tensor):
            raise ConfigError(
                f"Expected layer {layer} to take one tensor and return one; freeze it, or train without "
                "record-level privacy."
            )
        taken = inputs[0].detach()
        made.uses.append(_Use(layer, taken, taken._version, get_gradient_edge(output)))

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        with one_thread():
            yield made
    finally:
        for handle in handles:
            handle.remove()
