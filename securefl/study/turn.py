"""Single rounds of one arm, and what an observer of them saw."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from securefl.accounting.ledger import Ledger
from securefl.algorithm import Algorithm, Device, Played, Population, State, play
from securefl.core.release import PARTIES
from securefl.core.streams import stream
from securefl.core.wire import Header
from securefl.engines.inprocess import simulated
from securefl.engines.network import Network
from securefl.engines.observer import Log
from securefl.messages import client_name
from securefl.plan import Plan
from securefl.rounds import Answers, Ask, Kept
from securefl.scores import way_of as score_way
from securefl.storage.journal import Journal
from securefl.study import cost
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Arm, Study
from securefl.study.standing import Stands, require_new
from securefl.study.world import World


class Turn:
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
        stands: Sequence[Stands],
    ) -> None:
        self._study, self._arm, self._world = study, arm, world
        self._algorithm, self._plan, self._ledger = algorithm, plan, ledger
        self._population = world.population()
        self._session = plan.session(_names(self._population), checkpoint.nonce())
        require_new(plan, self._session, ledger, journal, len(stands))
        self._engine = simulated(
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
            trainer=study.runtime.trainer(),
        )
        self._engine.server.account.restore(own.charged for own in stands)
        # From the record, not from the ledger: what a cut-off round has spent must not retire a client from
        # it.
        self._retired = stands[-1].retired if stands else frozenset[int]()
        self._logs: list[tuple[Ask, Log]] = []

    def play(self, number: int, state: State) -> tuple[State, dict[str, Any], Mapping[int, Kept]]:
        """Play a round.

        Returns the next state, the round's record, and the changes in the clients' kept state.
        """
        before = dict(self._engine.kept)
        began = time.perf_counter()
        world, study = self._world, self._study
        # A new network for each round, whose late parcels end with it: a resumed run has none of them either.
        network = Network(study.network, rng=stream(world.seed, "network", number))
        self._logs = []

        def ask(question: Ask, stage: int) -> Answers:
            header = Header(self._session, number, 0, stage)
            answers, log = self._engine.ask(question, header, network)
            self._logs.append((question, log))
            return answers

        population = replace(self._population, retired=self._out())
        rng = stream(world.seed, "selection", number)
        played = play(self._algorithm, state, population, number, rng, ask)
        changed = {k: own for k, own in self._engine.kept.items() if own is not before.get(k)}
        return played.state, self._record(number, played, time.perf_counter() - began), changed

    def _record(self, number: int, played: Played, wall: float) -> dict[str, Any]:
        """One finished round in numbers: what the server knows, and what only an observer sees."""
        evaluation = self._algorithm.evaluate(played.state, self._devices())
        clients, head = range(self._population.clients), self._ledger.head
        up, down = self._bytes()
        if number < self._study.study.rounds:
            self._retired |= self._engine.server.account.retired(number + 1)
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
            "error_bound": self._engine.server.error_bound(),
            "blamed": {k: v for _, log in self._logs for k, v in log.traffic.blamed.items()},
            "abstained": {k: v for _, log in self._logs for k, v in log.abstained.items()},
            "clipped": {k: v for _, log in self._logs for k, (v, _) in log.moved.items() if v},
            "floored": {k: v for _, log in self._logs for k, (_, v) in log.moved.items() if v},
            "retired": sorted(self._retired),
            "culprits": sorted(self._engine.server.culprits),
            "spare": self._engine.server.spare,
            "asked": len(self._logs),
            "charged": [
                [name, introduction, list(own)]
                for name, introduction, own in self._engine.server.account.news()
            ],
            "ended": len(self._out()) == self._population.clients,
        }

    def _out(self) -> frozenset[int]:
        """The clients that nobody asks any more: their budget is spent, or they were proven to cheat."""
        return self._engine.server.culprits | self._retired

    def _devices(self) -> list[Device]:
        kept = self._engine.kept
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
            profile=0 if constant is None else sum(map(self._engine.server.number_bytes, profiles)),
        )
        passes = world.passes(world.sizes) if trains else 0
        return cost.client_costs(model, world.devices, world.sizes, traffic, passes)


def _names(population: Population) -> list[str]:
    return [client_name(k) for k in range(population.clients)]
