"""What a private training costs, against Opacus' accountants."""

from __future__ import annotations

import pytest
from opacus.accountants import PRVAccountant, RDPAccountant
from support.every import every
from support.tiny_dpsgd import config

from securefl.accounting.composition import compose, rdp_epsilon
from securefl.accounting.events import History


@every(
    ("q", "z", "steps"),
    [(0.02, 1.1, 50), (0.02, 1.1, 5000), (0.05, 1.0, 100), (0.3, 2.0, 10), (0.004, 0.6, 1000)],
)
def test_epsilon_is_that_of_opacus(q: float, z: float, steps: int) -> None:
    """PRV gives an upper bound with an error of 0.01 on either side; RDP differs by its orders."""
    event = config(sampling_rate=q, noise_multiplier=z, steps=steps).event
    prv, rdp = PRVAccountant(), RDPAccountant()
    prv.history = rdp.history = [(z, q, steps)]
    assert 0 <= prv.get_epsilon(1e-5, eps_error=0.01) - compose({event: 1}, 1e-5) <= 0.02
    assert rdp_epsilon(History.of({event: 1}), 1e-5) == pytest.approx(rdp.get_epsilon(1e-5), rel=1e-3)
