"""Runs an arm under one seed, round by round, from its checkpoint on, and records each round's figures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.clients import Device, RoundResult, State, run_round, specs_of
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, ClientState, CohortQuery
from securefl.algorithm.weighing import admits
from securefl.core.memory import searches_apart
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, PARTIES, SERVER
from securefl.core.streams import stream
from securefl.core.wire import Header
from securefl.engine.attendance import Seen
from securefl.engine.network import Network
from securefl.engine.observer import Log
from securefl.mechanisms.charges import allotment, fewest_behind_an_entry
from securefl.study import cost
from securefl.study.accounted import allotted, reserve
from securefl.study.arm import ArmRun, made_folder, opened
from securefl.study.backends import ArmContext, Backend, OneProcess
from securefl.study.checkpoint import Figures, require_new
from securefl.study.composition import composition
from securefl.study.config import Arm, Study
from securefl.study.folder import rounds_of
from securefl.study.interruption import Interruption, Stop
from securefl.study.seeded import World
from securefl.study.world import of_study
from securefl.training.local import BOUND

Tell = Callable[[Mapping[str, Any]], None]


def run_arm(
    study: Study,
    arm: Arm,
    world: World,
    folder: Path,
    tell: Tell,
    *,
    rounds: int | None = None,
    last: int | None = None,
    stop: Stop | None = None,
    backend: Backend | None = None,
    reserved: bool = False,
) -> ArmRun:
    """Run one arm to its last round, from its last finished one. `tell` gets every round's record.

    rounds: the number of the round to end with, by default the study's last one.
    last: the number of the round that the algorithm takes for the run's last, by default the study's.
    stop: asked between rounds; it raises `Interrupted` if a request to stop came.
    backend: the backend that runs the arm's parties, by default all of them in this process.
    reserved: whether the caller has reserved the run in the study's shared ledger already, as a machine must
    that does not have this ledger.
    Each arm has a ledger of its own, which counts this arm alone. If the study names a shared ledger, this
    run is also reserved there before its first round; if the budget does not allow it, BudgetExceeded is
    raised.
    """
    stop, backend, world = stop or Interruption(), backend or OneProcess(), world.under(arm.local)
    algorithm, plan = composition(study, arm, world)
    home = made_folder(folder, arm, world.seed)
    shared = None if study.privacy.ledger is None else allotment(plan, specs_of(algorithm))
    with opened(study, arm, world, plan, home, shared) as saved, searches_apart():
        records = saved.records
        for record in records:
            tell(record)
        going_on = len(records) < study.study.rounds and not (records and records[-1]["ended"])
        if going_on and not reserved:
            own = allotted(study, arm, world.seed, (algorithm, plan), saved.ledger.identity)
            reserve(study, plan, world.marks, [own], [own.run] if saved.ledger.head.count else ())
        last = last or study.study.rounds
        former = [*_former(study, arm, world, folder)]
        context = ArmContext(
            study=study,
            arm=arm,
            world=world,
            algorithm=algorithm,
            plan=plan,
            ledger=saved.ledger,
            journal=saved.journal,
            nonce=saved.checkpoint.nonce(),
            kept=saved.checkpoint.kept(),
            stands=saved.stands,
        )
        turn = RoundRunner(context, records, backend, last, former)
        state = saved.state or algorithm.start()
        for number in range(len(records) + 1, (rounds or study.study.rounds) + 1):
            if records and records[-1]["ended"]:
                break
            with stop.finishing("this round"):
                # If parties are on machines of their own, each write is a commit, and the checkpoint's is the
                # last: if the round is interrupted before, the next run repeats it with the same masks and
                # noise, from the journal's secrets.
                with saved.one_commit() if backend.in_one_process else nullcontext():
                    state, record, kept = turn.play(number, state)
                    saved.checkpoint.save(number, state, record, kept)
                # The record leaves this process here, so the round's releases are on disk before.
                records.append(record)
                tell(record)
            stop.check()
        return ArmRun(arm, world, records)


def _former(study: Study, arm: Arm, world: World, folder: Path) -> Iterator[Plan]:
    """The plans of the folder's run before it got more rounds."""
    for rounds in rounds_of(study, folder)[:-1]:
        own = replace(study, study=replace(study.study, rounds=rounds))
        yield composition(own, arm, of_study(world, own))[1]


class RoundRunner:
    """Runs single rounds of one arm, and makes their records for the observer."""

    def __init__(
        self,
        context: ArmContext,
        records: Sequence[Mapping[str, Any]],
        backend: Backend,
        last: int,
        former: Sequence[Plan],
    ) -> None:
        """records: those of all finished rounds, which a caller adds to. former: the plans of the run before
        it got more rounds, each of which had a session."""
        self._of, self._world, self._last, self._records = context, context.world, last, records
        self._population, self._saved = context.world.population(), dict(context.kept)
        self._session = backend.session(context)
        own = {self._session, *(backend.session(replace(context, plan=one)) for one in former)}
        stands = context.stands
        require_new(context.plan, self._session, own, context.ledger, context.journal, len(stands))
        self._engine = backend.engine(context)
        self._engine.server.account.restore(own.charged for own in stands)
        # From the record and not from the ledger: the charge of an interrupted round must not retire a client
        # when that round is repeated.
        self._retired = {k for own in stands for k in own.retired}
        self._known = _newest([own.figures for own in stands], self._population.clients)
        self._logs: list[tuple[CohortQuery, Log]] = []
        self._seen: list[Seen] = []

    def play(self, number: int, state: State) -> tuple[State, dict[str, Any], Mapping[int, ClientState]]:
        """Run a round. Returns the next state, the round's record, and the changed client states."""
        proven_cheaters = self._engine.server.proven_cheaters
        began = time.perf_counter()
        world, plan = self._world, self._of.plan
        # A new network for each round drops late packets at its end: a resumed run does not have them either.
        network = Network(self._of.study.network, rng=stream(world.seed, "network", number))
        self._logs, self._seen = [], []

        def query(asked: CohortQuery, stage: int) -> Answers:
            header = Header(self._session, number, 0, stage)
            answers, log = self._engine.query(asked, header, network)
            self._logs.append((asked, log))
            self._seen.append(self._engine.server.seen)
            return answers

        population = replace(
            self._population,
            retired=self._out() | self._engine.server.account.resting(number) | self._engine.away(number),
            fewest=partial(fewest_behind_an_entry, plan),
            fixed_batch=plan.fixed_batch or 1,
            admits=partial(admits, plan),
            last=number == self._last,
        )
        rng = stream(world.seed, "selection", number)
        played = run_round(self._of.algorithm, state, population, number, rng, query)
        record = self._record(number, played, time.perf_counter() - began, proven_cheaters)
        return played.state, record, self._changed()

    def _changed(self) -> dict[int, ClientState]:
        """The client states that changed in this round. Only queried clients can change theirs."""
        kept, asked = self._engine.kept, {k for query, _ in self._logs for k in query.cohort}
        new = {k: kept[k] for k in sorted(asked) if k in kept and kept[k] is not self._saved.get(k)}
        self._saved |= new
        return new

    def _record(
        self, number: int, played: RoundResult, wall: float, proven_cheaters: frozenset[int]
    ) -> dict[str, Any]:
        """The record of one finished round: figures that the server knows, and those for the observer alone.

        A record lists a client only if something about it is new, so its length grows with the cohort and not
        with all clients.
        """
        head, section = self._of.ledger.head, self._of.study.study
        new: frozenset[int] = frozenset()
        if number < section.rounds:
            new = self._engine.server.account.retired(number + 1) - self._retired
            self._retired |= new
        # With fewer clients no sum of a later round could open, so no later round is played.
        ended = self._population.clients - len(self._out()) < self._engine.server.fewest
        seconds, watt_hours = self._cost()
        accuracy = loss = personal = None
        figures = played.figures
        if section.evaluates(number) or ended:
            devices = Devices(self._world, self._engine.kept)
            evaluation = self._of.algorithm.evaluate(played.state, devices)
            accuracy, loss, personal = evaluation.accuracy, evaluation.loss, evaluation.personal
            figures = {**figures, **evaluation.figures}
            tested = [own["accuracy"] for own in self._records if own["accuracy"] is not None]
            ended = ended or section.level([*tested, accuracy])
        logs = [log for _, log in self._logs]
        return {
            "arm": self._of.arm.name,
            "seed": self._world.seed,
            "round": number,
            "accuracy": accuracy,
            "loss": loss,
            "personal": personal,
            "bytes_up": sum(_of_clients(log.traffic.sent) for log in logs),
            "bytes_down": sum(_of_clients(log.traffic.received) for log in logs),
            "seconds": seconds,
            "watt_hours": watt_hours,
            "wall_seconds": wall,
            "epsilon": {party: self._of.ledger.worst(party) for party in PARTIES},
            # Of noised totals. Each order states it to clients.
            **{name: float(own[0]) for name, own in played.state.memory.items() if name == BOUND},
            "ledger": {"count": head.count, "head": head.digest.hex()},
            "selected": sorted(Counter(played.drawn).elements()),
            "answered": sorted(played.survivors),
            "seen": Seen.together(self._seen).record(),
            "figures": {name: self._news(name, values) for name, values in figures.items()},
            "error_bound": self._engine.server.error_bound(),
            "rejected_from": {k: v for log in logs for k, v in log.traffic.rejected_from.items()},
            "abstained": {k: v for log in logs for k, v in log.abstained.items()},
            "reasons": {k: v.told for log in logs for k, v in log.reasons.items()},
            "without_records": {k: v for log in logs for k, v in log.blank.items()},
            "clipped": {k: v for log in logs for k, (v, _) in log.moved.items() if v},
            "floored": {k: v for log in logs for k, (_, v) in log.moved.items() if v},
            "retired": sorted(new),
            "proven_cheaters": sorted(self._engine.server.proven_cheaters - proven_cheaters),
            "retries_left": self._engine.server.retries_left,
            "asked": len(self._logs),
            "charged": [
                [name, initial, list(own)] for name, initial, own in self._engine.server.account.news()
            ],
            "ended": ended,
        }

    def _news(self, name: str, values: cost.Floats) -> list[list[Any]]:
        """The clients whose figure changed, and the figures."""
        before = self._known.setdefault(name, _unknown(self._population.clients))
        changed = np.flatnonzero(~np.isnan(values) & (values != before))
        before[changed] = values[changed]
        return [changed.tolist(), before[changed].tolist()]

    def _out(self) -> frozenset[int]:
        """The clients that are queried no more: their budget is spent, or they were proven to cheat."""
        return self._engine.server.proven_cheaters | self._retired

    def _cost(self) -> tuple[float, float]:
        """Seconds and watt-hours of the round by the cost model, summed over its exchanges."""
        exchanges = [self._client_costs(query, log) for query, log in self._logs]
        return (
            sum(costs.round_seconds for costs in exchanges),
            sum(costs.watt_hours for costs in exchanges),
        )

    def _client_costs(self, query: CohortQuery, log: Log) -> cost.ClientCosts:
        """The cost of one exchange for each client of its cohort. A client trains if it gets a model, and a
        sum of the query needs the model or training.

        Real bytes all count as communication. With a preset's constant model size, a profile counts beside
        it, and an exchange without a model counts its real bytes.
        """
        sent = [wanted.spec for wanted in query.sums]
        world = self._world
        # A second query of a round has no model: its clients have already trained.
        trains = len(query.broadcast) > 0 and any(
            s.depends_on != "model" or s.training is not None for s in sent
        )
        profiles = [each for each in query.per_client if each.query is not None]
        constant = world.cost_model.model_megabytes if trains else None
        cohort = np.unique(np.asarray(query.cohort, dtype=np.int64))
        names = [client_name(k) for k in cohort.tolist()]
        sizes, size = (
            world.sizes[cohort],
            0 if constant is None else sum(map(self._engine.server.number_bytes, profiles)),
        )
        return cost.client_costs(
            replace(world.cost_model, model_megabytes=constant),
            world.devices.of(cohort),
            sizes,
            world.passes(sizes) if trains else 0,
            down=[log.traffic.received.get(name, 0) for name in names],
            up=[log.traffic.sent.get(name, 0) for name in names],
            profile=size if profiles else None,
        )


class Devices(Sequence[Device]):
    """Test records and client states of all clients, made on access.

    Most algorithms have one model and test it on the server's records. Records are then never dealt.
    """

    def __init__(self, world: World, kept: Mapping[int, ClientState]) -> None:
        self._world, self._kept = world, kept

    def __len__(self) -> int:
        return len(self._world.records)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[client] for client in range(len(self))[place]]
        client = range(len(self))[place]  # IndexError beyond the last one ends an iteration
        x, y = self._world.tests[client]
        held = None if self._world.held is None else self._world.held[client]
        return Device(x=x, y=y, kept=self._kept.get(client, {}), held=held)


def _of_clients(traffic: Mapping[str, int]) -> int:
    """The bytes of all clients together."""
    return sum(count for party, count in traffic.items() if party not in (SERVER, KEY_HOLDER))


def _unknown(clients: int) -> cost.Floats:
    return np.full(clients, np.nan)


def _newest(rounds: Sequence[Figures], clients: int) -> dict[str, NDArray[np.float64]]:
    """The newest figures of all clients, (N,) by name and nan if unknown, from the changes of each round."""
    known: dict[str, NDArray[np.float64]] = {}
    for figures in rounds:
        for name, (changed, values) in figures.items():
            known.setdefault(name, _unknown(clients))[list(changed)] = values
    return known
