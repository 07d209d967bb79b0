"""Tables 3 to 5 of FedProf v2 (Wu, He, Lin and Maple 2022, arXiv 2102.01733v2), and a smaller twin of each.

A printed row has two numbers for each measure in `MEASURES`: its mean and its standard deviation. The group
"full" has the systems of full aggregation (weights n_k / n), the group "partial" those of partial aggregation
(weights draws / K). The papers call FedProf "Ours". C is the fraction of clients that a round selects. A twin
has the same arms at a smaller scale, so that it runs in minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from securefl.protocols.tables.fedprof import DIGITS, GAS, SMALL_DIGITS, Group, Printed, pairs, part
from securefl.protocols.tables.studies import SCALING
from securefl.published.table import Figure, Measure, Part, Table

MEASURES: Final = (Measure.BEST, Measure.ROUNDS, Measure.MINUTES, Measure.WATT_HOURS)
TABLE_3_PRINTED: Final[Mapping[Group, Printed]] = {
    "full": {
        "FedAvg": pairs(MEASURES, 0.817, 0.005, 82, 73, 47.7, 42.3, 4.59, 4.11),
        "CFCFM": pairs(MEASURES, 0.809, 0.006, 167, 147, 68.9, 60.8, 8.15, 7.17),
        "Ours": pairs(MEASURES, 0.832, 0.005, 38, 23, 22.3, 13.7, 2.15, 1.29),
    },
    "partial": {
        "FedAvg-RP": pairs(MEASURES, 0.820, 0.007, 28, 11, 16.8, 7.1, 1.62, 0.68),
        "FedProx": pairs(MEASURES, 0.829, 0.003, 35, 19, 20.3, 11.4, 1.78, 0.98),
        "FedADAM": pairs(MEASURES, 0.828, 0.006, 46, 35, 27.2, 21.2, 2.59, 1.98),
        "AFL": pairs(MEASURES, 0.818, 0.003, 54, 51, 30.2, 27.1, 2.99, 2.81),
        "Ours": pairs(MEASURES, 0.838, 0.005, 19, 9, 11.0, 5.5, 1.07, 0.53),
    },
}
TABLE_4_PRINTED: Final[Mapping[Group, Printed]] = {
    "full": {
        "FedAvg": pairs(MEASURES, 0.923, 0.004, 103, 13, 115.8, 16.2, 15.83, 2.04),
        "CFCFM": pairs(MEASURES, 0.918, 0.008, 136, 42, 46.2, 14.5, 15.02, 4.59),
        "Ours": pairs(MEASURES, 0.940, 0.004, 59, 5, 67.1, 12.4, 9.49, 0.66),
    },
    "partial": {
        "FedAvg-RP": pairs(MEASURES, 0.941, 0.003, 23, 3, 26.5, 4.3, 3.60, 0.37),
        "FedProx": pairs(MEASURES, 0.941, 0.005, 23, 3, 27.7, 6.8, 3.69, 0.70),
        "FedADAM": pairs(MEASURES, 0.941, 0.003, 26, 3, 29.1, 4.3, 3.99, 0.47),
        "AFL": pairs(MEASURES, 0.939, 0.005, 19, 4, 22.4, 6.8, 2.93, 0.57),
        "Ours": pairs(MEASURES, 0.957, 0.003, 15, 1, 16.1, 3.3, 2.43, 0.25),
    },
}
TABLE_5_PRINTED: Final[Mapping[Group, Printed]] = {
    "full": {
        "FedAvg": pairs(MEASURES, 0.665, 0.011, 38, 10, 91.4, 26.3, 93.52, 17.14),
        "CFCFM": pairs(MEASURES, 0.638, 0.008, 32, 5, 74.0, 8.7, 79.90, 15.18),
        "Ours": pairs(MEASURES, 0.733, 0.003, 14, 1, 38.8, 3.7, 39.67, 1.14),
    },
    "partial": {
        "FedAvg-RP": pairs(MEASURES, 0.674, 0.004, 24, 2, 56.7, 3.5, 59.73, 9.88),
        "FedProx": pairs(MEASURES, 0.682, 0.009, 28, 6, 66.2, 17.8, 56.85, 7.76),
        "FedADAM": pairs(MEASURES, 0.669, 0.014, 28, 2, 68.5, 4.9, 68.96, 5.10),
        "AFL": {
            Measure.BEST: Figure(mean=0.599, deviation=0.007),
            **dict.fromkeys(MEASURES[1:], Figure(mean=None)),
        },
        "Ours": pairs(MEASURES, 0.735, 0.007, 9, 1, 23.5, 1.29, 24.54, 1.11),
    },
}


# Table 3 -----------------------------------------------------------------------------------------

_GAS_SETTING: Final[Mapping[str, Any]] = {
    "study.rounds": 500,
    "study.target": 0.8,
    "data.clients": 50,
    "data.partition.mean": 514.0,
    "data.partition.deviation": 101.0,
    "corruption.noisy": 0.4,
    "corruption.polluted": 0.1,
    "local.learning_rate": 5e-3,
    "local.decay": 0.994,
    "local.epochs": 2,
    "local.batch_size": "8, 32",
}


def _gas(group: Group, rounds: int, seeds: Sequence[int]) -> Part:
    return part(
        "gas_turbine",
        group,
        0.2,
        TABLE_3_PRINTED[group],
        seeds=seeds,
        setting=_GAS_SETTING,
        changes={"study.name": "FedProf v2, Table 3", "study.rounds": rounds},
    )


TABLE_3: Final = Table(
    title="GasTurbine, 50 sensors, C 0.2",
    source="FedProf v2, Table 3",
    parts=tuple(_gas(group, 500, range(1, 11)) for group in ("full", "partial")),
    measures=MEASURES,
    minutes=40,
    differences=(*GAS, "The message size of 2 MB is what the paper's times fit; it does not print one."),
)
TABLE_3_TWIN: Final = replace(
    TABLE_3,
    parts=tuple(_gas(group, 200, (1, 2, 3)) for group in ("full", "partial")),
    minutes=8,
    twin_of="fedprof_v2_table_3",
)


# Table 4 -----------------------------------------------------------------------------------------


def _digits(group: Group, fraction: float, seeds: Sequence[int], changes: Mapping[str, Any]) -> Part:
    rounds = 240 if group == "full" else 80
    return part(
        "mnist_fedprof",
        group,
        fraction,
        TABLE_4_PRINTED[group] if fraction == 0.05 else {},
        seeds=seeds,
        setting={
            "study.rounds": rounds,
            "study.target": 0.9,
            "data.source": "EMNIST digits",
            "data.clients": 500,
            "data.partition.share": 0.6,
            "model.kind": "lenet5",
            "corruption.irrelevant": 0.15,
            "corruption.blurred": 0.2,
            "corruption.pixel": 0.25,
            "corruption.pixel_density": 0.3,
            "local.learning_rate": 5e-3,
            "local.decay": 0.99,
            "local.epochs": 5,
            "local.batch_size": "32, 128",
        },
        changes={"study.name": "FedProf v2, Table 4", "study.rounds": rounds, **changes},
        named=f", C {fraction:g}",
    )


_TABLE_4_DIFFERENCES: Final = (
    *DIGITS,
    "The message size of 3 MB is what the paper's energy fits; it does not print one.",
    "C 0.1 is not in this table; v1 has it, with 1,000 clients.",
)
TABLE_4: Final = Table(
    title="MNIST, 500 clients, C 0.05 and 0.1",
    source="FedProf v2, Table 4",
    parts=tuple(_digits(g, c, (1, 2, 3), {}) for g in ("full", "partial") for c in (0.05, 0.1)),
    measures=MEASURES,
    minutes=600,
    differences=(*_TABLE_4_DIFFERENCES, "120 records a client, of 60,000; published are 480, of 240,000."),
)
TABLE_4_TWIN: Final = Table(
    title="MNIST, 200 clients, C 0.05 and 0.1",
    source="FedProf v2, Table 4",
    parts=tuple(
        _digits(group, c, range(1, 9), SMALL_DIGITS[group])
        for group in ("full", "partial")
        for c in (0.05, 0.1)
    ),
    measures=MEASURES,
    minutes=32,
    differences=(*_TABLE_4_DIFFERENCES, "240 records a client, of 48,000; published are 480, of 240,000."),
    twin_of="fedprof_v2_table_4",
)


# Table 5 -----------------------------------------------------------------------------------------


def _photographs(group: Group, changes: Mapping[str, Any]) -> Part:
    rounds = 150 if group == "full" else 120
    return part(
        "cifar10_fedprof",
        group,
        0.5,
        TABLE_5_PRINTED[group],
        seeds=(1, 2, 3),
        setting={
            "study.rounds": rounds,
            "study.target": 0.6,
            "data.source": "cifar10",
            "data.clients": 10,
            "data.records": 50_000,
            "data.partition.share": 0.37,
            "model.kind": "shufflenet_v2",
            "corruption.irrelevant": 0.1,
            "corruption.blurred": 0.2,
            "corruption.pixel": 0.2,
            "corruption.pixel_density": 0.3,
            "local.learning_rate": 1e-2,
            "local.decay": 0.999,
            "local.epochs": 6,
            "local.batch_size": "16, 32",
        },
        changes={
            "study.name": "FedProf v2, Table 5",
            "study.rounds": rounds,
            "data.records": 50_000,
            "data.scaling": SCALING["cifar10"],
            **changes,
        },
        alpha=25.0,
    )


_TABLE_5_DIFFERENCES: Final = (
    "Pixels are scaled by public means and deviations; the paper does not say how.",
    "Clients train with SGD at momentum 0.9; the papers name no optimiser.",
    "Irrelevant images are pieces of two photographs; the papers do not name their source.",
    "The real bytes of messages are counted; the paper does not print the size of its model.",
)
TABLE_5: Final = Table(
    title="CIFAR-10, 10 clients, C 0.5",
    source="FedProf v2, Table 5",
    parts=tuple(_photographs(group, {}) for group in ("full", "partial")),
    measures=MEASURES,
    minutes=9000,
    differences=(
        *_TABLE_5_DIFFERENCES,
        "ShuffleNet v2 has half of its width; the paper does not name the width.",
    ),
)
TABLE_5_TWIN: Final = Table(
    title="CIFAR-10, 10 clients of 2,000 images, C 0.5",
    source="FedProf v2, Table 5",
    parts=tuple(
        _photographs(
            group,
            {
                "study.rounds": 40,
                "study.target": 0.4,
                "study.seeds": list(range(1, 9)),
                "data.records": 20_000,
                "model": {"kind": "lenet5"},
                "local.epochs": 1,
            },
        )
        for group in ("full", "partial")
    ),
    measures=MEASURES,
    minutes=40,
    differences=(
        *_TABLE_5_DIFFERENCES,
        "FedProf profiles the first dense layer of LeNet-5; that of ShuffleNet v2 is its last convolution.",
    ),
    twin_of="fedprof_v2_table_5",
)
