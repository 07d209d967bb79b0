"""Row-wise recurrent layers compute what torch's do, from the same parameters."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from securefl.core.errors import ConfigError
from securefl.training.private_layers import RecordByRecord, make_private, record_by_record

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}
SETTINGS = list(product((1, 2), (False, True), (False, True), (False, True)))


def made(kind: str, layers: int = 2, both: bool = True, bias: bool = True, first: bool = True) -> Any:
    torch_kind, more = KINDS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return torch_kind(3, 4, layers, bidirectional=both, bias=bias, batch_first=first, **more)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def alike(one: Any, other: Any) -> None:
    if isinstance(one, tuple):
        for a, b in zip(one, other, strict=True):
            alike(a, b)
    else:
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_states_and_gradients_are_torchs(kind: str) -> None:
    for settings in SETTINGS:
        require_alike(kind, *settings)


def require_alike(kind: str, layers: int, both: bool, bias: bool, first: bool) -> None:
    theirs = made(kind, layers, both, bias, first)
    ours = record_by_record(theirs)
    assert ours is not None
    x = drawn(5, 6, 3)
    alike(ours(x), theirs(x))
    for layer in (ours, theirs):
        layer(x)[0].square().sum().backward()
    for (name, one), (same, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == same
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_state_is_taken(kind: str) -> None:
    theirs = made(kind)
    start: Any = drawn(4, 5, 4)
    if kind == "lstm":
        start = (start, drawn(4, 5, 4) / 2)
    alike(record_by_record(theirs)(drawn(5, 6, 3), start), theirs(drawn(5, 6, 3), start))  # type: ignore[misc]


def test_values_and_modes_of_torchs_layer_are_copied() -> None:
    theirs, before = made("gru").requires_grad_(False).eval(), torch.get_rng_state()
    ours = record_by_record(theirs)
    assert ours is not None
    assert not ours.training
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert torch.equal(before, torch.get_rng_state())
    next(ours.parameters()).zero_()
    assert next(theirs.parameters()).abs().sum() > 0


def test_other_layers_are_left_alone() -> None:
    assert record_by_record(nn.Linear(3, 4)) is None
    assert record_by_record(nn.LSTM(3, 4, proj_size=2)) is None
    changed, said = make_private(nn.Sequential(made("lstm")))
    assert isinstance(changed[0], RecordByRecord)  # type: ignore[index]
    assert "LSTM(3, 4, num_layers=2" in said[0]
    for kind in KINDS:
        assert isinstance(make_private(made(kind))[0], RecordByRecord)


def test_sequences_of_other_shapes_are_refused() -> None:
    ours = record_by_record(made("gru"))
    packed = nn.utils.rnn.pack_sequence([drawn(3, 3), drawn(2, 3)])
    for given in (drawn(6, 3), packed):
        with pytest.raises(ConfigError, match="Pad sequences"):
            ours(given)  # type: ignore[misc]


def test_a_layer_of_two_names_and_tied_values_stay_so() -> None:
    norm, one, other = nn.BatchNorm1d(4), nn.GRU(4, 4), nn.GRU(4, 4)
    other.weight_ih_l0 = one.weight_ih_l0
    ours, changes = make_private(nn.ModuleList([norm, one, norm, other]))
    assert len(changes) == 4
    assert ours[0] is ours[2]
    assert ours[1].weight_ih_l0 is ours[3].weight_ih_l0
    assert len(list(ours.parameters())) == 2 + 2 * 4 - 1
