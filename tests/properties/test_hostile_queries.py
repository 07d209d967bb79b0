"""Whatever a lying server asks for, in any order, no combination of opened sums tells one client's value.

A server that lies draws whole sequences: broadcasts of its making, unequal ones, those of another query,
cohorts that differ by one client, so that histories differ, late clients, draws, sessions, restarts.
From each opened sum, all others and the values of colluding clients, a linear guess of one client's value
explains no more than the plan says (`max_client_weight`), and no combination has fewer honest values than
`min_honest`. Each client that sees totals is tried as the one who guesses, with its own values beside those.
Each rule that the bound hangs on is taken away once: then the same sequences break it.

Not played, since it is not promised (docs/threat-model.md): one model twice where training draws nothing.

The server chooses each broadcast, another one for its victim if it likes, the cohort, draws, who is late, the
query of a round's two, sessions and restarts. The clients are the product's client party, with record and
diary. Under it stands an ideal hidden sum in place of keys and masks, which `support.sequences` plays. It
opens a sum to the server if enough clients computed under one agreement and, without a key holder, signed one
set of survivors.

The clients have `WORLDS` sets of records each, of which the first counts. What a client computes from the
others tells which of its values are known without its records, and which follow from one another. Who looks
is the server, and each client that sees totals: beside those of colluders it knows values of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from typing import Any, Final
from unittest import mock

import numpy as np
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.every import every
from support.examples import examples
from support.linear_guess import fewest, share
from support.tiny_problem import tiny_problem

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientContext, ClientFunction, Contribution
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import (
    ByCount,
    ByDraws,
    CohortQuery,
    PerClient,
    Schedule,
    Sum,
    Value,
    ValueSpec,
)
from securefl.core.acts import RecordAct, entering
from securefl.core.agreement import Agreement, Directory, Identity
from securefl.core.errors import ConfigError, DataError, RemoteProtocolError
from securefl.core.hiding import ComputeAndConceal
from securefl.core.keys import SecretKey
from securefl.core.linear import LinearQuery
from securefl.core.machine import Expects, Need, Step
from securefl.core.messages import Broadcast, client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.streams import own_stream
from securefl.core.wire import Header, Limit, encode
from securefl.deployment.session_cap import SessionCap
from securefl.deployment.session_store import SessionStore
from securefl.engine.calls import QueryCall, SumCall, encode_call
from securefl.engine.drive import Packet
from securefl.engine.exchange import client
from securefl.engine.exchange.server import broadcast_of, cohort_of, order_of
from securefl.engine.party import clients as party_module
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.computing import Computing
from securefl.protocols import fltrust, stale
from securefl.protocols.adds import contributions as adds
from securefl.protocols.adds.part import Adds
from securefl.protocols.class_sums import Statistic
from securefl.protocols.client_state import digest_of, require_made_in
from securefl.protocols.compression import download, moved
from securefl.protocols.fedavg import FedAvg
from securefl.protocols.fedlog import FedLog
from securefl.protocols.lg_fedavg import LGFedAvg
from securefl.protocols.own_bodies import OwnBodies
from securefl.protocols.stc import STC
from securefl.storage.journal import Journal
from securefl.sums.masked import Masked
from securefl.sums.scheme import Attempt
from securefl.training.jobs import TrainingJob

CLIENTS, WORLDS, RECORDS, WIDTH = 6, 7, 8, 3
EVERYBODY: Final = tuple(range(CLIENTS))
NAMES: Final = tuple(map(client_name, EVERYBODY))
MOST: Final = Limit(2**20, 2**16)
Vector = NDArray[Any]


@cache
def keys() -> Mapping[str, Identity]:
    return {name: Identity.of(name, SecretKey(name.encode().rjust(32))) for name in (*NAMES, SERVER)}


@cache
def records(client: int, world: int) -> tuple[Vector, Vector]:
    rng = np.random.default_rng([client, world])
    x = rng.normal(2.0, size=(RECORDS, WIDTH))
    return x.astype(np.float32), rng.integers(0, 2, RECORDS)


# What clients compute ---------------------------------------------------------------------------


def step(start: Vector, context: ClientContext, *, drawn: bool = True) -> Vector:
    """A step of training, as little as an attack needs: from records, draws and model.

    A dead model has an entry below -3, and stays as it is. One with an entry above 3 dies of its training.
    """
    if start.min(initial=0) < -3:
        return np.zeros(len(start))
    if start.max(initial=0) > 3:
        return np.full(len(start), -8.0)
    share = context.rng.dirichlet(np.ones(RECORDS)) if drawn else np.full(RECORDS, 1 / RECORDS)
    slope = np.random.default_rng(len(start)).normal(size=(len(start), WIDTH))
    found: Vector = 0.02 * np.cos(start) * (slope @ (share @ context.x))
    return found


def trained(fit: TrainingJob) -> Vector:
    """The model after it, in place of torch's training."""
    if fit.start.shape != fit.problem.initial.shape:
        raise DataError("Expected a model of this size, got another.")
    start = fit.start.astype(np.float64)
    return (start + step(start, fit.context)).astype(np.float32)


def toy(name: str, compute: Callable[[ClientContext], Vector], **words: Any) -> ClientFunction:
    spec = ValueSpec(name=name, reduction="sum", reveals="it", reads_state="none", form="real", **words)
    return ClientFunction(spec, lambda context: Value(clear=compute(context)))


# Systems ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class System:
    """What its clients offer, the broadcasts that the server has ready, honest ones first, and plan words.

    lies: whether the server may craft broadcasts, and tell its victim another one. told: whether clients see
    its totals. colluding: the most clients that collude. sessions: to how many the owners agree. named: the
    public arrays of a query for this value, from the model that the server names.
    """

    name: str
    parts: tuple[Contribution, ...]
    shown: tuple[Vector, ...]
    lies: bool = True
    told: bool = True
    colluding: int = 1
    sessions: int = 1
    words: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    named: Callable[[str, Vector], Mapping[str, Vector]] = lambda name, model: {}
    asks: tuple[tuple[str, int], ...] = ()
    """Names of values, each with the number of its initial query, or 0."""

    @property
    def questions(self) -> tuple[tuple[str, int], ...]:
        return self.asks or tuple((part.spec.name, 0) for part in self.parts)


def _models(start: Vector) -> tuple[Vector, ...]:
    """An honest model, another one, and a dead one."""
    return start, (start * 0.5 + 0.1).astype(np.float32), _with_first(start, -4.0)


def _with_first(start: Vector, entry: float) -> Vector:
    found: Vector = start.copy()
    found[0] = entry
    return found


@cache
def problem() -> Any:
    return tiny_problem(
        width=WIDTH,
        hidden=(2,),
        outputs=2,
        clients=CLIENTS,
        records=CLIENTS * RECORDS,
        server_x=np.zeros((101, WIDTH), np.float32),
        server_y=np.zeros(101, np.int64),
        seed=30,  # whose two units fire at these records
    )


def _drawn(draws: int = 9) -> System:
    model = np.linspace(-0.5, 0.5, 4).astype(np.float32)
    part = toy("update", lambda context: step(context.broadcast, context), weighs="draws", draws=draws)
    return System("drawn", (part,), _models(model), sessions=2)


def _weighed() -> System:
    """Its server states draws, by which values weigh: two of one client are allowed if none colludes."""
    return replace(_drawn(7), name="weighed", sessions=1, words={"max_client_weight": 0.6})


def _constant() -> System:
    part = toy("count", lambda context: context.x.mean(0), schedule=Schedule(once=True), on_model=False)
    return System("constant", (part,), (np.zeros(1, np.float32),))


def _aside() -> System:
    """Of its totals nobody makes a model, in a plan of one round."""
    part = toy("mean", lambda context: context.x.mean(0), on_model=False)
    return System("aside", (part,), (np.zeros(WIDTH, np.float32),), told=False, words={"max_rounds": 1})


def _batches() -> System:
    model = np.linspace(-0.5, 0.5, 4).astype(np.float32)
    part = toy("update", lambda context: step(context.broadcast, context, drawn=False))
    words = {"fixed_batch": 3, "dropout": 0.0}
    return System("batches", (part,), _models(model), colluding=0, words=words)


def _adds() -> System:
    algorithm = Adds(fraction=1.0, initial=1.0, optimizer="sgd").build(problem())
    start, supernet = algorithm.start().broadcast, algorithm.averaged.supernet
    everything = np.ones(supernet.groups, np.bool_)

    def named(name: str, model: Vector) -> Mapping[str, Vector]:
        update = name == "update"
        return {adds.MASK: adds.packed(everything), adds.FIRST: digest_of(model)} if update else {}

    sizes = {"map": supernet.groups, "update": int(supernet.entries(everything).sum())}
    return System("ADDS", algorithm.contributions, _models(start), sizes=sizes, named=named)


def _fltrust() -> System:
    algorithm = fltrust.FLTrust(fraction=1.0).build(problem())
    return System("FLTrust", algorithm.contributions, _models(algorithm.start().broadcast))


def _stale() -> System:
    algorithm = FedAvg(fraction=1.0, stale=True).build(problem())
    words = {"public_num_examples": RECORDS, "min_records": 6, "max_records": 600, "draws": CLIENTS}
    return System("stale", algorithm.contributions, _models(algorithm.start().broadcast)[::2], words=words)


def _fedlog() -> System:
    """Its server sends what an honest one sends, in any order: no statistic yet, or one. Counts are apart."""
    bare: Any = {"sum": "masked", "delta": 1e-5, "max_rounds": 9, "corrupt": 0.0, "max_client_weight": 0.5}
    bare |= {"min_cohort_size": CLIENTS, "max_cohort_size": CLIENTS, "min_honest": 2}
    hidden = Plan(non_private=("statistic", "counts"), **bare)
    posed = replace(problem(), planned=lambda specs: hidden)
    algorithm = FedLog(body="private").build(posed)
    apart = [(part.spec.name, 0) for part in algorithm.contributions[1:]]
    statistic = np.array([24, 17, 16, 24, 15, 18], np.float32)
    return System(
        "FedLog",
        algorithm.contributions,
        (np.zeros(0, np.float32), statistic),
        lies=False,
        words={"secagg": "semi-honest"},
        sizes={"statistic": algorithm.statistic.size, "counts": posed.outputs},
        asks=(("statistic", 0), ("statistic", 0), ("statistic", 1), *apart),
    )


def _stc() -> System:
    algorithm = STC(fraction=1.0, p=0.2).build(problem())
    start = algorithm.start()
    size, first = len(start.broadcast), np.array([1, 0, 1], np.float32)
    change = np.zeros(size, np.float32)
    change[-1] = 0.01
    live, _, dead = (np.concatenate([first, model]) for model in _models(start.broadcast))
    changes = download(moved(start, change, np.zeros(size)), EVERYBODY)
    return System("STC", algorithm.contributions, (live, changes, dead), sizes={"update": size})


def _lg() -> System:
    algorithm = LGFedAvg().build(problem())
    head = algorithm.start().broadcast
    return System("LG-FedAvg", algorithm.contributions, (head, _with_first(head, 4.0)))


MADE: Final = (_drawn, _weighed, _constant, _aside, _batches, _adds, _fltrust, _stale, _fedlog, _stc, _lg)


@cache
def systems() -> Mapping[str, System]:
    return {system.name: system for system in (make() for make in MADE)}


def forget() -> None:
    """What follows from the product's code, which a test is about to change, or has changed back."""
    systems.cache_clear()
    _KNOWN.clear()


@cache
def plan_of(system: System, colluding: int) -> Plan:
    """One of the smallest cohorts that a plan allows, and of as many honest clients as these have."""
    specs = [part.spec for part in system.parts]
    words: dict[str, Any] = {
        "sum": "masked",
        "secagg": "active",
        "delta": 1e-5,
        "max_rounds": 9,
        "non_private": tuple(spec.name for spec in specs),
        "corrupt": colluding / CLIENTS,
        "dropout": 0.2,
        "max_cohort_size": CLIENTS,
        "max_client_weight": 0.5,
        "weights": {spec.name: spec.weighs for spec in specs if spec.weighs != "equal"},
        "draws": max(spec.draws for spec in specs) or None,
    }
    sums = [spec for spec in specs if spec.reduction == "sum"]
    for least, honest in product(range(2, CLIENTS + 1), range(CLIENTS, 0, -1)):
        with suppress(ConfigError):
            plan = Plan(**words | {"min_cohort_size": least, "min_honest": honest} | system.words)
            for spec, size in product(sums, (least, CLIENTS)):
                Masked(plan).check(spec, size)
            return plan
    raise LookupError("no plan")


# Sequences --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query. Masks have a bit for each client.

    ask: which of the system's questions. shown, other: the broadcast to all, and to client 0 if it differs.
    told: the model that the second query of a round is about. late: who misses the sum. on: 1 for the next
    round, 0 for another query of this one, -1 for another order of the same query. heavy: the draws of client
    0. again: whether the sum is called once more without it.
    """

    ask: int = 0
    without: int = 0
    shown: int = 0
    other: int = -1
    told: int = 0
    late: int = 0
    on: int = 1
    heavy: int = 1
    again: bool = False


@dataclass(frozen=True)
class Session:
    """A new session."""


@dataclass(frozen=True)
class Restart:
    """All clients start again, with what they have on disk."""


# The ideal sum ----------------------------------------------------------------------------------


@dataclass
class Vault:
    """What the ideal sum has of one attempt: by client its agreement and its integers, and who signed."""

    came: dict[str, tuple[Agreement, Mapping[str, Vector]]] = field(default_factory=dict)
    shown: tuple[str, ...] = ()
    signed: set[str] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class IdealClient:
    """Enters an attempt, computes, and at the deadline signs the survivors that it is shown.

    holder: whether a key holder opens the sum. Then the client is done when its input is sent.
    """

    name: str
    agreement: Agreement
    vault: Vault
    holder: bool

    def begin(self) -> Step[str]:
        return Step("entering", need=Need(entering(self.name, self.agreement, self._signers)))

    @property
    def _signers(self) -> int:
        assert self.agreement.parameters is not None
        return self.agreement.parameters.signers

    def expects(self, state: str) -> Expects:
        return Expects(self.agreement.header, {})

    def receive(self, state: str, sender: str, message: Any) -> Step[str]:
        raise RemoteProtocolError("Expected no message, got one.", sender=sender)

    def provide(self, state: str, answer: Any) -> Step[str]:
        if not answer:
            return Step("over", result="refused")
        if state == "entering":
            conceal = {one.name: np.asarray for one in self.agreement.vectors}
            order = ComputeAndConceal(client=self.name, header=self.agreement.header, conceal=conceal)
            return Step("computing", need=Need(order))
        if state == "computing":
            integers = {release.key.name: release._numbers for release in answer}
            self.vault.came[self.name] = (self.agreement, integers)
            return Step("over", result="answered") if self.holder else Step("waiting")
        self.vault.signed.add(self.name)
        return Step("over", result="answered")

    def deadline(self, state: str) -> Step[str]:
        assert self.agreement.parameters is not None
        few = len(self.vault.shown) < self.agreement.parameters.least_survivors
        if state != "waiting" or self.name not in self.vault.shown or few:
            return Step(state)
        text = repr(self.vault.shown).encode()
        questions, header = self.agreement.questions, self.agreement.header
        act = RecordAct(client=self.name, header=header, questions=questions, act="sign", digest=text)
        return Step("signing", need=Need(act))


@dataclass
class Ideal:
    """Stands for the scheme of a plan: its agreements are those of masked sums."""

    plan: Plan
    holder: bool
    vault: Vault = field(default_factory=Vault)

    def clients(self, directory: Directory) -> Ideal:
        self.directory = directory
        return self

    def machines(self, attempt: Attempt, identities: Sequence[Identity], key: bytes) -> Mapping[str, Any]:
        agreed = Masked(self.plan).agreement(attempt, self.directory)
        return {
            own.name: IdealClient(name=own.name, agreement=agreed, vault=self.vault, holder=self.holder)
            for own in identities
        }


# The play ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Opened:
    """A sum that the server has: the weight of each contributor, and its value in each world, (worlds, d)."""

    name: str
    weights: Mapping[int, float]
    values: Mapping[int, Vector]


_KNOWN: Final[dict[Any, Value]] = {}
"""Values by all that they are computed from, over all sequences."""


@dataclass
class Play:
    """A server at work on the clients of a system, of whom the last `colluding` tell it their values.

    holder: whether a key holder opens sums, as those of two servers. Else clients sign a set, as if masked.
    """

    system: System
    colluding: int = 0
    holder: bool = False
    opened: list[Opened] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = plan_of(self.system, self.colluding)
        self.ledger, self.journal = Ledger(None, self.plan.terms()), Journal()
        self.opening = Journal()  # the key holder's
        self.diary = SessionStore(clock=lambda: "")
        bare = SessionCap(self.diary, self.system.sessions, "agree", True)
        self.count = bare.count
        self.values: dict[tuple[str, int], Vector] = {}
        self.specs = {part.spec.name: _summable(part.spec) for part in self.system.parts}
        self.parts = [self._spied(part) for part in self.system.parts]
        self.sessions = 0
        self._enter()

    def run(self, operations: Sequence[Query | Session | Restart]) -> Play:
        try:
            for operation in operations:
                match operation:
                    case Query():
                        self._query(operation)
                    case Session():
                        self._enter()
                    case Restart():
                        self._start(self.party.kept)
        finally:
            self.ledger.close()
            self.journal.close()
            self.opening.close()
            self.diary.close()
        return self

    def _enter(self) -> None:
        self.sessions, self.round, self.stage, self.attempt = self.sessions + 1, 0, 0, 0
        self.session = bytes([self.sessions] * 32)
        self.diary.enter(self.session, "")
        self._start({})

    def _start(self, kept: Mapping[int, Any]) -> None:
        own = keys()
        draws = {k: own[name].training(self.session) for k, name in enumerate(NAMES)}
        with mock.patch.object(party_module, "scheme_of", partial(Ideal, holder=self.holder)):
            self.party = ClientParty(
                self.plan,
                self.parts,
                self.ledger,
                self.journal,
                {k: records(k, 0) for k in EVERYBODY},
                rng=lambda number, k, ask: own_stream(draws[k], number, k, ask),
                kept=kept,
                enrolled={name: own[name] for name in NAMES},
                count_session=self.count,
            )
            members = {name: one.member() for name, one in own.items()}
            directory = Directory(
                self.session, members[SERVER], None, lambda names: [members[name] for name in names]
            )
            self.party.enter(directory, after=self.journal.newest(self.session))
        self.round = max(self.round, self.journal.newest(self.session))

    def _spied(self, part: Contribution) -> ClientFunction:
        """It computes in all worlds, each with the state that it kept there."""

        def compute(context: ClientContext) -> Value:
            draws = context.rng.bit_generator.state
            at = (context.session, context.round, context.initial, context.number, context.client)
            sent = (context.broadcast, *context.public.values())
            asked = (self.system.name, part.spec.name, at, repr(draws), *[own.tobytes() for own in sent])
            found = []
            for world in range(WORLDS):
                found.append(self._in_world(part, context, world, asked))
                context.rng.bit_generator.state = draws
            self.values[part.spec.name, context.client] = np.stack([value.floats() for value in found])
            states = [value.new_state for value in found]
            if states[0] is None:
                return found[0]
            kept = {f"{m}|{name}": own for m, state in enumerate(states) for name, own in state.items()}
            return replace(found[0], new_state=kept)

        return ClientFunction(self.specs[part.spec.name], compute)

    def _in_world(self, part: Contribution, context: ClientContext, world: int, asked: Any) -> Value:
        begins = f"{world}|"
        kept = {name[len(begins) :]: own for name, own in context.kept.items() if name.startswith(begins)}
        key = (*asked, world, *[(name, own.tobytes()) for name, own in kept.items()])
        if (found := _KNOWN.get(key)) is None:
            x, y = records(context.client, world)
            own = replace(context, x=x, y=y, kept=kept)
            found = _KNOWN[key] = computed(part, own)
        return found

    # One query

    def _query(self, asked: Query) -> None:
        if asked.on > 0 or not self.round:
            self.round, self.stage, self.attempt = self.round + 1, 0, 0
        elif not asked.on:
            self.stage, self.attempt = self.stage + 1, 0
        else:
            self.attempt += 1
        if self.round > self.plan.max_rounds:
            return
        query = self._asked(asked)
        header = Header(self.session, self.round, self.attempt, self.stage)
        try:
            cohort = cohort_of(query) if query.sums else None
            names = [NAMES[k] for k in query.cohort]
            self.party.call(names, encode_call(header, QueryCall.of(MOST, None, cohort=cohort)))
        except RemoteProtocolError:
            return
        self._told(query, asked, header)
        if query.sums:
            called = [k for k in query.cohort if not asked.late >> k & 1]
            self._summed(query, called)
            if asked.again:
                self._summed(query, [k for k in called if k])
        self.party.settle()

    def _asked(self, asked: Query) -> CohortQuery:
        system = self.system
        name, initial = system.questions[asked.ask % len(system.questions)]
        second = name != system.questions[0][0]
        spec, shown = self.specs[name], self._shown(asked.told if second else asked.shown)
        cohort = tuple(k for k in EVERYBODY if not asked.without >> k & 1)
        size = system.sizes.get(name, self._length(name, shown))
        draws = {k: asked.heavy if k == 0 else 1 for k in cohort}
        by: Any = {"draws": ByDraws(draws), "counts": ByCount(CLIENTS * RECORDS)}.get(spec.weighs)
        if spec.reduction == "none":
            weights = LinearQuery(fltrust.cosine_bounds(len(shown)), np.eye(1, len(shown))[0])
            wanted: dict[str, Any] = {"per_client": (PerClient(spec, weights),)}
        else:
            wanted = {"sums": (Sum(spec, size),), "weights": by}
        public = system.named(name, self._shown(asked.told))
        return CohortQuery(cohort=cohort, broadcast=shown, public=public, initial=initial, **wanted)

    def _shown(self, number: int) -> Vector:
        return self.system.shown[number % len(self.system.shown)]

    def _length(self, name: str, shown: Vector) -> int:
        return WIDTH if name == "count" else len(shown)

    def _told(self, query: CohortQuery, asked: Query, header: Header) -> None:
        drive = self.party.drive
        assert drive is not None
        drive.begin()
        order, sent = encode(header, order_of(query)), broadcast_of(query)
        for k in query.cohort:
            own = sent
            if k == 0 and asked.other >= 0 and self.system.lies:
                own = Broadcast(model=self._shown(asked.other), names=sent.names, arrays=sent.arrays)
            for data in (order, encode(header, own)):
                drive.deliver(Packet(SERVER, NAMES[k], data))
        while drive.working:
            drive.work()

    def _summed(self, query: CohortQuery, called: Sequence[int]) -> None:
        """An attempt at the sum of whoever is called. The server shows one set of survivors: all it can."""
        self.attempt += 1
        header = Header(self.session, self.round, self.attempt, self.stage)
        attempt = Attempt.of(
            order_of(query),
            cohort_of(query),
            header=header,
            sums=query.sums,
            called=called,
            task=bytes(32),
        )
        vault = self.party._sums.vault = Vault()  # type: ignore[union-attr]
        try:
            self.party.call([NAMES[k] for k in called], encode_call(header, SumCall.over(called, attempt)))
        except RemoteProtocolError:
            return
        drive = self.party.drive
        assert drive is not None
        drive.begin()
        while drive.working:
            drive.work()
        same: dict[bytes, list[str]] = {}
        for name, (agreement, _) in vault.came.items():
            same.setdefault(agreement.context, []).append(name)
        if not same:
            return
        vault.shown = tuple(max(same.values(), key=len))
        agreement = vault.came[vault.shown[0]][0]
        assert agreement.parameters is not None
        if len(vault.shown) < agreement.parameters.least_survivors:
            return
        if self.holder:
            digest = agreement.context + repr(vault.shown).encode()
            act = RecordAct(
                client=KEY_HOLDER,
                header=agreement.header,
                questions=agreement.openings,
                act="open",
                digest=digest,
            )
            opens = all(self.opening.record([act]))
        else:
            drive.deadline()
            while drive.working:
                drive.work()
            opens = len(vault.signed) >= agreement.parameters.signers
        if opens:
            self._opens(query, vault)

    def _opens(self, query: CohortQuery, vault: Vault) -> None:
        [question] = query.sums
        spec = question.spec
        who = [NAMES.index(name) for name in vault.shown]
        weights = {k: self._weight(query, k) for k in who}
        values = {k: self.values[spec.name, k] for k in who}
        for k in who:  # the values that are looked at are those in the sum
            sent = vault.came[NAMES[k]][1][spec.name] * spec.grid.step
            assert np.allclose(sent, weights[k] * values[k][0], atol=2 * spec.grid.step)
        self.opened.append(Opened(spec.name, weights, values))

    def _weight(self, query: CohortQuery, client: int) -> float:
        [question] = query.sums
        match query.weights:
            case ByDraws():
                weight = query.weights.whole_weight((client,), question.spec)
                # Of a weight that the grid rounds to nothing, nothing is in the sum.
                return weight if weight * question.spec.grid.limit >= 1 else 0.0
            case ByCount(total):
                return RECORDS / total
        return 1.0

    # What it tells

    def told(self) -> Told:
        """The worst over all that was opened. A value of a colluding client is known."""
        found = Told()
        for name in {one.name for one in self.opened}:
            own = [one for one in self.opened if one.name == name]
            found = found.worse(worst(own, CLIENTS - self.colluding, told=self.system.told))
        return found

    def check(self) -> int:
        """AssertionError if a client's value is told better than the plan says; how many sums were opened."""
        found = self.told()
        assert self.plan.max_client_weight is not None
        assert self.plan.min_honest is not None
        assert found.share <= self.plan.max_client_weight + 1e-6, (self.system.name, found)
        assert found.honest >= self.plan.min_honest, (self.system.name, found)
        return len(self.opened)


def _summable(spec: ValueSpec) -> ValueSpec:
    """Maps in hidden sums are refused by another rule, which does not stand in here."""
    return replace(spec, form="discrete")


def computed(part: Any, context: ClientContext) -> Value:
    """The value of a contribution, of which the training is `trained`."""
    if not hasattr(part, "fit"):
        return part.compute(context)  # type: ignore[no-any-return]
    fit = part.fit(context)
    return part.value(context, None if fit is None else trained(fit))  # type: ignore[no-any-return]


# What opened sums tell --------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """The largest share of a value that a linear guess explains, and the fewest values in any combination."""

    share: float = 0.0
    honest: int = CLIENTS

    def worse(self, other: Told) -> Told:
        return Told(max(self.share, other.share), min(self.honest, other.honest))


def worst(opened: Sequence[Opened], honest: int, *, told: bool) -> Told:
    """The worst over all entries of these sums, of which clients 0 to `honest` - 1 do not collude.

    told: whether each of them sees the sums. Then each in turn guesses the others' values, and knows its own.
    """
    followed = follows(opened, honest)
    weights = np.array([[one.weights.get(k, 0.0) for k in range(honest)] for one in opened])
    # entries x sums x clients x unknowns; few entries differ in what is known of them
    rows = np.round(weights[:, :, None] * followed.transpose(3, 1, 0, 2), 6)
    observers = (1 - np.eye(honest) if told else np.ones((1, honest)))[:, None, :, None]
    found = Told()
    for own in {one.tobytes(): one for one in rows}.values():
        guessed = share((own * observers).reshape(len(observers), len(opened), -1))
        least = fewest(own.reshape(len(opened), -1))
        found = found.worse(Told(guessed, CLIENTS if least is None else least))
    return found


def follows(opened: Sequence[Opened], honest: int) -> Vector:
    """Of each honest client's value in each sum: what it is of the client's values in the sums before it.

    (clients, sums, sums, d). A value that its records do not move is 0 of everything. One that is no
    combination of the earlier ones, over all worlds, is 1 of itself: as unknown as if there were no others.
    """
    count, size = len(opened), next(iter(opened[0].values.values())).shape[1]
    moves = np.zeros((honest, count, WORLDS, size))
    for j, one in enumerate(opened):
        for k in set(one.values) & set(range(honest)):
            moves[k, j] = one.values[k] - one.values[k].mean(0)
    spread = np.linalg.norm(moves, axis=2)  # clients, sums, d
    least = np.maximum(1e-4 * spread.max((0, 1)), 1e-6)
    basis, made = np.zeros_like(moves), np.zeros((honest, count, count, size))
    found = np.zeros((honest, count, count, size))
    for j in range(count):
        along = np.einsum("kmd,kbmd->kbd", moves[:, j], basis)
        rest = moves[:, j] - np.einsum("kbd,kbmd->kmd", along, basis)
        left, there = np.linalg.norm(rest, axis=1), spread[:, j] > least
        fresh = there & (left > 1e-3 * spread[:, j])
        scale = np.where(fresh, 1 / np.where(fresh, left, 1), 0)
        basis[:, j] = rest * scale[:, None]
        from_earlier = np.einsum("kbd,kbcd->kcd", along, made)
        made[:, j] = -from_earlier * scale[:, None]
        made[:, j, j] = scale
        found[:, j] = np.where((there & ~fresh)[:, None], from_earlier, 0)
        found[:, j, j] = np.where(fresh, 1, found[:, j, j])
    return found


# The tests --------------------------------------------------------------------------------

SYSTEMS: Final = {
    "drawn": (20, 15),
    "weighed": (10, 3),
    "constant": (10, 2),
    "aside": (5, 1),
    "batches": (15, 1),
    "ADDS": (25, 1),
    "FLTrust": (15, 1),
    "FedLog": (20, 1),
    "stale": (15, 2),
    "STC": (10, 1),
    "LG-FedAvg": (5, 8),
}
"""How many sequences of each are played in `make test`, 150 in all, and the seed that they are drawn from."""
EACH: Final = tuple(Phase)


LATE: Final = (*[(0, 0)] * 4, *[(1, 0)] * 4, (0b11100, 0), (0b111000, 0), (0, 1), (0, 2))
"""Who is not in the cohort, and who is late. Client 5 is the one that colludes."""


def queries(system: System, ask: int | None = None) -> st.SearchStrategy[Query]:
    """Queries of any of the system's questions, or of this one of a pair."""
    last = len(system.shown) - 1
    shown = [*((k, -1) for k in range(last + 1)), (last, -1), (0, -1)]
    shown += [(last, 0), (0, last)] * (2 if ask == 0 else 1)
    questions = len(system.questions)
    return st.builds(
        lambda late, shown, rest: Query(
            without=late[0], late=late[1], shown=shown[0], other=shown[1], **rest
        ),
        st.sampled_from(LATE),
        st.sampled_from(shown),
        st.fixed_dictionaries(
            {
                "ask": st.sampled_from(range(questions)) if ask is None else st.just(ask),
                "told": st.sampled_from((0, 0, 0, last)) if ask else st.just(0),
                "on": st.sampled_from((1, 1, 1, 1, 0)) if ask is None else st.just(1 - ask),
                "heavy": st.sampled_from((1, 2, 2, 4, 2**30)) if system.name == "weighed" else st.just(1),
                "again": st.sampled_from((False, False, False, True)),
            }
        ),
    )


def sequences(system: System) -> st.SearchStrategy[list[Any]]:
    others = st.sampled_from((Session(), Session(), Restart()))
    if system.asks or len(system.parts) == 1:
        asked = queries(system)
        return st.lists(st.one_of(asked, asked, asked, asked, others), min_size=3, max_size=5)
    first, second = queries(system, 0), queries(system, 1)
    pairs = st.one_of(*[st.tuples(first, second)] * 4, st.tuples(second), st.tuples(others))
    return st.lists(pairs, min_size=1, max_size=4).map(lambda found: [one for pair in found for one in pair])


def played(name: str, times: int = 1, phases: Sequence[Phase] = EACH) -> list[Play]:
    """The sequences of this system, the same ones each time. AssertionError where one tells too much."""
    system, (count, drawn_from) = systems()[name], SYSTEMS[name]
    found: list[Play] = []

    @seed(drawn_from)
    @settings(examples(times * count), database=None, phases=phases)
    @given(st.integers(0, system.colluding), st.booleans(), sequences(system))
    def tells_no_value(colluding: int, holder: bool, operations: Any) -> None:
        play = Play(system, colluding, holder).run(operations)
        play.check()
        found.append(play)

    tells_no_value()
    return found


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_query_of_a_lying_server_tells_one_clients_value(name: str) -> None:
    plays = played(name)
    told = {play.plan.tells(spec) for play in plays for spec in play.specs.values()}
    assert told == {systems()[name].told}
    opened = [len(play.opened) for play in plays]
    if name in ("stale", "STC", "LG-FedAvg"):
        assert not sum(opened), "state that nobody agreed on is refused"
    else:  # a bound on sums that are never opened would be none
        assert sum(map(bool, opened)) >= 0.3 * len(opened), opened
        assert max(opened) > 1 or name in ("constant", "aside", "FLTrust")


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_no_query_of_many_tells_one_clients_value(name: str) -> None:
    played(name, 20)


def test_an_initial_query_after_a_round_tells_nothing_of_that_round() -> None:
    """If it were about trained bodies, it would be the others' statistics of that round, and the victim's."""
    others = Query(ask=0, without=1)
    play = Play(systems()["FedLog"]).run([others, others, Query(ask=2)])
    assert play.check() == 3


# Without one of the rules -----------------------------------------------------------------------


def nothing(*_: Any, **__: Any) -> None: ...


def out(where: Any, rule: str, instead: Any = nothing) -> AbstractContextManager[Any]:
    return mock.patch.object(where, rule, instead)


def any_model(context: ClientContext, first: Any) -> None:
    require_made_in(context, context.kept.get("first"))


_beside = Plan.beside
_training, _fit = Identity.training, OwnBodies.fit


def headed(body: OwnBodies, asked: ClientContext) -> Any:
    return _fit(body, asked) if asked.broadcast.size else None


RULES: Final[Mapping[str, tuple[tuple[str, ...], Callable[[], AbstractContextManager[Any]]]]] = {
    "kept state is refused": (("STC", "LG-FedAvg", "stale"), lambda: out(client, "require_agreed")),
    "the model of the first query, of ADDS": (("ADDS",), lambda: out(adds, "require_made_in", any_model)),
    "the model of the first query, of FLTrust": (
        ("FLTrust",),
        lambda: out(fltrust, "require_made_in", any_model),
    ),
    "the cap on sessions": (("constant",), lambda: out(SessionCap, "refusal", lambda *_: "")),
    "draws by session": (
        ("drawn",),
        lambda: out(Identity, "training", lambda self, session: _training(self, bytes(32))),
    ),
    "observers, by plans": (
        ("drawn",),
        lambda: out(Plan, "beside", lambda self, cohort, **_: _beside(self, cohort, told=False)),
    ),
    "observers, by orders": (("weighed",), lambda: out(Plan, "tells", lambda *_: False)),
    "orders": (("weighed",), lambda: out(client, "require_allowed")),
    "whole batches": (("batches",), lambda: out(client, "require_batches")),
    "once": (("constant",), lambda: out(Journal, "_elsewhere", lambda *_: False)),
    "counts apart": (("FedLog",), lambda: out(Statistic, "counts_apart", lambda self, *_: self)),
    "only initial queries are headless": (
        ("FedLog",),
        lambda: out(OwnBodies, "fit", headed),
    ),
    "stale models are kept state": (("stale",), lambda: out(stale.Cached, "reads_state", "bound")),
}


@every("rule", RULES)
def test_without_a_rule_the_same_sequences_tell_a_value(rule: str) -> None:
    names, without = RULES[rule]
    forget()
    with without():
        assert any(breaks(name) for name in names)
    forget()


def breaks(name: str) -> bool:
    try:
        played(name, phases=[Phase.generate])
    except AssertionError:
        return True
    return False


@every("holder", [False, True])
def test_two_orders_of_one_query_tell_nothing_unless_values_outlast_their_order(holder: bool) -> None:
    """What random sequences come to seldom: no sum of the first order opens, and clients have its values."""
    dead = len(systems()["drawn"].shown) - 1
    orders = [Query(shown=dead, other=0, late=2), Query(on=-1, late=2)]
    assert Play(systems()["drawn"], holder=holder).run(orders).check() == 1
    with out(Computing, "forget"), pytest.raises(AssertionError):
        Play(systems()["drawn"], holder=holder).run(orders).check()


def test_an_order_that_leaves_too_few_beside_an_observer_is_refused() -> None:
    """Random sequences come to it seldom: of six clients one weighs double, one colludes, and one is late."""
    order = Query(heavy=2, late=2)
    assert Play(systems()["weighed"], colluding=1).run([order]).check() == 0
    with out(Plan, "tells", lambda *_: False), pytest.raises(AssertionError):
        Play(systems()["weighed"], colluding=1).run([order]).check()
    assert Play(systems()["weighed"]).run([order]).check() == 1
