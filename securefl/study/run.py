"""Run a study: every arm under every seed, resumable at the last finished round."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from securefl.accounting.composition import compose, falls_short, within
from securefl.accounting.ledger import Head, Ledger
from securefl.core.errors import ConfigError, DataError
from securefl.core.release import PARTIES
from securefl.core.streams import stream
from securefl.core.wire import Header
from securefl.dp.calibration import check_delta
from securefl.engines.host import Host, Log
from securefl.engines.inprocess import InProcess
from securefl.messages import client_name
from securefl.plan import Plan, charge_of, events_of
from securefl.rounds import Algorithm, Answers, Ask, Device, Kept, Played, Population, Sends, State, play
from securefl.scores import way_of as score_way
from securefl.storage.database import decoding
from securefl.storage.files import subfolder
from securefl.storage.journal import Journal
from securefl.study import cost
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Arm, Study, slug
from securefl.study.interruption import Interruption, Stop
from securefl.study.world import World
from securefl.sums import way_of

Tell = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class ArmRun:
    """A finished arm under one seed: the records of all its rounds (see `_record`)."""

    arm: Arm
    world: World
    records: list[dict[str, Any]]


def arm_folder(folder: Path, arm: Arm, seed: int) -> Path:
    """Where checkpoint and ledger of one arm and seed are."""
    return folder / "arms" / slug(arm.name) / f"seed-{seed}"


def _made(folder: Path, arm: Arm, seed: int) -> Path:
    """Make the folder of one arm and seed, if there is none. Raises DataError if a part of it is a link."""
    home = arm_folder(folder, arm, seed)
    for part in reversed(home.relative_to(folder).parents):
        subfolder(folder / part)
    return subfolder(home)


def composition(study: Study, arm: Arm, world: World) -> tuple[Algorithm, Plan]:
    """The arm's algorithm and plan. Raises ConfigError for a release that the plan could never allow."""
    unit, problem = study.privacy.unit, world.problem
    holders = problem.records if unit == "record" else problem.clients
    check_delta(study.privacy.delta, holders, force=study.privacy.force_delta)
    algorithm = arm.options.build(problem)
    sent = [offer.sends for offer in algorithm.offers]
    plan = study.privacy.plan(study.study.rounds, sent, records=problem.records, clients=problem.clients)
    for offer in algorithm.offers:
        charge = charge_of(plan, offer.sends).by_party()
        endless = [party for party in plan.against if compose({charge[party]: 1}, plan.delta) == inf]
        if plan.budget is not None and endless:
            raise ConfigError(
                f"Expected noise on every value under a budget, got {offer.sends.name!r}, which leaves "
                "without noise, which no budget bears: every client would refuse. Set budget = inf in "
                f"[privacy], or trust {endless} by leaving them out of `against`."
            )
    if plan.budget is not None:
        for party in plan.against:
            first = events_of(plan, sent, party, 1)
            if not within(first, plan.delta, plan.budget):
                cost = compose(first, plan.delta)
                raise ConfigError(
                    f"{arm.name}: expected round 1 to cost a client at most the budget {plan.budget:g} "
                    f"against the {party}, got epsilon {cost:.4g}: it bears not one round. Raise it, or add "
                    "noise."
                )
    _check_cohorts(plan, sent, study.data.clients)
    algorithm.start()  # builds the model: a layer that does not exist is told here
    return algorithm, plan


def _check_cohorts(plan: Plan, sent: Sequence[Sends], clients: int) -> None:
    """Raises ConfigError for a hidden sum over cohorts that would never be opened.

    A cohort of unknown size counts as one of all clients.
    """
    with Journal() as journal:
        way = way_of(plan, journal)
    for sends in sent:
        size = sends.cohort or clients
        if way is None or sends.how != "sum":
            continue
        if size < 2:
            raise ConfigError(
                f"Expected cohorts of two or more for the hidden sum of {sends.name!r}, got {size}, whose "
                "sum would be its own value: it is never opened. Ask more clients a round."
            )
        way.check(sends, size)


def run_arm(
    study: Study,
    arm: Arm,
    world: World,
    folder: Path,
    tell: Tell,
    *,
    rounds: int | None = None,
    stop: Stop | None = None,
) -> ArmRun:
    """Run one arm to its last round, from where it was cut off. `tell` gets every round's record.

    rounds: the largest number of the study's rounds to play.
    stop: raises Interrupted between two rounds, if it is asked to.
    Each arm has a ledger of its own. It is accounted as if no other arm had run.
    """
    stop = stop or Interruption()
    algorithm, plan = composition(study, arm, world)
    home = _made(folder, arm, world.seed)
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(home / "ledger.sqlite", plan.terms()))
        checkpoint = stack.enter_context(Checkpoint(home / "checkpoint.sqlite"))
        journal = stack.enter_context(Journal(home / "acts.sqlite"))
        checkpoint.bind(
            study=hashlib.sha256(study.text.encode()).hexdigest(),
            arm=arm.name,
            seed=str(world.seed),
            ledger=ledger.identity,
            journal=journal.identity,
        )
        state, records = checkpoint.load()
        with checkpoint.explaining(), decoding():
            stands = [_stands(record, world.problem.clients) for record in records]
        if stands:
            _require_all(ledger, stands[-1])
        for record in records:
            tell(record)
        turn = _Turn(study, arm, world, algorithm, plan, ledger, checkpoint, journal, stands)
        state = state or algorithm.start()
        for number in range(len(records) + 1, (rounds or study.study.rounds) + 1):
            if records and records[-1]["ended"]:
                break
            # The checkpoint comes last: a round that is cut off before it is played again as it was, from the
            # journal's secrets.
            with stop.finishing("this round"):
                state, record, kept = turn.play(number, state)
                checkpoint.save(number, state, record, kept)
                records.append(record)
                tell(record)
            stop.check()
    return ArmRun(arm, world, records)


@dataclass(frozen=True)
class _Stands:
    """The figures of a round's record with which a run goes on."""

    number: int
    head: Head
    epsilon: Mapping[str, float]
    culprits: frozenset[int]
    retired: frozenset[int]
    spare: int
    ended: bool


def _stands(record: Mapping[str, Any], clients: int) -> _Stands:
    """Read a round's record. Raises any error for a record that cannot be one."""
    culprits, retired = (frozenset(map(int, record[name])) for name in ("culprits", "retired"))
    if not culprits | retired <= set(range(clients)) or set(record["epsilon"]) != set(PARTIES):
        raise ValueError("a record names clients or parties that there are not")
    for name in ("accuracy", "loss", "bytes_up", "bytes_down", "seconds", "watt_hours", "wall_seconds"):
        float(record[name])
    if not len(record["selected"]) == len(record["answered"]) == clients:
        raise ValueError("a record is not of all clients")
    return _Stands(
        number=int(record["round"]),
        head=Head(int(record["ledger"]["count"]), bytes.fromhex(record["ledger"]["head"])),
        epsilon={party: float(spent) for party, spent in record["epsilon"].items()},
        culprits=culprits,
        retired=retired,
        spare=int(record["spare"]),
        ended=bool(record["ended"]),
    )


def _require_all(ledger: Ledger, stands: _Stands) -> None:
    """Raises DataError if the ledger holds less than it did when this round ended."""
    # Its chain shows a loss. Its epsilons show one even if somebody made the chain anew.
    ledger.require(stands.head)
    for party, spent in stands.epsilon.items():
        found = ledger.worst(party)
        if falls_short(found, spent):
            raise DataError(
                f"The ledger says epsilon {found:.4g} against the {party}, and round {stands.number} ended "
                f"with {spent:.4g}: releases are missing. Restore the run folder from one backup, or begin a "
                "new run in another folder."
            )


class _Turn:
    """Plays single rounds of one arm and records what an observer saw."""

    def __init__(
        self,
        study: Study,
        arm: Arm,
        world: World,
        algorithm: Algorithm,
        plan: Plan,
        ledger: Ledger,
        checkpoint: Checkpoint,
        journal: Journal,
        stands: Sequence[_Stands],
    ) -> None:
        self._study, self._arm, self._world = study, arm, world
        self._algorithm, self._plan, self._ledger = algorithm, plan, ledger
        self._population = world.population()
        self._session = plan.session(_names(self._population), checkpoint.nonce())
        self._check_ages(journal, len(stands))
        self._host = Host(
            plan,
            algorithm.offers,
            ledger,
            world.records,
            rng=lambda number, client: stream(world.seed, "client", number, client),
            scores=score_way(
                plan,
                parameters=study.privacy.parameters,
                asks=2 * study.study.rounds,
                clients=study.data.clients,
            ),
            kept=checkpoint.kept(),
            culprits=stands[-1].culprits if stands else (),
            spare=stands[-1].spare if stands else None,
            journal=journal,
        )
        # From the record, not from the ledger: what a cut-off round has spent must not retire a client from
        # it.
        self._retired = stands[-1].retired if stands else frozenset[int]()
        self._logs: list[tuple[Ask, Log]] = []

    def _check_ages(self, journal: Journal, finished: int) -> None:
        """Raises DataError if journal or checkpoint are older than the files beside them, or begun anew."""
        if {*journal.sessions(), *self._ledger.sessions()} - {self._session}:
            raise DataError(
                "The checkpoint of this run is lost: the ledger or the journal beside it has another "
                "session, whose rounds would be played and charged a second time. Restore it, or begin a new "
                "run elsewhere."
            )
        known, charged = journal.newest(self._session), self._ledger.newest(self._session)
        if (self._plan.hidden or self._plan.noise != "none") and known < charged:
            raise DataError(
                "The journal beside this run's ledger is an older copy: it does not know the round that the "
                "ledger has releases of, and another sum of it could be opened. Restore it, or begin a new "
                "run elsewhere."
            )
        if max(known, charged) > finished + 1:
            raise DataError(
                f"The checkpoint of this run is an older copy: it ends with round {finished}, and clients "
                f"have been in round {max(known, charged)}. Restore it, or begin a new run elsewhere."
            )

    def play(self, number: int, state: State) -> tuple[State, dict[str, Any], Mapping[int, Kept]]:
        """Play a round.

        Returns the next state, the round's record, and the changes in the clients' kept state.
        """
        before = dict(self._host.kept)
        began = time.perf_counter()
        world, study = self._world, self._study
        # A new network for each round, whose late parcels end with it: a resumed run has none of them either.
        engine = InProcess(self._host.worker, faults=study.network, rng=stream(world.seed, "network", number))
        self._logs = []

        def ask(question: Ask, stage: int) -> Answers:
            header = Header(self._session, number, 0, stage)
            answers, log = self._host.ask(engine, question, header)
            self._logs.append((question, log))
            return answers

        population = replace(self._population, retired=self._out())
        rng = stream(world.seed, "selection", number)
        played = play(self._algorithm, state, population, number, rng, ask)
        changed = {k: own for k, own in self._host.kept.items() if own is not before.get(k)}
        return played.state, self._record(number, played, time.perf_counter() - began), changed

    def _record(self, number: int, played: Played, wall: float) -> dict[str, Any]:
        """One finished round in numbers: what the server knows, and what only an observer sees."""
        evaluation = self._algorithm.evaluate(played.state, self._devices())
        clients, head = range(self._population.clients), self._ledger.head
        up, down = self._bytes()
        if number < self._study.study.rounds:
            self._retired |= self._host.retired(number + 1).keys()
        seconds, watt_hours = self._cost()
        return {
            "arm": self._arm.name,
            "seed": self._world.seed,
            "round": number,
            "accuracy": evaluation.accuracy,
            "loss": evaluation.loss,
            "bytes_up": int(up.sum()),
            "bytes_down": int(down.sum()),
            "seconds": seconds,
            "watt_hours": watt_hours,
            "wall_seconds": wall,
            "epsilon": {party: self._ledger.worst(party) for party in PARTIES},
            "ledger": {"count": head.count, "head": head.digest.hex()},
            "selected": [played.drawn.get(k, 0) for k in clients],
            "answered": [int(k in played.survivors) for k in clients],
            "figures": {name: list(map(float, values)) for name, values in played.figures.items()},
            "error_bound": self._host.error_bound(),
            "blamed": {k: v for _, log in self._logs for k, v in log.traffic.blamed.items()},
            "abstained": {k: v for _, log in self._logs for k, v in log.abstained.items()},
            "clipped": {k: v for _, log in self._logs for k, (v, _) in log.moved.items() if v},
            "floored": {k: v for _, log in self._logs for k, (_, v) in log.moved.items() if v},
            "retired": sorted(self._retired),
            "culprits": sorted(self._host.culprits()),
            "spare": self._host.spare,
            "asked": len(self._logs),
            "ended": len(self._out()) == self._population.clients,
        }

    def _out(self) -> frozenset[int]:
        """The clients that nobody asks any more: their budget is spent, or they were proven to cheat."""
        return self._host.culprits() | self._retired

    def _devices(self) -> list[Device]:
        kept = self._host.kept
        return [Device(x=x, y=y, kept=kept.get(k, {})) for k, (x, y) in enumerate(self._world.tests)]

    def _bytes(self) -> tuple[cost.Floats, cost.Floats]:
        clients = _names(self._population)
        up, down = np.zeros(len(clients)), np.zeros(len(clients))
        for _, log in self._logs:
            up += [log.traffic.sent.get(name, 0) for name in clients]
            down += [log.traffic.received.get(name, 0) for name in clients]
        return up, down

    def _cost(self) -> tuple[float, float]:
        """Seconds and watt-hours of the round by the cost model: its exchanges one after the other."""
        exchanges = [(self._client_costs(ask, log), ask.cohort) for ask, log in self._logs]
        return (
            sum(cost.round_seconds(costs, cohort) for costs, cohort in exchanges),
            sum(cost.round_watt_hours(costs, cohort) for costs, cohort in exchanges),
        )

    def _client_costs(self, ask: Ask, log: Log) -> cost.ClientCosts:
        """What one exchange costs each client; it trains where it is asked for a sum.

        Real bytes are all charged as communication. With a preset's constant model size the profile is
        charged beside it, and an exchange without a model by its real bytes.
        """
        sent = [question.sends for question in ask.sums]
        world, trains = self._world, any(s.reads != "nothing" or s.training is not None for s in sent)
        profiles = [each for each in ask.each if each.query is not None]
        constant = world.cost_model.model_megabytes if trains else None
        model = replace(world.cost_model, model_megabytes=constant, charge_profile=bool(profiles))
        names = _names(self._population)
        traffic = cost.Payload(
            down=[log.traffic.received.get(name, 0) for name in names],
            up=[log.traffic.sent.get(name, 0) for name in names],
            profile=0 if constant is None else sum(map(self._host.number_bytes, profiles)),
        )
        passes = world.passes(world.sizes) if trains else 0
        return cost.client_costs(model, world.devices, world.sizes, traffic, passes)


def _names(population: Population) -> list[str]:
    return [client_name(k) for k in range(population.clients)]
