"""The shared parts of FedProf's tables: systems by group, and differences that no key of a study shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from securefl.protocols.tables.studies import arm, packaged, study_of
from securefl.published.table import Axis, Figure, Measure, Part, Row

Group = Literal["full", "partial"]
GROUPS: Final[tuple[Group, ...]] = ("full", "partial")
OURS: Final = "FedProf"
RIVALS: Final[Mapping[Group, Mapping[str, tuple[str, Mapping[str, Any]]]]] = {
    "full": {
        "FedAvg": ("fedavg", {"aggregation": "full"}),
        "CFCFM": ("cfcfm", {}),
    },
    "partial": {
        "FedAvg-RP": ("fedavg_rp", {}),
        "FedProx": ("fedprox", {"scheme": "I"}),
        "FedADAM": ("fedadam", {}),
        "AFL": ("active_fl", {"momentum": 0.9}),
    },
}
"""The systems beside FedProf in both groups (v2, Table 1): name of the arm to protocol and options."""
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "FedAvg-RP": {"scheme": "II"},
    "FedProx": {"mu": 0.1, "scheme": "I"},
    "AFL": {"excluded": 0.75, "temperature": 0.01, "explored": 0.1, "momentum": "some, of no stated size"},
}
"""Their options according to the papers, or to the papers that they cite."""
TUNES: Final[Mapping[str, Axis]] = {
    "FedProx": Axis(key="mu", values=(0.01, 0.1, 1.0), below=(1e-4, 1e-3), above=(10.0, 100.0)),
    "FedADAM": Axis(key="learning_rate", values=(1e-3, 1e-2, 0.1), below=(1e-5, 1e-4), above=(1.0, 10.0)),
    "AFL": Axis(key="momentum", values=(0.0, 0.5, 0.9), above=(0.95, 0.99)),
    OURS: Axis(key="alpha", values=(5.0, 10.0, 25.0), below=(1.0, 2.5), above=(50.0, 100.0)),
}
"""What `securefl reproduce --tuned` chooses beside the learning rate."""
SENDS: Final[Mapping[str, tuple[str, ...]]] = {"AFL": ("loss",), OURS: ("profile",)}
"""What systems send without protection beside the update."""
GAS: Final = (
    "Sensors are scaled by their published ranges, in the papers by the records' own extremes.",
    "Clients train with Adam, whose state begins anew each round; the papers name no optimiser, and plain "
    "SGD does not reach their accuracies.",
)
DIGITS: Final = (
    "MNIST's 10,000 test images; the papers validate on 40,000 of EMNIST, from the same source.",
    "Clients train with SGD at momentum 0.9; the papers name no optimiser.",
    "Irrelevant images come from Fashion-MNIST; the papers do not name their source.",
)
"""Differences from the papers that no key of a study shows."""
_SMALL: Final[Mapping[str, Any]] = {
    # At the paper's rate, with pixels from 0 to 1, LeNet-5 does not learn in few rounds (`fedprof_lenet5`).
    "model.kind": "mlp",
    "model.hidden": [64],
    "data.clients": 100,
    "data.records": 24_000,
}
SMALL_DIGITS: Final[Mapping[Group, Mapping[str, Any]]] = {
    "full": {**_SMALL, "study.rounds": 40, "study.target": 0.7},
    "partial": {**_SMALL, "study.rounds": 20, "study.target": 0.85},
}
"""The smaller scale of the twins on digits, at which all candidates of all systems run in minutes."""


def gas_setting(rounds: int, deviation: float, rate: float, decay: float) -> dict[str, Any]:
    """The papers' setting of GasTurbine, by dotted key."""
    return {
        "study.rounds": rounds,
        "study.target": 0.8,
        "data.clients": 50,
        "data.partition.mean": 514.0,
        "data.partition.deviation": deviation,
        "corruption.noisy": 0.4,
        "corruption.polluted": 0.1,
        "local.learning_rate": rate,
        "local.decay": decay,
        "local.epochs": 2,
    }


def digits_setting(rounds: int, clients: int, rate: float) -> dict[str, Any]:
    """The papers' setting of EMNIST, by dotted key."""
    return {
        "study.rounds": rounds,
        "study.target": 0.9,
        "data.source": "EMNIST digits",
        "data.clients": clients,
        "data.records": 240_000,
        "data.partition.share": 0.6,
        "model.kind": "lenet5",
        "corruption.irrelevant": 0.15,
        "corruption.blurred": 0.2,
        "corruption.pixel": 0.25,
        "corruption.pixel_density": 0.3,
        "local.learning_rate": rate,
        "local.decay": 0.99,
        "local.epochs": 5,
    }


def part(
    study: str,
    group: Group,
    fraction: float,
    figures: Mapping[str, Mapping[Measure, Figure]],
    *,
    seeds: Sequence[int],
    setting: Mapping[str, Any],
    changes: Mapping[str, Any],
    named: str = "",
    alpha: float = 10.0,
) -> Part:
    """A group of a FedProf table at one C.

    study: the packaged study to which `changes` are applied.
    figures: the paper's at this C, by its word for the system, "Ours" for FedProf.
    setting: the paper's setting, by dotted key.
    named: a text behind the group in the part's name.
    alpha: FedProf's penalty factor, as published.
    """
    arms = {**RIVALS[group], OURS: ("fedprof", {"aggregation": group, "alpha": alpha})}
    options = {**OPTIONS, OURS: {"alpha": alpha}}
    text = study_of(
        packaged(study),
        [arm(name, protocol, fraction=fraction, **own) for name, (protocol, own) in arms.items()],
        {
            "study.seeds": list(seeds),
            "privacy.non_private": ["update", *(["loss"] if group == "partial" else []), "profile"],
            **changes,
        },
    )
    rows = tuple(
        Row(
            label="Ours" if name == OURS else name,
            arm=name,
            figures=figures.get("Ours" if name == OURS else name, {}),
            options=options.get(name, {}),
            tunes=TUNES.get(name),
            sends=("update", *SENDS.get(name, ())),
        )
        for name in arms
    )
    return Part(name=f"{group} aggregation{named}", text=text, rows=rows, ours=OURS, setting=setting)
