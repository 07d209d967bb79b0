"""Time and energy of a round on the clients' devices, by the cost model of the FedProf papers.

Source: FedProf v2, Eqs. 9-16 and Table 2; v1, Eqs. 53-60 and Table 4 (the same model, other constants). The
logarithm is to base 2. A decibel figure becomes a plain ratio. The size of a message in megabit is divided by
the bandwidth in MHz. With this reading the presets agree with the published minutes and watt-hours per round:
FedAvg's rows within 6 %, and CIFAR-10, whose ten devices are drawn once, within 20 %.

The uplink has half the bandwidth of the downlink, so a byte sent up takes twice as long as a byte sent down.

Sending and receiving both cost the transmitter's power. Compare arms only on the same drawn devices. The
bandwidths of EMNIST in v2 are N(1, 0.3^2) cut at zero. Bandwidths near zero occur, and the time of a message
grows as one over the bandwidth. So the mean round time is finite for one draw of devices, not over draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
MEGABIT_PER_BYTE = 8e-6
JOULES_PER_WATT_HOUR = 3600.0


def decibel(db: float) -> float:
    """The power ratio of a signal-to-noise figure in dB: 10 for 10 dB, 5.01 for 7 dB."""
    return float(10.0 ** (db / 10.0))


@dataclass(frozen=True)
class CostModel:
    """The cost model of one task: the constants of Eqs. 11-16, the same for all devices, and their law.

    snr: signal-to-noise ratio as a plain ratio (see `decibel`), > 0.
    transmit_watts: P_trans in W. bits_per_sample: BPS. cycles_per_bit: CPB. epochs: E, local epochs a round.
    model_megabytes: a constant model size in MB (1e6 bytes) each way, as in the papers' tables. None counts
        the real bytes of the messages.
    ghz, mhz: of processor speed and downlink bandwidth (Table 2), the mean > 0 and the standard deviation of
        normal distributions, before they are cut at zero.
    processor_watts: P_f in W, the power of a processor at 1 GHz.
    """

    snr: float
    transmit_watts: float
    bits_per_sample: int
    cycles_per_bit: float
    epochs: float
    model_megabytes: float | None
    ghz: tuple[float, float]
    mhz: tuple[float, float]
    processor_watts: float = 0.7

    def draw(self, clients: int, rng: np.random.Generator) -> Devices:
        """Devices for `clients` clients. Every speed and bandwidth is > 0."""
        ghz, mhz = (_positive_normal(clients, law, rng) for law in (self.ghz, self.mhz))
        return Devices(ghz=ghz, mhz=mhz)


@dataclass(frozen=True, kw_only=True, eq=False)
class Devices:
    """The devices of N clients.

    ghz: (N,) float64, processor speed s_k in GHz. mhz: (N,) float64, downlink bandwidth bw_k in MHz.
    All are finite and > 0.
    """

    ghz: Floats
    mhz: Floats

    def of(self, clients: NDArray[np.int64]) -> Devices:
        """The devices of these clients."""
        return Devices(ghz=self.ghz[clients], mhz=self.mhz[clients])


def _positive_normal(count: int, law: tuple[float, float], rng: np.random.Generator) -> Floats:
    values = rng.normal(*law, size=count)
    # The mean is positive, so at least half of the values are kept in each turn, and the loop ends.
    while (bad := values <= 0).any():
        values[bad] = rng.normal(*law, size=int(bad.sum()))
    return values


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientCosts:
    """The cost of one round for each client of a cohort, all (N,) float64.

    seconds: T_comm + T_train + T_RP, the inner sum of Eq. 9. joules: E_k, Eqs. 10 and 14-16.
    """

    seconds: Floats
    joules: Floats

    @property
    def round_seconds(self) -> float:
        """T_round, Eq. 9: the seconds of the slowest client. 0 if there is none."""
        return float(np.max(self.seconds, initial=0.0))

    @property
    def watt_hours(self) -> float:
        """Energy of all these devices in Wh (J / 3600)."""
        return float(np.sum(self.joules) / JOULES_PER_WATT_HOUR)


def client_costs(
    model: CostModel,
    devices: Devices,
    sizes: ArrayLike,
    passes: ArrayLike,
    *,
    down: ArrayLike = 0.0,
    up: ArrayLike = 0.0,
    profile: ArrayLike | None = None,
) -> ClientCosts:
    """Eqs. 10-16 for every client. Each array is (N,), or one number for all clients.

    Args:
        model: the constants. A constant message size counts three times, in place of 2 up + down.
        devices: of N clients.
        sizes: |D_k| in samples.
        passes: E of each client. A client that does not train makes 0 passes.
        down, up: the bytes that a client receives and sends, without its profile.
        profile: the bytes of its profile message (8 q for q plain elements, Eq. 13; a ciphertext is larger).
            None if it makes none: then neither making nor uploading one is counted (Eqs. 13, 16).
    """
    megabit_per_second = devices.mhz * math.log2(1.0 + model.snr)

    def training(passes: ArrayLike) -> Floats:
        # Eq. 12: E |D_k| BPS CPB / (s_k[GHz] 1e9)
        cycles = _floats(passes) * _floats(sizes) * model.bits_per_sample * model.cycles_per_bit
        return cycles / (devices.ghz * 1e9)

    # Eq. 11: (2 up + down) megabit / (bw[MHz] log2(1 + SNR))
    weighted: Floats | float = 2 * _floats(up) + _floats(down)
    if model.model_megabytes is not None:
        weighted = 3 * model.model_megabytes * 1e6
    communicate = weighted * MEGABIT_PER_BYTE / megabit_per_second
    train = training(passes)
    make_profile = send_profile = np.zeros_like(train)
    if profile is not None:  # Eq. 13: it goes up at half the bandwidth
        make_profile = training(1)
        send_profile = 2 * _floats(profile) * MEGABIT_PER_BYTE / megabit_per_second
    # P_f is the power at 1 GHz, and power grows with the cube of the clock.
    compute = model.processor_watts * devices.ghz**3 * (train + make_profile)
    return ClientCosts(
        seconds=communicate + train + make_profile + send_profile,
        joules=model.transmit_watts * (communicate + send_profile) + compute,
    )


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)


PresetName = Literal["gas_turbine_v1", "gas_turbine_v2", "emnist_v1", "emnist_v2", "cifar10_v2"]
# In the order of the fields of `CostModel`.
PRESETS: Final[Mapping[PresetName, CostModel]] = {
    # GasTurbine in v1, Table 4. The 5 MB are not in the text: its tables fit them.
    "gas_turbine_v1": CostModel(100.0, 0.5, 11 * 8 * 4, 300, 2, 5.0, (0.5, 0.1), (0.5, 0.1)),
    # GasTurbine in v2, Table 2. The 2 MB are not in the text: its Table 3 fits them.
    "gas_turbine_v2": CostModel(decibel(7), 0.75, 11 * 8 * 4, 300, 2, 2.0, (0.5, 0.1), (0.7, 0.1)),
    # EMNIST digits in v1, Table 4. The 10 MB are not in the text: its Table 3 fits them.
    "emnist_v1": CostModel(100.0, 0.5, 28 * 28 * 8, 400, 5, 10.0, (1.0, 0.1), (1.0, 0.1)),
    # EMNIST digits in v2, Table 2. The 3 MB are not in the text: the energy of its Table 4 fits them.
    "emnist_v2": CostModel(decibel(10), 0.75, 28 * 28 * 8, 400, 5, 3.0, (1.0, 0.2), (1.0, 0.3)),
    # CIFAR-10 in v2, Table 2. The paper states no model size. Training takes longer than the messages, so
    # real bytes are counted.
    "cifar10_v2": CostModel(decibel(10), 0.75, 32 * 32 * 3 * 8, 400, 6, None, (3.0, 0.4), (2.0, 0.2)),
}
