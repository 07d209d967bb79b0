"""FedLog's tables (Yu et al.): Table 1 on MNIST and on CIFAR-10, and Figure 2's bodies of two lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from securefl.protocols.tables.studies import SCALING, arm, packaged, study_of
from securefl.published.table import Figure, Measure, Part, Row, Table

OURS: Final = "FedLog-C"
"""The system that the paper compares all others with."""
_BODY: Final[Mapping[str, Any]] = {"body": "private", "clip": {"kind": "none"}}
_FEATURES: Final = ("statistic",)
_MODELS: Final = ("update",)
_SYSTEMS: Final[Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...]]]] = {
    "FedAvg": ("fedavg", {"fraction": 1.0, "aggregation": "partial"}, _MODELS),
    "LG-FedAvg 1": ("lg_fedavg", {"layers": 1}, _MODELS),
    "LG-FedAvg 2": ("lg_fedavg", {"layers": 2}, _MODELS),
    "FedPer": ("fedper", {"layers": 2}, _MODELS),
    "FedRep": ("fedrep", {"head_epochs": 10, "head_rate": 5.0}, _MODELS),
    "CS-FL": (
        "cs_fl",
        {
            "fraction": 1.0,
            "measurements": 0.1,
            "sparsity": 0.005,
            "sketch_rate": 0.001,
            "vote_rate": 0.001,
        },
        ("update", "votes"),
    ),
    "FedBabu": ("fedbabu", {"fine_tuned": "never"}, _MODELS),
    "FedProto": ("fedproto", {"lamda": 1.0}, _FEATURES),
    "FedDBE": ("feddbe", {"kappa": 1.0, "momentum": 0.1}, ("update", "consensus")),
    "FedLog": ("fedlog", _BODY, _FEATURES),
    OURS: ("fedlog", {**_BODY, "alpha": 0.01}, _FEATURES),
}
"""The paper's systems: protocol, options, and what they send without protection."""
_CIFAR10_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "CS-FL": {"measurements": 0.2, "sparsity": 0.0005, "vote_rate": 0.01}
}
"""Those options that differ on CIFAR-10 (Table A.3)."""
_TUNES: Final[Mapping[str, tuple[str, tuple[float, float]]]] = {
    "FedRep": ("head_rate", (1.0, 5.0)),
    "CS-FL": ("vote_rate", (0.001, 0.01)),
    "FedProto": ("lamda", (0.1, 1.0)),
    "FedDBE": ("kappa", (1.0, 10.0)),
    OURS: ("alpha", (0.01, 0.1)),
}
_KEPT: Final[Mapping[str, Mapping[str, Any]]] = {"FedPer": {"layers": 2}, "FedRep": {"layers": 2}}
"""The number of layers that clients keep in the paper."""


def _figures(accuracy: tuple[float, float], sent: tuple[float, float] | None = None) -> dict[Measure, Figure]:
    """Accuracy in percent and megabits, each with its standard error, as printed."""
    own = Figure(mean=round(accuracy[0] / 100, 6), deviation=round(accuracy[1] / 100, 6))
    # The paper does not say whether its accuracy is that of the last round or of the best one.
    found = {Measure.LAST: own, Measure.BEST: own}
    return found if sent is None else {**found, Measure.MEGABITS_UP: Figure(mean=sent[0], deviation=sent[1])}


MNIST_PRINTED: Final = {
    "FedAvg": _figures((89.76, 0.69), (3450, 20)),
    "LG-FedAvg 1": _figures((97.85, 0.05), (4.81, 0.31)),
    "LG-FedAvg 2": _figures((98.18, 0.06), (160, 70)),
    "FedPer": _figures((96.16, 0.19), (650, 50)),
    "FedRep": _figures((95.51, 0.29), (36.3, 3.38)),
    "CS-FL": _figures((79.65, 1.22), (350, 10)),
    "FedBabu": _figures((86.30, 1.04), (2250, 20)),
    "FedProto": _figures((98.19, 0.06), (3.02, 0.17)),
    "FedDBE": _figures((96.79, 0.34), (1710, 390)),
    "FedLog": _figures((98.15, 0.05), (3.18, 0.31)),
    OURS: _figures((98.41, 0.07), (3.18, 0.15)),
}
CIFAR10_PRINTED: Final = {
    "FedAvg": _figures((26.29, 0.44), (37900, 1310)),
    "LG-FedAvg 1": _figures((86.57, 0.29), (260, 20)),
    "LG-FedAvg 2": _figures((85.56, 0.32), (3380, 320)),
    "FedPer": _figures((83.54, 0.40), (27700, 1500)),
    "FedRep": _figures((82.96, 0.35), (15300, 1330)),
    "CS-FL": _figures((23.60, 1.08), (2720, 410)),
    "FedBabu": _figures((25.37, 0.44), (34700, 2290)),
    "FedProto": _figures((87.37, 0.26), (180, 10)),
    "FedDBE": _figures((72.77, 0.79), (38300, 950)),
    "FedLog": _figures((87.08, 0.22), (140, 10)),
    OURS: _figures((87.57, 0.25), (110, 10)),
}
"""Table 1. A gigabit is written as 1,000 megabits."""
FLEXIBLE_PRINTED: Final = {
    "LG-FedAvg 1": _figures((54.03, 0.08)),
    "FedProto": _figures((54.74, 0.13)),
    "FedLog": _figures((55.31, 0.15)),
    OURS: _figures((55.86, 0.11)),
}
"""Figure 2, in the middle: as its text has them, on CIFAR-100."""
_SEEDS: Final = tuple(range(1, 11))
_MNIST: Final[Mapping[str, Any]] = {
    "study.rounds": 100,
    "study.target": 0.97,
    "data.source": "mnist",
    "data.clients": 50,
    "data.records": 3000,
    "data.partition.per_client": 2,
    "model.kind": "fedlog_cnn",
    "local.optimizer": "adam",
    "local.learning_rate": 1e-3,
    "local.epochs": 5,
    "local.batch_size": 10,
}
_CIFAR10: Final[Mapping[str, Any]] = {
    **_MNIST,
    "study.target": 0.83,
    "data.source": "cifar10",
    "data.clients": 100,
    "data.records": 50_000,
    "local.learning_rate": 5e-4,
    "local.epochs": 1,
    "local.batch_size": 50,
}
_CIFAR100: Final[Mapping[str, Any]] = {
    **_CIFAR10,
    "study.rounds": 150,
    "data.source": "CIFAR-100",
    "data.partition.per_client": 10,
    "local.epochs": 3,
}
"""The paper's settings, by dotted key."""
_DIFFERENCES: Final = (
    "The authors' networks train with dropout; these have none.",
    "The paper's ± is a standard error over 10 seeds; here it is a standard deviation, 3.2 times as much.",
    "The paper's test is on one side; p here is of both.",
    "The paper does not say whether its accuracy is of the last round or of the best: it is beside both.",
)
_TABLE_1_DIFFERENCES: Final = (
    *_DIFFERENCES,
    "The paper's Mb are megabits of one direction: FedAvg's 3.45 Gb on MNIST are 98.7 rounds of 50 models of "
    "21,840 float32. MB are megabytes of both directions, which it does not print.",
    "A run that never reaches the target counts its length; the paper stops at its best round.",
    "FedRep keeps the last dense layer; the paper's keeps two. Its head trains for 10 epochs, then its body; "
    "the authors' code trains the head for 10 epochs before each epoch of the body.",
    "FedBabu's clients do not fine-tune: the published figure, below FedAvg's, is of such models.",
    "CS-FL, FedBabu, FedProto, FedDBE: the protocols' docstrings list differences from their sources. The "
    "paper names no lambda, kappa, momentum or head rate.",
    "Every arm has the learning rate, batch and epochs of [local]; the paper's CS-FL on CIFAR-10 has 0.001 "
    "in batches of 10.",
    "CS-FL's votes count as two bits each, for every value of the model; the authors' code counts one bit "
    "for each number of a sketch.",
)
_NO_CROPS: Final = "The authors crop and flip images at random; here images are as they are."


def _part(
    name: str,
    setting: Mapping[str, Any],
    printed: Mapping[str, Mapping[Measure, Figure]],
    changes: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
) -> Part:
    """One study of the systems that `printed` has.

    setting: the paper's. changes: what differs here. options: of systems, beside those of `_SYSTEMS`.
    """
    own = {label: _SYSTEMS[label] for label in printed}
    arms = [arm(label, kind, **{**more, **options.get(label, {})}) for label, (kind, more, _) in own.items()]
    here = {
        "study.seeds": list(_SEEDS),
        **setting,
        "study.name": f"FedLog, {name}",
        "privacy.non_private": sorted({value for _, _, sends in own.values() for value in sends}),
        **changes,
    }
    here["data.scaling"] = SCALING[here["data.source"]]
    rows = tuple(
        Row(
            label=label,
            arm=label,
            figures=printed[label],
            options=_KEPT.get(label, {}) if len(own) == len(_SYSTEMS) else {},
            tunes=_TUNES.get(label),
            sends=sends,
        )
        for label, (_, _, sends) in own.items()
    )
    return Part(
        name=name,
        text=study_of(packaged("fedlog_mnist"), arms, here),
        rows=rows,
        ours=OURS,
        setting=setting,
        seeds=len(_SEEDS),
    )


def _mnist(changes: Mapping[str, Any], **more: Any) -> Table:
    return Table(
        title="MNIST, 50 clients of two classes",
        source="FedLog, Table 1",
        parts=(_part("MNIST", _MNIST, MNIST_PRINTED, changes, {}),),
        measures=(Measure.LAST, Measure.BEST, Measure.MEGABITS_UP, Measure.MEGABYTES),
        differences=_TABLE_1_DIFFERENCES,
        **more,
    )


def _cifar10(changes: Mapping[str, Any], **more: Any) -> Table:
    return Table(
        title="CIFAR-10, 100 clients of two classes",
        source="FedLog, Table 1",
        parts=(_part("CIFAR-10", _CIFAR10, CIFAR10_PRINTED, changes, _CIFAR10_OPTIONS),),
        measures=(Measure.LAST, Measure.BEST, Measure.MEGABITS_UP, Measure.MEGABYTES),
        differences=(*_TABLE_1_DIFFERENCES, _NO_CROPS),
        **more,
    )


TABLE_1_MNIST: Final = _mnist({}, minutes=270)
TABLE_1_MNIST_TWIN: Final = _mnist(
    {"study.rounds": 25, "study.seeds": [1, 2, 3]}, minutes=25, twin_of="fedlog_table_1_mnist"
)
TABLE_1_CIFAR10: Final = _cifar10({}, minutes=650)
TABLE_1_CIFAR10_TWIN: Final = _cifar10(
    {"study.rounds": 20, "study.seeds": [1, 2, 3], "study.target": 0.75},
    minutes=40,
    twin_of="fedlog_table_1_cifar10",
)
FLEXIBLE: Final = Table(
    title="CIFAR-10, 100 clients, half of the bodies one layer shorter",
    source="FedLog, Figure 2",
    parts=(
        _part(
            "two lengths of bodies",
            _CIFAR100,
            FLEXIBLE_PRINTED,
            {
                "study.rounds": 40,
                "study.seeds": [1, 2, 3],
                "data.source": "cifar10",
                "data.partition.per_client": 2,
                # Those of `fedlog_cnn` by default, written out: half of the clients leave the first one out.
                "model.hidden": [120, 100],
                "local.epochs": 1,
            },
            {label: {"shorter": 0.5} for label in FLEXIBLE_PRINTED},
        ),
    ),
    measures=(Measure.LAST, Measure.BEST),
    minutes=25,
    differences=(
        *_DIFFERENCES,
        _NO_CROPS,
        "The paper's clients begin with bodies of their own; here those of one length begin alike.",
    ),
)
