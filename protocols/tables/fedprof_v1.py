"""The tables of FedProf v1 (Wu, He, Lin and Mao 2021, as submitted to OpenReview)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from securefl.protocols.tables.fedprof import DIGITS, GAS, SMALL_DIGITS, Group, Printed, part
from securefl.published.table import Figure, Measure, Part, Table

MEASURES: Final = (Measure.BEST, Measure.ROUNDS, Measure.SECONDS, Measure.WATT_HOURS)


def _means(*numbers: float) -> dict[Measure, Figure]:
    """A row as printed: means alone."""
    return dict(zip(MEASURES, (Figure(mean=mean) for mean in numbers), strict=True))


def _ours(means: tuple[float, ...], deviations: tuple[float, ...]) -> dict[Measure, Figure]:
    """The row "Ours" and the row "(std.)" below it."""
    figures = (Figure(mean=m, deviation=d) for m, d in zip(means, deviations, strict=True))
    return dict(zip(MEASURES, figures, strict=True))


TABLE_2_PRINTED: Final[Mapping[tuple[Group, float], Printed]] = {
    ("full", 0.2): {
        "FedAvg": _means(0.805, 56, 2869.66, 2.87),
        "CFCFM": _means(0.806, 39, 1230.81, 1.61),
        "Ours": _ours((0.824, 16, 803.74, 0.80), (6.13e-3, 2.06, 139.76, 0.14)),
    },
    ("full", 0.3): {
        "FedAvg": _means(0.806, 52, 3160.01, 4.12),
        "CFCFM": _means(0.802, 42, 1495.34, 2.91),
        "Ours": _ours((0.827, 12, 701.18, 0.94), (8.01e-3, 2.94, 122.63, 0.20)),
    },
    ("partial", 0.2): {
        "FedAvg-RP": _means(0.819, 13, 735.48, 0.71),
        "FedProx": _means(0.821, 16, 899.93, 0.79),
        "FedADAM": _means(0.818, 8, 438.20, 0.42),
        "AFL": _means(0.816, 6, 313.81, 0.30),
        "Ours": _ours((0.844, 5, 283.76, 0.27), (1.70e-3, 0.47, 30.69, 0.03)),
    },
    ("partial", 0.3): {
        "FedAvg-RP": _means(0.817, 8, 466.90, 0.64),
        "FedProx": _means(0.810, 16, 841.65, 1.08),
        "FedADAM": _means(0.819, 12, 667.00, 0.94),
        "AFL": _means(0.813, 6, 298.81, 0.42),
        "Ours": _ours((0.841, 4, 235.22, 0.35), (7.07e-3, 1.70, 90.12, 0.14)),
    },
}
TABLE_3_PRINTED: Final[Mapping[tuple[Group, float], Printed]] = {
    ("full", 0.05): {
        "FedAvg": _means(0.906, 213, 10407.30, 60.01),
        "CFCFM": _means(0.923, 251, 8645.17, 61.37),
        "Ours": _ours((0.926, 98, 4846.15, 28.22), (8.16e-5, 1.89, 96.57, 0.43)),
    },
    ("full", 0.1): {
        "FedAvg": _means(0.929, 76, 3894.26, 43.16),
        "CFCFM": _means(0.932, 75, 2675.56, 37.62),
        "Ours": _ours((0.945, 45, 2295.03, 25.98), (4.71e-4, 0.82, 29.46, 0.01)),
    },
    ("partial", 0.05): {
        "FedAvg-RP": _means(0.937, 12, 572.90, 3.29),
        "FedProx": _means(0.936, 13, 640.01, 3.58),
        "FedADAM": _means(0.940, 12, 599.96, 3.47),
        "AFL": _means(0.952, 10, 479.73, 2.73),
        "Ours": _ours((0.962, 8, 383.94, 2.26), (9.43e-4, 0.471, 17.67, 0.15)),
    },
    ("partial", 0.1): {
        "FedAvg-RP": _means(0.938, 12, 603.94, 6.57),
        "FedProx": _means(0.942, 11, 559.16, 5.91),
        "FedADAM": _means(0.939, 12, 608.85, 6.76),
        "AFL": _means(0.944, 9, 476.62, 5.26),
        "Ours": _ours((0.962, 8, 413.16, 4.64), (8.16e-4, 0.47, 11.64, 0.03)),
    },
}


def _gas(group: Group, fraction: float) -> Part:
    return part(
        "gas_turbine_v1",
        group,
        fraction,
        TABLE_2_PRINTED[group, fraction],
        seeds=range(1, 11),
        setting={
            "study.rounds": 100,
            "study.target": 0.8,
            "data.clients": 50,
            "data.partition.mean": 514.0,
            "data.partition.deviation": 154.0,
            "corruption.noisy": 0.4,
            "corruption.polluted": 0.1,
            "local.learning_rate": 1e-2,
            "local.decay": 0.99,
            "local.epochs": 2,
        },
        changes={"study.name": "FedProf v1, Table 2", "study.rounds": 100},
        named=f", C {fraction:g}",
    )


def _digits(group: Group, fraction: float, seeds: Sequence[int], changes: Mapping[str, Any]) -> Part:
    rounds = 300 if group == "full" else 50
    return part(
        "mnist_fedprof_v1",
        group,
        fraction,
        TABLE_3_PRINTED[group, fraction],
        seeds=seeds,
        setting={
            "study.rounds": rounds,
            "study.target": 0.9,
            "data.source": "EMNIST digits",
            "data.clients": 1000,
            "data.partition.share": 0.6,
            "model.kind": "lenet5",
            "corruption.irrelevant": 0.15,
            "corruption.blurred": 0.2,
            "corruption.pixel": 0.25,
            "corruption.pixel_density": 0.3,
            "local.learning_rate": 1e-2,
            "local.decay": 0.99,
            "local.epochs": 5,
        },
        changes={"study.name": "FedProf v1, Table 3", "study.rounds": rounds, **changes},
        named=f", C {fraction:g}",
    )


TABLE_2: Final = Table(
    title="GasTurbine, 50 sensors, C 0.2 and 0.3",
    source="FedProf v1, Table 2",
    parts=tuple(_gas(group, c) for group in ("full", "partial") for c in (0.2, 0.3)),
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
    parts=tuple(_digits(group, c, (1, 2, 3), {}) for group in ("full", "partial") for c in (0.05, 0.1)),
    measures=MEASURES,
    minutes=600,
    differences=(*_TABLE_3_DIFFERENCES, "60 records a client, of 60,000; published are 240, of 240,000."),
)
TABLE_3_TWIN: Final = Table(
    title="MNIST, 200 clients, C 0.05 and 0.1",
    source="FedProf v1, Table 3",
    parts=tuple(
        _digits(group, c, range(1, 9), SMALL_DIGITS[group])
        for group in ("full", "partial")
        for c in (0.05, 0.1)
    ),
    measures=MEASURES,
    minutes=32,
    differences=(*_TABLE_3_DIFFERENCES, "240 records a client, as published, of 48,000, not 240,000."),
    twin_of="fedprof_v1_table_3",
)
