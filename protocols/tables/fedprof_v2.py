"""Tables 3 to 5 of FedProf v2 (Wu, He, Lin and Maple 2022, arXiv 2102.01733v2), and a smaller twin of each.

The group "full" has the systems of full aggregation (weights n_k / n), the group "partial" those of partial
aggregation (weights draws / K). The papers call FedProf "Ours". C is the fraction of clients that a round
selects. A twin has the same arms at a smaller scale, so that it runs in minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from securefl.protocols.tables.fedprof import (
    DIGITS,
    GAS,
    GROUPS,
    SMALL_DIGITS,
    Group,
    digits_setting,
    gas_setting,
    part,
)
from securefl.protocols.tables.studies import SCALING, printed
from securefl.published.table import Measure, Part, Table

MEASURES: Final = (Measure.BEST, Measure.ROUNDS, Measure.MINUTES, Measure.WATT_HOURS)
# Table 3 -----------------------------------------------------------------------------------------


def _gas(group: Group, rounds: int, seeds: Sequence[int]) -> Part:
    return part(
        "gas_turbine",
        group,
        0.2,
        printed(MEASURES, "fedprof_v2_table_3", group),
        seeds=seeds,
        setting={**gas_setting(500, 101.0, 5e-3, 0.994), "local.batch_size": "8, 32"},
        changes={"study.name": "FedProf v2, Table 3", "study.rounds": rounds},
    )


TABLE_3: Final = Table(
    title="GasTurbine, 50 sensors, C 0.2",
    source="FedProf v2, Table 3",
    parts=tuple(_gas(group, 500, range(1, 11)) for group in GROUPS),
    measures=MEASURES,
    minutes=40,
    differences=(*GAS, "The message size of 2 MB is what the paper's times fit; it does not print one."),
)
TABLE_3_TWIN: Final = replace(
    TABLE_3,
    parts=tuple(_gas(group, 200, range(1, 9)) for group in GROUPS),
    minutes=21,
    twin_of="fedprof_v2_table_3",
)


# Table 4 -----------------------------------------------------------------------------------------


def _digits(group: Group, changes: Mapping[str, Any]) -> Part:
    rounds = 240 if group == "full" else 80
    return part(
        "mnist_fedprof",
        group,
        0.05,
        printed(MEASURES, "fedprof_v2_table_4", group),
        seeds=range(1, 9),
        setting={**digits_setting(rounds, 500, 5e-3), "local.batch_size": "32, 128"},
        changes={"study.name": "FedProf v2, Table 4", "study.rounds": rounds, **changes},
    )


_TABLE_4_DIFFERENCES: Final = (
    *DIGITS,
    "The message size of 3 MB is what the paper's energy fits; it does not print one.",
)
TABLE_4: Final = Table(
    title="MNIST, 500 clients, C 0.05",
    source="FedProf v2, Table 4",
    parts=tuple(_digits(group, {}) for group in GROUPS),
    measures=MEASURES,
    minutes=600,
    differences=(*_TABLE_4_DIFFERENCES, "120 records a client, of 60,000; published are 480, of 240,000."),
)
TABLE_4_TWIN: Final = replace(
    TABLE_4,
    title="MNIST, 100 clients, C 0.05",
    parts=tuple(_digits(group, SMALL_DIGITS[group]) for group in GROUPS),
    minutes=3,
    differences=(*_TABLE_4_DIFFERENCES, "240 records a client, of 24,000; published are 480, of 240,000."),
    twin_of="fedprof_v2_table_4",
)


# Table 5 -----------------------------------------------------------------------------------------


def _photographs(group: Group, changes: Mapping[str, Any]) -> Part:
    rounds = 150 if group == "full" else 120
    return part(
        "cifar10_fedprof",
        group,
        0.5,
        printed(MEASURES, "fedprof_v2_table_5", group),
        seeds=range(1, 9),
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
    parts=tuple(_photographs(group, {}) for group in GROUPS),
    measures=MEASURES,
    minutes=24_000,
    differences=(
        *_TABLE_5_DIFFERENCES,
        "ShuffleNet v2 has half of its width; the paper does not name the width.",
    ),
)
TABLE_5_TWIN: Final = replace(
    TABLE_5,
    title="CIFAR-10, 10 clients of 500 images, C 0.5",
    parts=tuple(
        _photographs(
            group,
            {
                "study.rounds": 25,
                "study.target": 0.3,
                "data.records": 5_000,
                "model": {"kind": "lenet5"},
                "local.epochs": 1,
            },
        )
        for group in GROUPS
    ),
    minutes=15,
    differences=(
        *_TABLE_5_DIFFERENCES,
        "FedProf profiles the first dense layer of LeNet-5; that of ShuffleNet v2 is its last convolution.",
    ),
    twin_of="fedprof_v2_table_5",
)
