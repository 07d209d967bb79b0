"""Exports a model from a finished run: its arrays, and a model card with its origin and epsilon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from securefl.accounting.figures import counted, plain, short
from securefl.algorithm.clients import Algorithm, specs_of
from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError, DataError
from securefl.core.installed import versions
from securefl.core.release import PARTIES
from securefl.engine.privacy_card import learns
from securefl.storage.private_folder import CONFIG
from securefl.study import split_key, world
from securefl.study.accounted import choice_of, sentence
from securefl.study.arm import Saved, arm_folder, checkpoint_file, is_personal, opened
from securefl.study.composition import composition
from securefl.study.config import Arm, Study
from securefl.study.folder import private_copy
from securefl.study.seeded import World
from securefl.training.devices import Hardware
from securefl.training.exported import save
from securefl.training.learnt import Exportable, Learnt
from securefl.training.models import ModelConfig
from securefl.training.onnx_export import save_onnx
from securefl.training.own_models import OwnModel

_KINDS: Final = (".safetensors", ".onnx")
_COVERS: Final = {
    "whole": "Epsilon against the others is that of whoever has this file.",
    "shared": "Epsilon against the others is that of whoever has this file.",
    "client": "No epsilon covers this file: it has values that never left the client's device.",
}
_MEASURED: Final = "on the server's own test records, which no epsilon covers"
_NOT_SAID: Final = "not in this file: it is one of clients' own models, which no epsilon covers"


@dataclass(frozen=True, eq=False)
class Taken:
    """A model of a finished arm and seed, and its model card."""

    learnt: Learnt
    card: Mapping[str, Any]

    def write(self, path: Path) -> None:
        """Write the model with its card, by the ending of the file: .safetensors or .onnx.

        Raises ConfigError for another ending, for .onnx without the extra `onnx`, and for .onnx if the model
        is a shared part or cannot be exported so; and DataError if the model diverged, or the file cannot be
        written.
        """
        kind = require_kind(path)
        try:
            if kind == ".onnx":
                save_onnx(path, self.learnt, self.card)
            else:
                save(path, self.learnt.tensors(), self.card)
        except OSError as error:
            raise DataError(
                f"{path} cannot be written ({error.strerror}). Choose another file, or permit writing."
            ) from None


def require_kind(path: Path) -> str:
    """The ending of a file that an export can write. Raises ConfigError for another ending."""
    ending = path.suffix.lower()
    if ending not in _KINDS:
        pickled = (
            " A .pt or .pth would be a pickle, which can run code when it is loaded."
            if (ending in (".pt", ".pth", ".pkl", ".bin"))
            else ""
        )
        raise ConfigError(
            f"Expected a file with the ending {' or '.join(_KINDS)}, got {path.name!r}.{pickled} Write "
            f"{path.stem}.safetensors."
        )
    return ending


def taken(
    study: Study, folder: Path, arm: str | None, seed: int | None = None, client: int | None = None
) -> Taken:
    """The model of an arm and seed of the run in `folder`, by default of the first seed.

    This writes nothing in the folder. arm: its name; None for the only arm.
    client: the number of a client, if clients have models of their own. By default the part that all share.
    Raises ConfigError if the arm, seed or client does not exist, the arm is not finished, or its protocol has
    no model to export, and DataError if the run is damaged.
    """
    chosen, number = study.arm_of(arm), study.seed_of(seed)
    splits = split_key.of_run(study, folder, began=True).splits(study, number)
    here = world.build(study, number, Hardware(), splits=splits)
    algorithm, plan = composition(study, chosen, here)
    if not isinstance(algorithm, Exportable):
        raise ConfigError(
            f"Expected a protocol whose models can be exported, got {chosen.protocol!r}: its algorithm has "
            "no `learnt`."
        )
    if client is not None and not 0 <= client < here.problem.clients:
        raise ConfigError(f"Expected a client from 0 to {here.problem.clients - 1}, got {client}.")
    at = arm_folder(folder, chosen, number).relative_to(folder)
    if not checkpoint_file(folder / at).is_file():
        raise ConfigError(_unfinished(study, folder, chosen, number, 0))
    with private_copy(folder, at) as private, opened(study, chosen, here, plan, private / at) as saved:
        records = saved.records
        if saved.state is None or not (len(records) == study.study.rounds or records[-1]["ended"]):
            raise ConfigError(_unfinished(study, folder, chosen, number, len(records)))
        kept = {} if client is None else saved.checkpoint.kept().get(client, {})
        learnt = algorithm.learnt(saved.state, client, kept)
        card = _card(study, chosen, here, (algorithm, plan), saved, learnt, client, folder)
        return Taken(learnt, card)


def _unfinished(study: Study, folder: Path, arm: Arm, seed: int, rounds: int) -> str:
    return (
        f"Expected a finished run of {arm.name} under seed {seed}, got {rounds} of {study.study.rounds} "
        f"rounds; go on with: securefl run {folder / CONFIG} --out {folder}"
    )


def _card(
    study: Study,
    arm: Arm,
    here: World,
    made: tuple[Algorithm, Plan],
    saved: Saved,
    learnt: Learnt,
    client: int | None,
    folder: Path,
) -> dict[str, Any]:
    """The model card, as a value for JSON. An infinite epsilon is the text "inf"."""
    last, privacy, choice = saved.records[-1], study.privacy, choice_of(folder)
    own = {party: saved.ledger.worst(party) for party in PARTIES}
    personal = is_personal(saved.records)
    part = "client" if client is not None else "whole" if learnt.shared is None else "shared"
    algorithm, plan = made
    return {
        "study": {"name": study.study.name, "sha256": study.digest},
        "arm": arm.name,
        "protocol": arm.protocol,
        "seed": here.seed,
        "client": client,
        "part": part,
        "rounds": len(saved.records),
        "accuracy": None if personal else plain(last["accuracy"]),
        "loss": None if personal else plain(last["loss"]),
        "measured": _NOT_SAID if personal else _MEASURED,
        "data": {
            "source": study.data.source or "handed over in Python",
            "clients": here.problem.clients,
            "records": here.problem.records,
            "outside": list(here.marks.outside),
        },
        "records": here.schema.words(),
        "model": _model(learnt),
        "privacy": {
            "unit": privacy.unit,
            "adjacency": privacy.adjacency,
            "delta": privacy.delta,
            "sum": privacy.sum,
            "scores": privacy.scores,
            "noise": privacy.noise,
            "plan": plan.digest().hex(),
            "epsilon": plain(own if choice is None else choice.epsilon),
            "learns": {party: learns(plan, specs_of(algorithm), party) for party in PARTIES},
            "covers": _COVERS[part],
            "accounting": sentence(study, folder),
        },
        "ledger": {
            "run": saved.ledger.identity,
            "entries": saved.ledger.head.count,
            "head": saved.ledger.head.digest.hex(),
        },
        "versions": versions(),
    }


def _model(learnt: Learnt) -> dict[str, Any]:
    problem = learnt.problem
    return {
        **_kind(problem.model),
        "reads_text": problem.model.reads_text,
        "shape": list(problem.shape),
        "outputs": problem.outputs,
        "task": problem.kind,
        "features": None if learnt.features is None else learnt.features.words(),
        "changes": list(problem.changes),
    }


def _kind(model: object) -> dict[str, Any]:
    """What builds a model: the keys of a packaged one, or the name, options and digest of own code."""
    bare: dict[str, Any] = {"hidden": None, "width": None, "options": {}, "code": None}
    if isinstance(model, ModelConfig):
        return {**bare, "kind": model.kind, "hidden": model.hidden, "width": model.width}
    if not isinstance(model, OwnModel):
        return {**bare, "kind": str(getattr(model, "name", "own"))}
    code = None if model.place is None else model.place.sha256
    return {**bare, "kind": model.name, "options": dict(model.options), "code": code}


def _accuracy(card: Mapping[str, Any]) -> str:
    if card["accuracy"] is None:
        return str(card["measured"]) if card["measured"] == _NOT_SAID else "not known"
    return f"{card['accuracy']:.4g} {card['measured']}"


def rows(card: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The model card in a few lines for a person: pairs of (name, text)."""
    epsilon = ", ".join(f"{party} {short(float(e))}" for party, e in card["privacy"]["epsilon"].items())
    rounds = counted(card["rounds"], "round")
    whose = {
        "whole": "the model that all clients have",
        "shared": "what all clients share; each client keeps the rest",
        "client": f"the model of client {card['client']}",
    }
    return [
        ("model", f"{card['arm']}, seed {card['seed']}, {rounds}: {whose[card['part']]}"),
        ("accuracy", _accuracy(card)),
        ("epsilon", f"{epsilon}, per {card['privacy']['unit']} at delta {card['privacy']['delta']:g}"),
        ("covers", card["privacy"]["covers"]),
        *(("outside", sentence) for sentence in card["data"]["outside"]),
    ]
