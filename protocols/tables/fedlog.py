"""FedLog's tables (Yu et al.): Table 1 on MNIST and on CIFAR-10, and Figure 2's bodies of two lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from securefl.protocols.tables.studies import SCALING, arm, packaged, printed, study_of
from securefl.published.table import Axis, Figure, Measure, Part, Row, Table

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
    "FedRep": ("fedrep", {"layers": 2, "head_epochs": 10, "head_rate": 5.0}, _MODELS),
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
    "CS-FL": {
        "measurements": 0.2,
        "sparsity": 0.0005,
        "vote_rate": 0.01,
        "local": {"learning_rate": 1e-3, "batch_size": 10},
    }
}
"""Those options that differ on CIFAR-10 (Table A.3)."""
_TUNES: Final[Mapping[str, Axis]] = {
    "FedRep": Axis(key="head_rate", values=(1.0, 5.0, 25.0), below=(0.04, 0.2), above=(125.0, 625.0)),
    "CS-FL": Axis(key="vote_rate", values=(1e-4, 1e-3, 0.01), below=(1e-6, 1e-5), above=(0.1, 1.0)),
    "FedProto": Axis(key="lamda", values=(0.1, 1.0, 10.0), below=(1e-3, 0.01), above=(100.0, 1000.0)),
    "FedDBE": Axis(key="kappa", values=(0.1, 1.0, 10.0), below=(1e-3, 0.01), above=(100.0, 1000.0)),
    OURS: Axis(key="alpha", values=(1e-3, 0.01, 0.1), below=(1e-5, 1e-4), above=(1.0, 10.0)),
}


def _printed(table: str, directions: int = 1) -> dict[str, dict[Measure, Figure]]:
    """Accuracies and megabits of one direction, each with its standard error.

    directions: how many the printed megabits are of.
    """
    units = {Measure.LAST: 100, Measure.MEGABITS_UP: directions}
    found = {}
    for label, row in printed(tuple(units), table).items():
        own = {measure: _over(figure, units[measure]) for measure, figure in row.items()}
        # The paper does not say whether its accuracy is that of the last round or of the best one.
        found[label] = {**own, Measure.BEST: own[Measure.LAST]}
    return found


def _over(one: Figure, count: int) -> Figure:
    mean, error = (round((own or 0) / count, 6) for own in (one.mean, one.deviation))
    return Figure(mean=mean, deviation=error)


MNIST_PRINTED: Final = _printed("fedlog_mnist")
CIFAR10_PRINTED: Final = _printed("fedlog_cifar10", directions=2)
FLEXIBLE_PRINTED: Final = _printed("fedlog_flexible")
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
    "The authors' networks train with dropout of 0.5; these have none: `dropout` under [model].",
    "The paper's ± is a standard error over 10 seeds; here it is a standard deviation, 3.2 times as much.",
    "The paper's test is on one side; p here is of both.",
    "The paper does not say whether its accuracy is of the last round or of the best: it is beside both.",
)
_TABLE_1_DIFFERENCES: Final = (
    *_DIFFERENCES,
    "A run that never reaches the target counts its length; the paper stops at its best round.",
    "FedRep's head trains for 10 epochs, then its body; the authors' code trains the head before each epoch "
    "of the body: the preset 'authors'.",
    "Personal models are tested under the averaged part; the authors' code tests each client's own model "
    'before averaging: at = "own" under [measures].',
    "FedBabu's clients do not fine-tune: the published figure, below FedAvg's, is of such models.",
    "FedProto's prototypes are means over all records of a class, on a grid that moves them by 5e-4 (the "
    "preset 'paper': 8e-6), and pull each record. FedDBE's consensus is of the first model, before any "
    "training. CS-FL's sketches are of fast transforms, and its steps go down as positions and values.",
    "The paper names no lambda, kappa, momentum or head rate. The authors' FedRep has a head rate of 5 on "
    "MNIST. FedDBE's authors have kappa 50 and momentum 1 on Fashion-MNIST: the preset 'authors'.",
    "FedLog's prior has nu 1, as in the paper; its authors' code has nu 0: the preset 'authors'. Its head "
    "maximises the posterior; Table A.2 names a learning rate of heads.",
    "CS-FL's votes count as two bits each, for every value of the model; the authors' code counts one bit "
    "for each number of a sketch.",
)
_MNIST_MEGABITS: Final = (
    "The paper's Mb are taken as megabits of one direction: FedAvg's 3.45 Gb are 98.7 rounds of 50 models of "
    "21,840 float32. The authors' code counts both directions, of which they are 49.4 rounds of 100."
)
_CIFAR10_MEGABITS: Final = (
    "The paper's Mb are of both directions, as the authors' code counts them: FedAvg's 37.9 Gb are 92.4 "
    "rounds of 100 models of 64,102 float32, and of one direction 185 rounds of 100. They are halved here."
)
_CS_FL: Final = (
    "CS-FL has the sketches and rates of Table A.3. The authors' script has sketches of half that length, "
    "and moves the model by 0.01 times the recovered step: the preset 'authors'."
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


def _mnist(changes: Mapping[str, Any]) -> tuple[Part, ...]:
    return (_part("MNIST", _MNIST, MNIST_PRINTED, changes, {}),)


def _cifar10(changes: Mapping[str, Any]) -> tuple[Part, ...]:
    return (_part("CIFAR-10", _CIFAR10, CIFAR10_PRINTED, changes, _CIFAR10_OPTIONS),)


TABLE_1_MNIST: Final = Table(
    title="MNIST, 50 clients of two classes",
    source="FedLog, Table 1",
    parts=_mnist({}),
    measures=(Measure.LAST, Measure.BEST, Measure.MEGABITS_UP, Measure.MEGABYTES),
    minutes=270,
    differences=(*_TABLE_1_DIFFERENCES, _MNIST_MEGABITS, _NO_CROPS),
)
TABLE_1_MNIST_TWIN: Final = replace(
    TABLE_1_MNIST,
    title="MNIST, 20 clients of two classes",
    parts=_mnist(
        {"study.rounds": 8, "study.seeds": list(range(1, 10)), "data.clients": 20, "data.records": 1200}
    ),
    minutes=12,
    twin_of="fedlog_table_1_mnist",
)
TABLE_1_CIFAR10: Final = replace(
    TABLE_1_MNIST,
    title="CIFAR-10, 100 clients of two classes",
    parts=_cifar10({}),
    minutes=650,
    differences=(*_TABLE_1_DIFFERENCES, _CIFAR10_MEGABITS, _CS_FL, _NO_CROPS),
)
TABLE_1_CIFAR10_TWIN: Final = replace(
    TABLE_1_CIFAR10,
    title="CIFAR-10, 20 clients of two classes",
    parts=_cifar10(
        {
            "study.rounds": 20,
            "study.seeds": list(range(1, 10)),
            "study.target": 0.75,
            "data.clients": 20,
            "data.records": 10_000,
        }
    ),
    minutes=40,
    twin_of="fedlog_table_1_cifar10",
)
FLEXIBLE: Final = Table(
    title="CIFAR-10, 20 clients, half of the bodies one layer shorter",
    source="FedLog, Figure 2",
    parts=(
        _part(
            "two lengths of bodies",
            _CIFAR100,
            FLEXIBLE_PRINTED,
            {
                "study.rounds": 40,
                "study.seeds": list(range(1, 8)),
                "data.source": "cifar10",
                "data.clients": 20,
                "data.records": 10_000,
                "data.partition.per_client": 2,
                # Those of `fedlog_cnn` by default, written out: half of the clients leave the first one out.
                "model.hidden": [120, 100],
                "local.epochs": 1,
            },
            {label: {"shorter": 0.5} for label in FLEXIBLE_PRINTED},
        ),
    ),
    measures=(Measure.LAST, Measure.BEST),
    minutes=30,
    differences=(
        *_DIFFERENCES,
        _NO_CROPS,
        "The paper's clients begin with bodies of their own; here those of one length begin alike.",
    ),
)
