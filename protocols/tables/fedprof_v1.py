"""The tables of FedProf v1 (Wu, He, Lin and Mao 2021, as submitted to OpenReview)."""

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
from securefl.protocols.tables.studies import printed
from securefl.published.table import Measure, Part, Table

MEASURES: Final = (Measure.BEST, Measure.ROUNDS, Measure.SECONDS, Measure.WATT_HOURS)


def _gas(group: Group, fraction: float) -> Part:
    return part(
        "gas_turbine_v1",
        group,
        fraction,
        printed(MEASURES, "fedprof_v1_table_2", group, f"{fraction:g}"),
        seeds=range(1, 11),
        setting=gas_setting(100, 154.0, 1e-2, 0.99),
        changes={"study.name": "FedProf v1, Table 2", "study.rounds": 100},
        named=f", C {fraction:g}",
    )


def _digits(group: Group, fraction: float, seeds: Sequence[int], changes: Mapping[str, Any]) -> Part:
    rounds = 300 if group == "full" else 50
    return part(
        "mnist_fedprof_v1",
        group,
        fraction,
        printed(MEASURES, "fedprof_v1_table_3", group, f"{fraction:g}"),
        seeds=seeds,
        setting=digits_setting(rounds, 1000, 1e-2),
        changes={"study.name": "FedProf v1, Table 3", "study.rounds": rounds, **changes},
        named=f", C {fraction:g}",
    )


TABLE_2: Final = Table(
    title="GasTurbine, 50 sensors, C 0.2 and 0.3",
    source="FedProf v1, Table 2",
    parts=tuple(_gas(group, c) for group in GROUPS for c in (0.2, 0.3)),
    measures=MEASURES,
    minutes=12,
    differences=(*GAS, "The message size of 5 MB is what the paper's times fit; it does not print one."),
)
_TABLE_3_DIFFERENCES: Final = (
    *DIGITS,
    "The message size of 10 MB is what the paper's times fit; it does not print one.",
)
TABLE_3: Final = Table(
    title="MNIST, 1,000 clients, C 0.05 and 0.1",
    source="FedProf v1, Table 3",
    parts=tuple(_digits(group, c, range(1, 9), {}) for group in GROUPS for c in (0.05, 0.1)),
    measures=MEASURES,
    minutes=1600,
    differences=(*_TABLE_3_DIFFERENCES, "60 records a client, of 60,000; published are 240, of 240,000."),
)
TABLE_3_TWIN: Final = replace(
    TABLE_3,
    title="MNIST, 100 clients, C 0.05 and 0.1",
    parts=tuple(_digits(group, c, range(1, 9), SMALL_DIGITS[group]) for group in GROUPS for c in (0.05, 0.1)),
    minutes=9,
    differences=(*_TABLE_3_DIFFERENCES, "240 records a client, as published, of 24,000, not 240,000."),
    twin_of="fedprof_v1_table_3",
)
