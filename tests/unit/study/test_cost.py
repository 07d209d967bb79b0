"""The cost model against hand numbers, and against the minutes and watt-hours the papers print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args
from unittest import mock

import numpy as np
import pytest
from support.every import every

from securefl.study.cost import (
    PRESETS,
    ClientCosts,
    CostModel,
    Devices,
    PresetName,
    client_costs,
)

# SNR 3 makes log2(1 + SNR) = 2, so that every number below can be checked in the head.
MODEL = CostModel(
    snr=3.0,
    transmit_watts=0.5,
    processor_watts=0.25,
    bits_per_sample=100,
    cycles_per_bit=1000,
    epochs=4,
    model_megabytes=1.0,
    ghz=(2.0, 0.1),
    mhz=(0.5, 1.0),
)
TWO = Devices(ghz=np.array([0.5, 2.0]), mhz=np.array([1.0, 4.0]))


def costs_of(model: CostModel, devices: Devices, sizes: Any, profile: int | None = None) -> ClientCosts:
    """With the papers' number of passes."""
    return client_costs(model, devices, sizes, model.epochs, profile=profile)


def test_a_constant_model_goes_down_once_and_up_at_half_the_speed() -> None:
    # 3 * 8 megabit over 1 (or 4) MHz * 2 bit
    assert client_costs(MODEL, TWO, 2500, 0).seconds == pytest.approx([12.0, 3.0])
    assert client_costs(MODEL, TWO, 2500, 0, up=1, down=1).seconds == pytest.approx([12.0, 3.0])


def test_real_bytes_are_charged_per_client_and_direction() -> None:
    real = replace(MODEL, model_megabytes=None)
    up, down = np.array([1e6, 0.0]), np.array([0.0, 1e6])

    # up: 2 * 8 megabit / (1 * 2); down: 8 megabit / (4 * 2)
    assert client_costs(real, TWO, 2500, 0, up=up, down=down).seconds == pytest.approx([8.0, 1.0])
    assert client_costs(real, TWO, 2500, 0, up=1e6, down=1e6).seconds == pytest.approx([12.0, 3.0])


def test_costs_without_a_profile() -> None:
    costs = costs_of(MODEL, TWO, 2500)

    assert costs.seconds == pytest.approx([14.0, 3.5])
    # 0.5 W * 12 s + 0.25 W * 0.5^3 * 2 s; 0.5 W * 3 s + 0.25 W * 2^3 * 0.5 s
    assert costs.joules == pytest.approx([6.0625, 2.5])


def test_costs_with_a_profile() -> None:
    costs = costs_of(MODEL, TWO, 2500, profile=250_000)

    # beside the 14 and 3.5 s without one: 0.5 and 0.125 s to make it, 2 and 0.5 s to send its 2 megabit over
    # half of the bandwidth
    assert costs.seconds == pytest.approx([16.5, 4.125])
    # 0.5 W * 14 s + 0.25 W * 0.5^3 * 2.5 s; 0.5 W * 3.5 s + 0.25 W * 2^3 * 0.625 s
    assert costs.joules == pytest.approx([7.078125, 3.0])


def test_a_round_lasts_as_long_as_its_slowest_and_costs_all_of_them() -> None:
    costs = costs_of(MODEL, TWO, 2500)

    assert costs.round_seconds == pytest.approx(14.0)
    assert costs.watt_hours == pytest.approx(8.5625 / 3600)
    assert costs_of(MODEL, TWO.of(np.array([1])), 2500).round_seconds == pytest.approx(3.5)


def test_a_round_of_nobody_costs_nothing() -> None:
    costs = costs_of(MODEL, TWO.of(np.zeros(0, np.int64)), np.zeros(0))
    assert (costs.round_seconds, costs.watt_hours) == (0.0, 0.0)


def test_devices_are_drawn_from_their_laws_and_never_below_zero() -> None:
    devices = MODEL.draw(20_000, np.random.default_rng(5))

    assert devices.ghz.mean() == pytest.approx(2.0, abs=0.01)
    assert devices.ghz.std() == pytest.approx(0.1, abs=0.01)
    assert devices.mhz.min() > 0
    # N(0.5, 1) given > 0 has mean 0.5 + phi(0.5) / Phi(0.5) = 1.0092
    assert devices.mhz.mean() == pytest.approx(1.0092, abs=0.02)


Sizes = Callable[[np.random.Generator], Any]


def average_round(
    preset: CostModel, clients: int, cohort: int, sizes: Sizes, repeats: int
) -> tuple[float, float]:
    """Mean seconds and mean Wh of a round under uniform selection, over seeded device draws."""
    rng = np.random.default_rng(2021)
    seconds, energy = [], []
    for _ in range(repeats):
        devices, records = preset.draw(clients, rng), np.broadcast_to(sizes(rng), clients)
        chosen = rng.choice(clients, cohort, replace=False)
        costs = costs_of(preset, devices.of(chosen), records[chosen])
        seconds.append(costs.round_seconds)
        energy.append(costs.watt_hours)
    return float(np.mean(seconds)), float(np.mean(energy))


PUBLISHED: dict[PresetName, tuple[tuple[int, int, Sizes, int], Any, Any]] = {
    "gas_turbine_v1": (
        (50, 10, lambda rng: np.maximum(rng.normal(514, 154, 50), 0), 1000),
        pytest.approx(2869.66 / 56, rel=0.10),
        pytest.approx(2.87 / 56, rel=0.05),
    ),
    "gas_turbine_v2": (
        (50, 10, lambda rng: rng.normal(514, 101, 50), 1000),
        pytest.approx(47.7 * 60 / 82, rel=0.05),
        pytest.approx(4.59 / 82, rel=0.05),
    ),
    "emnist_v1": (
        (1000, 50, lambda _: 240, 200),
        pytest.approx(10407.30 / 213, rel=0.05),
        pytest.approx(60.01 / 213, rel=0.03),
    ),
    # The test below is of its time.
    "emnist_v2": ((500, 25, lambda _: 480, 400), mock.ANY, pytest.approx(15.83 / 103, rel=0.05)),
    "cifar10_v2": (
        (10, 5, lambda _: 5000, 1000),
        pytest.approx(91.4 * 60 / 38, rel=0.20),
        pytest.approx(93.52 / 38, rel=0.10),
    ),
}
"""Clients, cohort, records and draws; seconds and watt-hours of a round in the papers' tables."""


@every("name", PUBLISHED)
def test_time_and_energy_are_those_of_the_papers_tables(name: PresetName) -> None:
    play, seconds, watt_hours = PUBLISHED[name]
    preset = replace(PRESETS[name], model_megabytes=PRESETS[name].model_megabytes or 1.0)
    assert average_round(preset, *play) == (seconds, watt_hours)


def test_the_time_of_emnist_v2_is_a_usual_draw_of_its_devices() -> None:
    """Its bandwidth law has density near zero, so that no mean over draws exists; a run has one draw."""
    preset, rng = PRESETS["emnist_v2"], np.random.default_rng(2021)
    runs = []
    for _ in range(100):
        devices = preset.draw(500, rng)
        cohorts = [devices.of(rng.choice(500, 25, replace=False)) for _ in range(103)]
        rounds = [costs_of(preset, own, 480).round_seconds for own in cohorts]
        runs.append(np.mean(rounds))

    low, high = np.quantile(runs, [0.1, 0.9])
    assert low < 115.8 * 60 / 103 < high


def test_the_v2_profile_charge_on_cifar10_is_one_epoch_in_six() -> None:
    plain = replace(PRESETS["cifar10_v2"], model_megabytes=1.0)
    devices = plain.draw(10, np.random.default_rng(0))
    without, with_profile = (costs_of(plain, devices, 5000, profile=own) for own in (None, 0))

    # Table 5, energy a round of FedProf over FedAvg: (39.67 / 14) / (93.52 / 38) = 1.15
    assert with_profile.joules.sum() / without.joules.sum() == pytest.approx(
        39.67 / 14 / (93.52 / 38), rel=0.02
    )


def test_each_name_of_a_preset_has_one() -> None:
    assert tuple(PRESETS) == get_args(PresetName)
