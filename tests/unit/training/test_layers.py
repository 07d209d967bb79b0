"""Where several models stand in one flat tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from securefl.training.stack import Layout

SIZES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3).map(tuple)


@given(SIZES, st.integers(1, 5), st.data())
def test_models_come_back_as_they_were_placed(
    sizes: tuple[tuple[int, int], ...], slots: int, data: st.DataObject
) -> None:
    layout, length = Layout(slots, sizes), sum(outputs * (inputs + 1) for outputs, inputs in sizes)
    models = data.draw(st.integers(1, slots))
    one = np.arange(1, length + 1, dtype=np.float32)
    vectors = [one] * models if data.draw(st.booleans()) else [one * k for k in range(1, models + 1)]
    flat = layout.place(vectors)
    rows = layout.rows(flat)
    np.testing.assert_array_equal(rows[:models], vectors)
    assert not rows[models:].any()
    assert torch.equal(layout.place([*rows.numpy()]), flat)
    assert torch.count_nonzero(flat) == models * length, "zeros behind the rows, and in the other slots"


def test_what_memory_held_before_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda size: torch.full((size,), float("nan")))
    for sizes in (((3, 2),), ((4, 4),)):
        flat = Layout(3, sizes).place([np.ones(sizes[0][0] * (sizes[0][1] + 1), np.float32)])
        assert torch.isfinite(flat).all()


def test_all_slots_of_a_layer_begin_at_the_same_alignment() -> None:
    layout = Layout(5, ((3, 2), (7, 3), (10, 7)))
    for layer in layout.layers(layout.place([np.zeros(9 + 28 + 80, np.float32)])):
        assert len({slot.data_ptr() % 64 for slot in layer.weight}) == 1


def test_a_layer_is_what_torch_makes_of_it() -> None:
    generator = torch.Generator().manual_seed(1)
    layout = Layout(2, ((3, 5),))
    models = [torch.randn(18, generator=generator) for _ in range(2)]
    (layer,) = layout.layers(layout.place([model.numpy() for model in models]))
    x = torch.randn(2, 7, 5, generator=generator)
    found = layer.forward(torch.nn.functional.pad(x, (0, 3)))
    for slot, model in enumerate(models):
        expected = torch.nn.functional.linear(x[slot], model[:15].view(3, 5), model[15:])
        torch.testing.assert_close(found[slot, :, :3], expected)
        assert not found[slot, :, 3:].any()
        back = layer.back(found)[slot, :, :5]
        torch.testing.assert_close(back, expected @ model[:15].view(3, 5))
