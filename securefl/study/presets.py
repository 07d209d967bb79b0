"""The published tasks by name: the constants of their devices, and the law by which devices are drawn.

FedProf v2, Table 2; v1, Table 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from securefl.study.cost import CostModel, DeviceLaw, decibel

Name = Literal["gas_turbine_v1", "gas_turbine_v2", "emnist_v1", "emnist_v2", "cifar10_v2"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The cost side of one published task: its constants and the law of its devices."""

    model: CostModel
    law: DeviceLaw


PRESETS: Final[Mapping[Name, Preset]] = {
    # GasTurbine in v1, Table 4. The 5 MB are not in the text: they are what its tables fit.
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
    # GasTurbine in v2, Table 2. The 2 MB are not in the text: they are what its Table 3 fits.
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
    # EMNIST digits in v1, Table 4. The 10 MB are not in the text: they are what its Table 3 fits.
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
    # CIFAR-10 in v2, Table 2. No model size is stated and training outweighs it: real bytes are charged.
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
