"""Optimizers on flat vectors. `test_local` compares them with torch's."""

from __future__ import annotations

import torch

from securefl.training.vector import SGD, Adam

GRADIENT = torch.tensor([0.0, -0.0, 1e-45, 1e-30, 1e-23, 1e-12, -1.0, 1e10, float("nan"), float("inf")])


def test_a_root_of_the_least_normal_number_leaves_no_bit() -> None:
    values, adam = torch.zeros(len(GRADIENT)), Adam(rate=0.1)
    first, second, expected = (torch.zeros(len(GRADIENT)) for _ in range(3))
    for step in range(1, 6):
        adam.step(values, GRADIENT * step)
        first.lerp_(GRADIENT * step, 0.1)
        second.mul_(0.999).addcmul_(GRADIENT * step, GRADIENT * step, value=0.001)
        root = (second / (1 - 0.999**step)).sqrt_().add_(1e-8)
        expected.addcdiv_(first, root, value=-0.1 / (1 - 0.9**step))
    assert torch.equal(values.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert values[6] > 0.4, "it does move"


def test_a_gradient_stays_its_callers() -> None:
    sgd, values = SGD(rate=0.1, momentum=0.5), torch.zeros(3)
    gradient = torch.ones(3)
    for velocity in (1.0, 1.5, 1.75):
        before = values.clone()
        sgd.step(values, gradient)
        torch.testing.assert_close(values, before - 0.1 * velocity)
        assert torch.equal(gradient, torch.ones(3)), "a stack writes the next one to the same memory"
