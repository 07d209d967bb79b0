"""Replacement of layers for private training: batch norm by group norm, and torch's LSTM, GRU and RNN.

torch computes an LSTM, GRU or RNN in one kernel, which raises under `vmap` or hides the dropout between its
layers. Here every step consists of functions that `vmap` can follow. The parameters have torch's names,
shapes and initial values, so a state dict fits both. Outputs are the same up to rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from math import gcd
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.nn.modules.batchnorm import _BatchNorm

from securefl.core.errors import ConfigError

State = tuple[Tensor, ...]
"""The state between two steps of a layer: the output and, for an LSTM, the cell, each (rows, units)."""
Cell = Callable[[Tensor, Tensor, State], State]
"""(the input's part of the gates, the last output's part of the gates, state) -> state."""


def _lstm(given: Tensor, kept: Tensor, state: State) -> State:
    take, forget, new, put = (given + kept).chunk(4, dim=-1)
    cell = torch.sigmoid(forget) * state[1] + torch.sigmoid(take) * torch.tanh(new)
    return torch.sigmoid(put) * torch.tanh(cell), cell


def _gru(given: Tensor, kept: Tensor, state: State) -> State:
    (reset, update, new), (own_reset, own_update, own_new) = given.chunk(3, dim=-1), kept.chunk(3, dim=-1)
    fresh = torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new)
    share = torch.sigmoid(update + own_update)
    return ((1 - share) * fresh + share * state[0],)


def _tanh(given: Tensor, kept: Tensor, state: State) -> State:
    return (torch.tanh(given + kept),)


def _relu(given: Tensor, kept: Tensor, state: State) -> State:
    return (torch.relu(given + kept),)


class _Recurrent(nn.Module):
    """The common part of `LSTM`, `GRU` and `RNN`. gates: a weight has gates * `hidden_size` rows."""

    gates: int = 1
    states: int = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = (
            bias,
            batch_first,
            dropout,
            bidirectional,
        )
        bound = 1 / math.sqrt(hidden_size)
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * self.directions
            for end in self._ends(layer):
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (self.gates * hidden_size, width),
                    "weight_hh": (self.gates * hidden_size, hidden_size),
                }
                if bias:
                    shapes |= {"bias_ih": (self.gates * hidden_size,), "bias_hh": (self.gates * hidden_size,)}
                for name, shape in shapes.items():
                    drawn = torch.empty(shape).uniform_(-bound, bound)
                    self.register_parameter(f"{name}_{end}", nn.Parameter(drawn))

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _ends(self, layer: int) -> tuple[str, ...]:
        return (f"l{layer}", f"l{layer}_reverse")[: self.directions]

    def cell(self, given: Tensor, kept: Tensor, state: State) -> State:
        raise NotImplementedError

    def forward(self, x: Tensor, start: Any = None) -> tuple[Tensor, Any]:
        """x: (rows, places, input), or (places, rows, input) without batch_first. start: as in torch."""
        if not isinstance(x, Tensor) or x.ndim != 3:
            raise ConfigError(
                f"Expected records of (rows, places, {self.input_size}) for {type(self).__name__}, got "
                f"{tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__}. Pad sequences to one "
                "length."
            )
        values = x if self.batch_first else x.transpose(0, 1)
        given = (start,) if isinstance(start, Tensor) else start
        last: list[State] = []
        for layer in range(self.num_layers):
            ways = []
            for way, end in enumerate(self._ends(layer)):
                at = layer * self.directions + way
                state = self._zeros(values) if given is None else tuple(one[at] for one in given)
                found, state = self._along(values.flip(1) if way else values, state, end)
                ways.append(found.flip(1) if way else found)
                last.append(state)
            values = torch.cat(ways, dim=2) if len(ways) > 1 else ways[0]
            if layer < self.num_layers - 1:
                values = dropout(values, self.dropout, self.training)
        ends = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
        return values if self.batch_first else values.transpose(0, 1), ends if self.states > 1 else ends[0]

    def _zeros(self, values: Tensor) -> State:
        zero = values.new_zeros((len(values), self.hidden_size))
        return (zero,) * self.states

    def _along(self, values: Tensor, state: State, end: str) -> tuple[Tensor, State]:
        weight, own = getattr(self, f"weight_ih_{end}"), getattr(self, f"weight_hh_{end}")
        bias, own_bias = (getattr(self, f"{name}_{end}", None) for name in ("bias_ih", "bias_hh"))
        # One product computes the inputs' part of the gates for all places.
        parts, found = linear(values, weight, bias).unbind(1), []
        for part in parts:
            state = self.cell(part, linear(state[0], own, own_bias), state)
            found.append(state[0])
        return torch.stack(found, dim=1), state

    def extra_repr(self) -> str:
        return (
            f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, "
            f"batch_first={self.batch_first}, "
            f"dropout={self.dropout}, bidirectional={self.bidirectional}"
        )


class LSTM(_Recurrent):
    """torch's LSTM without projections, record by record."""

    gates, states = 4, 2

    def cell(self, given: Tensor, kept: Tensor, state: State) -> State:
        return _lstm(given, kept, state)


class GRU(_Recurrent):
    """torch's GRU, record by record."""

    gates = 3

    def cell(self, given: Tensor, kept: Tensor, state: State) -> State:
        return _gru(given, kept, state)


class RNN(_Recurrent):
    """torch's RNN, record by record. nonlinearity: "tanh" or "relu"."""

    nonlinearity = "tanh"

    def cell(self, given: Tensor, kept: Tensor, state: State) -> State:
        return (_tanh if self.nonlinearity == "tanh" else _relu)(given, kept, state)


_KINDS: Final[dict[type[nn.Module], type[_Recurrent]]] = {nn.LSTM: LSTM, nn.GRU: GRU, nn.RNN: RNN}


def record_by_record(layer: nn.Module) -> _Recurrent | None:
    """The layer of this module that replaces a recurrent layer of torch, with its values, or None.

    It is None for all other layers, and for an LSTM with a `proj_size`.
    """
    kind = _KINDS.get(type(layer))
    if kind is None or vars(layer).get("proj_size"):
        return None
    assert isinstance(layer, nn.RNNBase)
    # The initial values are replaced below, so torch's generator should not change.
    with torch.random.fork_rng(devices=[]):
        made = kind(
            layer.input_size,
            layer.hidden_size,
            layer.num_layers,
            bool(layer.bias),
            layer.batch_first,
            layer.dropout,
            layer.bidirectional,
        )
    if isinstance(made, RNN):
        made.nonlinearity = str(layer.nonlinearity)
    for name, entry in layer.named_parameters():
        kept = made.get_parameter(name)
        kept.data = entry.detach().clone()
        kept.requires_grad_(entry.requires_grad)
    return made.train(layer.training)


def make_private(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy of the model that `train_privately` accepts, and a line for each replaced layer.

    Batch norm mixes the records of a batch and keeps their statistics. Group norm (Wu and He, ECCV 2018)
    replaces it: with 32 groups, or fewer so that each has two channels, and with one group after dense
    layers. Its scales and shifts start at 1 and 0. Layers of this module replace torch's LSTM, GRU and RNN,
    with the same values. The result depends on the model alone, and all parties of a round must make it.
    """
    made = copy.deepcopy(model)
    changes = []
    for name, layer in list(made.named_modules()):
        fresh: nn.Module | None = record_by_record(layer)
        if isinstance(layer, _BatchNorm):
            fresh = _group_norm(layer).train(layer.training)
            fresh.requires_grad_(any(parameter.requires_grad for parameter in layer.parameters()))
        if fresh is None:
            continue
        changes.append(f"{name or 'the model'}: {layer} became {fresh}")
        if name:
            made.set_submodule(name, fresh)
        else:
            made = fresh
    return made, tuple(changes)


def _group_norm(layer: _BatchNorm) -> nn.GroupNorm:
    # ModuleValidator.fix of Opacus is not used: it copies by pickle, skips frozen layers, and makes each of
    # up to 32 channels its own group. After a dense layer such a group normalises every value to 0.
    channels = layer.num_features
    single = isinstance(layer, nn.BatchNorm1d)
    groups = 1 if single else min(gcd(32, channels), max(1, channels // 2))
    return nn.GroupNorm(groups, channels, affine=layer.affine)
