"""Replacement of layers for private training: batch norm by group norm, and torch's LSTM, GRU and RNN.

torch computes an LSTM, GRU or RNN in one kernel, which raises under `vmap` or hides the dropout between its
layers. Here every step consists of functions that `vmap` can follow. The parameters are torch's, so a state
dict fits both. Outputs are the same up to rounding.

Opacus' DPLSTM, DPGRU and DPRNN do not serve: they drop values of the state from place to place where torch
drops the outputs of a layer, order their parameters otherwise, and take 1.4 to 2.1 times as long under `vmap`
(20 and 40 places, widths 0.1 and 0.25 of `char_lstm`).
"""

from __future__ import annotations

import copy
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.nn.modules.batchnorm import _BatchNorm

from securefl.core.errors import ConfigError
from securefl.training.devices import norms

State = tuple[Tensor, ...]
"""The state between two steps of a layer: the output and, for an LSTM, the cell, each (rows, units)."""


class RecordByRecord(nn.RNNBase):
    """torch's LSTM without projections, GRU or RNN, with another `forward`."""

    def cell(self, given: Tensor, kept: Tensor, state: State) -> State:
        """The next state, from the input's part of the gates and the last output's."""
        if self.mode == "LSTM":
            take, forget, new, put = (given + kept).chunk(4, dim=-1)
            cell = torch.sigmoid(forget) * state[1] + torch.sigmoid(take) * torch.tanh(new)
            return torch.sigmoid(put) * torch.tanh(cell), cell
        if self.mode == "GRU":
            (reset, update, new), (own_reset, own_update, own_new) = (
                part.chunk(3, dim=-1) for part in (given, kept)
            )
            fresh = torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new)
            share = torch.sigmoid(update + own_update)
            return ((1 - share) * fresh + share * state[0],)
        return ((torch.relu if self.mode == "RNN_RELU" else torch.tanh)(given + kept),)

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
            for way in range(1 + self.bidirectional):
                if given is None:
                    state = (values.new_zeros((len(values), self.hidden_size)),) * (1 + (self.mode == "LSTM"))
                else:
                    state = tuple(one[len(last)] for one in given)
                end = f"l{layer}" + "_reverse" * way
                found, state = self._along(values.flip(1) if way else values, state, end)
                ways.append(found.flip(1) if way else found)
                last.append(state)
            values = torch.cat(ways, dim=2) if len(ways) > 1 else ways[0]
            if layer < self.num_layers - 1:
                values = dropout(values, self.dropout, self.training)
        ends = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
        return values if self.batch_first else values.transpose(0, 1), ends if len(ends) > 1 else ends[0]

    def _along(self, values: Tensor, state: State, end: str) -> tuple[Tensor, State]:
        weight, own = getattr(self, f"weight_ih_{end}"), getattr(self, f"weight_hh_{end}")
        bias, own_bias = (getattr(self, f"{name}_{end}", None) for name in ("bias_ih", "bias_hh"))
        # One product computes the inputs' part of the gates for all places.
        parts, found = linear(values, weight, bias).unbind(1), []
        for part in parts:
            state = self.cell(part, linear(state[0], own, own_bias), state)
            found.append(state[0])
        return torch.stack(found, dim=1), state


def record_by_record(layer: nn.Module) -> nn.Module | None:
    """The layer of this module that replaces a recurrent layer of torch, with its values, or None.

    It is None for all other layers, and for an LSTM with a `proj_size`.
    """
    if type(layer) not in (nn.LSTM, nn.GRU, nn.RNN) or vars(layer).get("proj_size"):
        return None
    made = copy.deepcopy(layer)
    made.__class__ = RecordByRecord
    return made


def make_private(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy of the model that `train_privately` accepts, and a line for each replaced layer.

    Batch norm mixes the records of a batch and keeps their statistics. Group norm (Wu and He, ECCV 2018)
    replaces it: with 32 groups, or fewer so that each has two channels, and with one group after dense
    layers. It has the batch norm's scales and shifts. Layers of this module replace torch's LSTM, GRU and
    RNN, with the same values. A frozen batch norm stays: it is held in evaluation mode. The result depends on
    the model alone, and all parties of a round must make it.
    """
    made = copy.deepcopy(model)
    changes, known = [], dict[nn.Module, nn.Module | None](dict.fromkeys(norms(made, frozen=True).values()))
    for name, layer in list(made.named_modules(remove_duplicate=False)):
        if layer not in known:
            known[layer] = _replaced(layer)
        if (fresh := known[layer]) is None:
            continue
        changes.append(f"{name or 'the model'}: {layer} became {fresh}")
        if name:
            made.set_submodule(name, fresh)
        else:
            made = fresh
    return made, tuple(changes)


def _replaced(layer: nn.Module) -> nn.Module | None:
    """The layer in place of this one, with the same parameters if they fit. None if this one stays."""
    if isinstance(layer, _BatchNorm):
        fresh: nn.Module | None = _group_norm(layer).train(layer.training)
    else:
        fresh = record_by_record(layer)
    if fresh is not None:
        for key, entry in layer.named_parameters(recurse=False):
            setattr(fresh, key, entry)  # not a copy: another layer may be tied to it
    return fresh


def _group_norm(layer: _BatchNorm) -> nn.GroupNorm:
    # ModuleValidator.fix of Opacus is not used: it copies by pickle, skips frozen layers, and makes each of
    # up to 32 channels its own group. After a dense layer such a group normalises every value to 0.
    channels = layer.num_features
    single = isinstance(layer, nn.BatchNorm1d)
    groups = 1 if single else min(gcd(32, channels), max(1, channels // 2))
    return nn.GroupNorm(groups, channels, affine=layer.affine)
