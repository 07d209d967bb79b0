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


@every(
    ("rounds", "expected", "by_rdp"),
    [((100, 100), 9.4756, 10.2194), ((100, 0), 7.8609, 8.5148), ((0, 100), 4.3772, 4.7285)],
)
def test_reference_ledgers(rounds: tuple[int, int], expected: float, by_rdp: float) -> None:
    """100 rounds of 50 steps of (0.02, 1.1), of a Gaussian of multiplier 10 (a step of rate 1), or both."""
    trainings, gaussians = rounds
    training = config(sampling_rate=0.02, noise_multiplier=1.1, steps=50).event
    gaussian = config(sampling_rate=1.0, noise_multiplier=10.0, steps=1).event
    events = {event: times for event, times in ((training, trainings), (gaussian, gaussians)) if times}
    assert compose(events, 1e-5) == pytest.approx(expected, abs=2e-3)
    assert rdp_epsilon(History.of(events), 1e-5) == pytest.approx(by_rdp, abs=2e-3)
    rdp = RDPAccountant()
    rdp.history = [(1.1, 0.02, 50 * trainings)] * bool(trainings) + [(10.0, 1.0, gaussians)] * bool(gaussians)
    assert rdp.get_epsilon(1e-5) == pytest.approx(by_rdp, abs=2e-3)
