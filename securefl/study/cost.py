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

from securefl.core.errors import ConfigError

Floats = NDArray[np.float64]
MEGABIT_PER_BYTE = 8e-6
JOULES_PER_WATT_HOUR = 3600.0


def decibel(db: float) -> float:
    """The power ratio of a signal-to-noise figure in dB: 10 for 10 dB, 5.01 for 7 dB."""
    return float(10.0 ** (db / 10.0))


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """The constants of Eqs. 11-16; the same for all devices of a task.

    snr: signal-to-noise ratio as a plain ratio (see `decibel`), > 0.
    transmit_watts: P_trans in W. processor_watts: P_f in W, the power of a processor at 1 GHz.
    bits_per_sample: BPS. cycles_per_bit: CPB. epochs: E, local epochs a round.
    model_megabytes: a constant model size in MB (1e6 bytes) each way, as in the papers' tables. None counts
        the real bytes of the messages.
    charge_profile: whether making and uploading a profile is counted (Eqs. 13, 16). The papers count them for
        FedProf only: use `dataclasses.replace(model, charge_profile=True)` for its arms.
    Raises ConfigError for a constant that is not positive and finite.
    """

    snr: float
    transmit_watts: float
    processor_watts: float = 0.7
    bits_per_sample: int
    cycles_per_bit: float
    epochs: float
    model_megabytes: float | None
    charge_profile: bool = False

    def __post_init__(self) -> None:
        for name in (
            "snr",
            "transmit_watts",
            "processor_watts",
            "bits_per_sample",
            "cycles_per_bit",
            "epochs",
        ):
            _positive(name, getattr(self, name))
        if self.model_megabytes is not None:
            _positive("model_megabytes", self.model_megabytes)


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"Expected a finite {name} > 0 in the cost model, got {value!r}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Devices:
    """The devices of N clients.

    ghz: (N,) float64, processor speed s_k in GHz. mhz: (N,) float64, downlink bandwidth bw_k in MHz.
    Raises ConfigError if the shapes differ, or a value is not positive and finite.
    """

    ghz: Floats
    mhz: Floats

    def __post_init__(self) -> None:
        if self.ghz.ndim != 1 or self.ghz.shape != self.mhz.shape:
            raise ConfigError(
                f"Expected ghz and mhz of one shape (clients,), got {self.ghz.shape} and {self.mhz.shape}."
            )
        if not all(np.all(np.isfinite(law) & (law > 0)) for law in (self.ghz, self.mhz)):
            raise ConfigError(
                "Expected a finite speed and bandwidth > 0 of every device, got another value. Mend it."
            )

    def of(self, clients: NDArray[np.int64]) -> Devices:
        """The devices of these clients."""
        return Devices(ghz=self.ghz[clients], mhz=self.mhz[clients])


@dataclass(frozen=True, kw_only=True)
class DeviceLaw:
    """The distribution of devices (Table 2): normal distributions cut at zero.

    ghz, mhz: mean and standard deviation, before the cut, of processor speed and downlink bandwidth.
    Raises ConfigError for a mean that is not positive, or a negative standard deviation.
    """

    ghz: tuple[float, float]
    mhz: tuple[float, float]

    def __post_init__(self) -> None:
        for name, (mean, sd) in (("ghz", self.ghz), ("mhz", self.mhz)):
            _positive(f"mean of {name}", mean)
            if not (math.isfinite(sd) and sd >= 0):
                raise ConfigError(f"Expected a standard deviation >= 0 for {name}, got {sd!r}.")

    def draw(self, clients: int, rng: np.random.Generator) -> Devices:
        """Devices for `clients` clients. Every speed and bandwidth is > 0."""
        ghz = _positive_normal(clients, self.ghz, rng)
        return Devices(ghz=ghz, mhz=_positive_normal(clients, self.mhz, rng))


def _positive_normal(count: int, law: tuple[float, float], rng: np.random.Generator) -> Floats:
    values = rng.normal(*law, size=count)
    # The mean is positive, so at least half of the values are kept in each turn, and the loop ends.
    while (bad := values <= 0).any():
        values[bad] = rng.normal(*law, size=int(bad.sum()))
    return values


@dataclass(frozen=True, kw_only=True, eq=False)
class Payload:
    """Bytes of one round: one number for all clients, or (N,) numbers.

    down: bytes that a client receives. up: bytes that it sends, without its profile. profile: bytes of its
    profile message (8 q for q plain elements, Eq. 13; a ciphertext is larger). They count only under
    `charge_profile`.
    """

    down: ArrayLike = 0.0
    up: ArrayLike = 0.0
    profile: ArrayLike = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientCosts:
    """The cost of one round for each client, if it is selected: seconds and joules, all (N,) float64."""

    communicate: Floats
    """T_comm, Eq. 11: model down and up."""
    train: Floats
    """T_train, Eq. 12."""
    make_profile: Floats
    """T_RPgen of Eq. 13; zeros if profiles are not counted."""
    send_profile: Floats
    """T_RPup of Eq. 13; zeros if profiles are not counted."""
    joules: Floats
    """E_k, Eqs. 10 and 14-16."""

    @property
    def seconds(self) -> Floats:
        """T_comm + T_train + T_RP, the inner sum of Eq. 9."""
        return self.communicate + self.train + self.make_profile + self.send_profile


def communication_seconds(model: CostModel, devices: Devices, traffic: Payload | None = None) -> Floats:
    """Eq. 11, (N,) seconds: (2 up + down) megabit / (bw[MHz] log2(1 + SNR)).

    If the cost model has a constant message size, 3 times this size replaces 2 up + down. Raises ConfigError
    if it counts real bytes and `traffic` is missing.
    """
    if model.model_megabytes is not None:
        weighted = 3 * model.model_megabytes * 1e6
        return weighted * MEGABIT_PER_BYTE / _megabit_per_second(model, devices)
    if traffic is None:
        raise ConfigError(
            "Expected the bytes of the messages, since model_megabytes is None, got none. Pass `traffic`."
        )
    up, down = _per_client("up", traffic.up, devices), _per_client("down", traffic.down, devices)
    return (2 * up + down) * MEGABIT_PER_BYTE / _megabit_per_second(model, devices)


def training_seconds(
    model: CostModel, devices: Devices, sizes: ArrayLike, passes: ArrayLike | None = None
) -> Floats:
    """Eq. 12, (N,) seconds: E |D_k| BPS CPB / (s_k[GHz] 1e9), `sizes` = |D_k| in samples, (N,) or one.

    passes: E of each client, (N,) or one number; by default the model's `epochs`.
    """
    samples = _per_client("sizes", sizes, devices)
    often = _per_client("passes", model.epochs if passes is None else passes, devices)
    cycles = often * samples * model.bits_per_sample * model.cycles_per_bit
    return cycles / (devices.ghz * 1e9)


def profile_upload_seconds(model: CostModel, devices: Devices, profile_bytes: ArrayLike) -> Floats:
    """T_RPup of Eq. 13, (N,) seconds: the time to send the profile at half the bandwidth."""
    size = _per_client("profile", profile_bytes, devices)
    return 2 * size * MEGABIT_PER_BYTE / _megabit_per_second(model, devices)


def client_costs(
    model: CostModel,
    devices: Devices,
    sizes: ArrayLike,
    traffic: Payload | None = None,
    passes: ArrayLike | None = None,
) -> ClientCosts:
    """Eqs. 10-16 for every client.

    sizes, passes: see `training_seconds`; a client that does not train makes 0 passes. traffic: bytes of
    the round. It may be left out only with a constant model size; the profile then has 0 bytes.
    Raises ConfigError for shapes that do not fit, negative numbers, or missing traffic.
    """
    communicate = communication_seconds(model, devices, traffic)
    train = training_seconds(model, devices, sizes, passes)
    make_profile = send_profile = np.zeros_like(train)
    if model.charge_profile:
        make_profile = training_seconds(model, devices, sizes, 1)
        send_profile = profile_upload_seconds(model, devices, traffic.profile if traffic else 0.0)
    transmit = model.transmit_watts * (communicate + send_profile)
    # P_f is the power at 1 GHz, and power grows with the cube of the clock.
    compute = model.processor_watts * devices.ghz**3 * (train + make_profile)
    return ClientCosts(
        communicate=communicate,
        train=train,
        make_profile=make_profile,
        send_profile=send_profile,
        joules=transmit + compute,
    )


def round_seconds(costs: ClientCosts, selected: ArrayLike | None = None) -> float:
    """T_round, Eq. 9: the seconds of the slowest selected client. 0 if no client was selected.

    selected: client indices; by default all clients of `costs`. A client drawn twice (selection with
    replacement) trains and sends once.
    """
    return float(np.max(costs.seconds[_cohort(selected, len(costs.train))], initial=0.0))


def round_watt_hours(costs: ClientCosts, selected: ArrayLike | None = None) -> float:
    """Energy of the selected clients' devices in Wh (J / 3600). A client drawn twice counts once.

    selected: as for `round_seconds`.
    """
    return float(np.sum(costs.joules[_cohort(selected, len(costs.train))]) / JOULES_PER_WATT_HOUR)


def _cohort(selected: ArrayLike | None, clients: int) -> NDArray[np.int64] | slice:
    if selected is None:
        return slice(clients)
    indices = np.asarray(selected)
    if indices.size == 0:
        return np.zeros(0, dtype=np.int64)
    # Without this check, a boolean mask would select clients 0 and 1.
    if indices.dtype.kind not in "iu" or indices.min() < 0 or indices.max() >= clients:
        raise ConfigError(f"Expected client indices from 0 to {clients - 1}, got {indices!r}.")
    return np.unique(indices).astype(np.int64)


def _megabit_per_second(model: CostModel, devices: Devices) -> Floats:
    return devices.mhz * math.log2(1.0 + model.snr)


def _per_client(name: str, values: ArrayLike, devices: Devices) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.shape not in ((), devices.ghz.shape):
        raise ConfigError(f"Expected {name} as one number or {devices.ghz.shape}, got shape {array.shape}.")
    # If a value is nan, minimum and maximum are nan, and both comparisons are false.
    if not (array.min(initial=0) >= 0 and array.max(initial=0) < np.inf):
        raise ConfigError(f"Expected {name} finite and >= 0, got a value that is not.")
    return array if array.ndim else np.full(devices.ghz.shape, array)


PresetName = Literal["gas_turbine_v1", "gas_turbine_v2", "emnist_v1", "emnist_v2", "cifar10_v2"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The cost model of one published task: its constants and the distribution of its devices."""

    model: CostModel
    law: DeviceLaw


PRESETS: Final[Mapping[PresetName, Preset]] = {
    # GasTurbine in v1, Table 4. The 5 MB are not in the text: its tables fit them.
    "gas_turbine_v1": Preset(
        model=CostModel(
            snr=100.0,
            transmit_watts=0.5,
            bits_per_sample=11 * 8 * 4,
            cycles_per_bit=300,
            epochs=2,
            model_megabytes=5.0,
        ),
        law=DeviceLaw(ghz=(0.5, 0.1), mhz=(0.5, 0.1)),
    ),
    # GasTurbine in v2, Table 2. The 2 MB are not in the text: its Table 3 fits them.
    "gas_turbine_v2": Preset(
        model=CostModel(
            snr=decibel(7),
            transmit_watts=0.75,
            bits_per_sample=11 * 8 * 4,
            cycles_per_bit=300,
            epochs=2,
            model_megabytes=2.0,
        ),
        law=DeviceLaw(ghz=(0.5, 0.1), mhz=(0.7, 0.1)),
    ),
    # EMNIST digits in v1, Table 4. The 10 MB are not in the text: its Table 3 fits them.
    "emnist_v1": Preset(
        model=CostModel(
            snr=100.0,
            transmit_watts=0.5,
            bits_per_sample=28 * 28 * 8,
            cycles_per_bit=400,
            epochs=5,
            model_megabytes=10.0,
        ),
        law=DeviceLaw(ghz=(1.0, 0.1), mhz=(1.0, 0.1)),
    ),
    # EMNIST digits in v2, Table 2. The 3 MB are not in the text: the energy of its Table 4 fits them.
    "emnist_v2": Preset(
        model=CostModel(
            snr=decibel(10),
            transmit_watts=0.75,
            bits_per_sample=28 * 28 * 8,
            cycles_per_bit=400,
            epochs=5,
            model_megabytes=3.0,
        ),
        law=DeviceLaw(ghz=(1.0, 0.2), mhz=(1.0, 0.3)),
    ),
    # CIFAR-10 in v2, Table 2. The paper states no model size. Training takes longer than the messages, so
    # real bytes are counted.
    "cifar10_v2": Preset(
        model=CostModel(
            snr=decibel(10),
            transmit_watts=0.75,
            bits_per_sample=32 * 32 * 3 * 8,
            cycles_per_bit=400,
            epochs=6,
            model_megabytes=None,
        ),
        law=DeviceLaw(ghz=(3.0, 0.4), mhz=(2.0, 0.2)),
    ),
}
