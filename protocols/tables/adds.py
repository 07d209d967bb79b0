"""The tables of ADDS (Gong et al.) with stand-ins for its data: MNIST by writer, and tiny Shakespeare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final

from securefl.protocols.tables.studies import PRINTED as PAPERS
from securefl.protocols.tables.studies import arm, packaged, study_of
from securefl.published.table import Axis, Figure, Measure, Part, Row, Table

OURS: Final = "ADDS (LRP)"
_MASKS: Final = (
    "ADDS draws masks once a round and scales them, from temperature 0.3; the paper draws them for each "
    "pass, 0 or 1, from temperature 1. Clients train for the study's steps, the paper's for 3 epochs: the "
    "preset 'paper' with mask_temperature = 1."
)
_VGG: Final = "a VGG-like network of 5.68M parameters"
PARAMETERS, MACS = 5.68, 34.68
"""Of FedAvg's model in Table III, in millions. (The text calls MACs FLOPs.)"""
ACCURACIES: Final = (Measure.GLOBAL, Measure.LOCAL)
SHARES: Final = (Measure.PARAMETERS, Measure.MACS)
IMAGES, TEXTS = PAPERS["adds_images"], PAPERS["adds_texts"]
"""Table III on FEMNIST: AccG and AccL with deviations, parameters in percent, and MACs in millions. Table IV
on Shakespeare: AccG and AccL with deviations in percent, and rounds to 40, 45 and 50 %."""


def accuracies(numbers: Sequence[float]) -> dict[Measure, Figure]:
    """AccG and AccL of a printed row."""
    pairs = zip(ACCURACIES, numbers[:4:2], numbers[1:4:2], strict=True)
    return {own: Figure(mean=_of(mean), deviation=_of(deviation)) for own, mean, deviation in pairs}


def _of(percent: float) -> float:
    return round(percent / 100, 6)


def _sent(label: str) -> tuple[str, ...]:
    """The values that a system sends: ADDS alone has a map."""
    return ("update", "map") if label in ("ADDS (slim)", OURS) else ("update",)


ROUNDS: Final = (Measure.ROUNDS, Measure.ROUNDS_45, Measure.ROUNDS_50)
"""To 40, 45 and 50 %. The first is the target of the study."""
_PAPER: Final = {"arm.fraction": 0.3, "study.rounds": 200, "data.holdout": 0.2}


def sizes(numbers: Sequence[float]) -> dict[Measure, Figure]:
    """The shares of parameters and MACs of a row of Table III."""
    return {
        Measure.PARAMETERS: Figure(mean=_of(numbers[4])),
        Measure.MACS: Figure(mean=round(numbers[5] / MACS, 4)),
    }


def arms(fraction: float, *, lamda: float, eta: float, rate: float) -> list[dict[str, Any]]:
    """The arms of all six systems. lamda, eta: pFedMe's. rate: of ADDS' steps on sampling rates."""
    adds = {"fraction": fraction, "rate": rate, "mask_temperature": 0.3}
    return [
        arm("FedAvg", "fedavg", fraction=fraction, aggregation="partial"),
        # The paper prints this share of the parameters, and no p.
        arm("STC", "stc", fraction=fraction, p=0.2439),
        arm("PFedMe", "pfedme", fraction=fraction, lamda=lamda, personal_steps=5, eta=eta),
        arm("FedDrop", "feddrop", fraction=fraction, keep=0.75),
        arm("ADDS (slim)", "adds", importance="slim", **adds),
        arm(OURS, "adds", importance="lrp", **adds),
    ]


def part(
    name: str,
    study: str,
    figures: Mapping[str, Mapping[Measure, Figure]],
    own_arms: list[dict[str, Any]],
    lamdas: Axis,
    setting: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> Part:
    """A part with all six systems.

    study: the packaged one to which `changes` are applied. lamdas: those of pFedMe that tuning tries. Each of
    its values, times the fastest learning rate of the grid, must be below 2. Beyond its edges the product may
    be larger: a run that diverges is not chosen.
    """
    text = study_of(packaged(study), own_arms, {"data.holdout": 0.2, "measures.at": "own", **changes})
    rows = tuple(
        Row(
            label=label,
            arm=label,
            figures=own,
            options={"lamda": 15.0} if label == "PFedMe" else {},
            tunes=lamdas if label == "PFedMe" else None,
            fastest=4.0 if label == "PFedMe" else inf,
            sends=_sent(label),
        )
        for label, own in figures.items()
    )
    return Part(name=name, text=text, rows=rows, ours=OURS, setting={**_PAPER, **setting}, seeds=5)


def _images() -> tuple[Part, Part]:
    figures = {label: {**accuracies(own), **sizes(own)} for label, own in IMAGES.items()}
    dense, convolutions = (
        part(
            name,
            study,
            figures,
            arms(0.2, lamda=15.0, eta=0.05, rate=rate),
            Axis(key="lamda", values=(0.5, 1.0, 2.0), below=(0.125, 0.25), above=(5.0, 15.0)),
            {"data.source": "FEMNIST", "data.clients": 1062, "model.kind": _VGG, **whole},
            {"data.test_clients": 10, "study.seeds": [*range(1, 9)]},
        )
        for name, study, rate, whole in (
            ("dense", "adds_writers_dense", 0.02, {}),
            ("convolutions", "adds_writers", 0.025, {"model.width": 1.0}),
        )
    )
    return dense, convolutions


LOCALLY: Final = (
    "The paper says that it reports averages and variances; its ± are read as standard deviations.",
    "Local accuracy is of the model that each client trained last, before averaging, as in the paper: of "
    "pFedMe the personal one, of FedDrop and ADDS the subnet. A client that has not trained yet has the "
    "global one. Clients without held-out records are left out.",
    "PFedMe's global accuracy is that of its global model, the mean over clients, each with its share of the "
    "test records of its classes.",
    "STC sends 24.39 % of the values, the share in the paper's Table III, which prints no p. It compresses "
    "the whole model at once; its authors' code each tensor: the preset 'authors'.",
    "PFedMe has no weight decay; its authors' code has 0.001: the preset 'authors'.",
    _MASKS,
)
TABLE_3: Final = Table(
    title="MNIST by writer, 40 clients",
    source="ADDS, Table III",
    parts=_images(),
    measures=(*ACCURACIES, *SHARES),
    minutes=30,
    differences=(
        *LOCALLY,
        f"Shares are of the whole model, in the paper of {PARAMETERS:g}M parameters and {MACS:g}M MACs.",
        "A dense network has no batch norm: its slim row ranks units by mean absolute activation.",
    ),
)


def _shakespeare(fraction: float, changes: Mapping[str, Any]) -> Part:
    return part(
        "Shakespeare",
        "adds_shakespeare",
        {
            label: {
                **accuracies(own),
                **{measure: Figure(mean=mean) for measure, mean in zip(ROUNDS, own[4:], strict=True)},
            }
            for label, own in TEXTS.items()
        },
        # With SGD at rate 1, steps near the proximal point need a lambda below 2.
        arms(fraction, lamda=1.5, eta=0.5, rate=0.02),
        Axis(key="lamda", values=(0.1, 0.2, 0.4), below=(0.025, 0.05), above=(0.75, 1.5)),
        {
            "data.source": "Shakespeare of LEAF",
            "data.clients": 528,
            "model.width": 1.0,
            "study.target": 0.4,
        },
        changes,
    )


_TEXT_DIFFERENCES: Final = (
    *LOCALLY,
    "Local accuracy is of windows drawn at random. They overlap those that are trained on, so it is too "
    "high for every system. Global accuracy is of text that no window of training reaches.",
    "The recurrent layers have no batch norm: the slim row ranks units by mean absolute activation.",
)
TABLE_4: Final = Table(
    title="Shakespeare by speaker, rounds to 40, 45 and 50 %",
    source="ADDS, Table IV",
    parts=(
        _shakespeare(
            0.3,
            {
                "study.rounds": 200,
                "study.evaluate_every": 1,
                "study.target": 0.4,
                "study.seeds": [*range(1, 9)],
            },
        ),
    ),
    measures=(*ACCURACIES, *ROUNDS),
    minutes=4000,
    differences=_TEXT_DIFFERENCES,
)
TABLE_4_TWIN: Final = replace(
    TABLE_4,
    title="Shakespeare by speaker, smaller, rounds to 20 %",
    parts=(
        _shakespeare(
            0.2,
            {
                "study.rounds": 40,
                "study.evaluate_every": 2,
                "study.target": 0.2,
                "study.seeds": [*range(1, 9)],
                "model.width": 0.125,
                "local.steps": 10,
            },
        ),
    ),
    measures=(*ACCURACIES, Measure.ROUNDS),
    minutes=40,
    twin_of="adds_table_4",
)
