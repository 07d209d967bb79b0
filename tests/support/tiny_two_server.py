"""A small cohort of a two-server sum, its parties driven by hand, and a key holder with a record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.algorithm.weighing import Weights
from securefl.core.acts import RecordAct
from securefl.core.agreement import Roster, Vector
from securefl.core.entropy import derived
from securefl.core.grid import Grid
from securefl.core.keys import Commitment, SecretKey, Share, Signature
from securefl.core.release import KEY_HOLDER, SERVER, Delivered
from securefl.core.signing import AgreementKey
from securefl.core.wire import Header
from securefl.storage.journal import Journal
from securefl.sums.opened import OpenedClient, OpenedKeyHolder, OpenedServer
from securefl.sums.two_server.agreement import Agreement, boxes_digest, signed_input, vectors_digest
from securefl.sums.two_server.messages import PaddedInput, PadReply, PadRequest
from securefl.sums.two_server.scheme import PaddingPart, PadsPart, UnpaddingPart
from support.hidden_plans import hidden
from support.tiny_secagg import entropy, identity, integers, release, told

SESSION = hashlib.sha256(b"a session of two servers").digest()
MEMBERS, LEAST = 6, 4
EVERYBODY = tuple(range(MEMBERS))
FEWER = EVERYBODY[:-1]
VECTORS = (
    Vector(name="update", length=11, bits=27, bound=10**6),
    Vector(name="count", length=3, bits=20, bound=100),
)
PLAN = hidden(Plan(delta=1e-5, max_rounds=9, non_private=("update", "count")), MEMBERS, sum="two-server")
SENDS = tuple(ValueSpec(name=vector.name, reduction="sum", reveals="it") for vector in VECTORS)
NOISED = replace(
    PLAN,
    adjacency="add-remove",
    noise="key-holder",
    noise_multiplier=3.0,
    adversaries=("server", "others"),
    non_private=(),
)
NOISED_SENDS = tuple(
    replace(
        one,
        sensitivity={("record", "add-remove"): 1.0},
        accumulates=True,
        grid=Grid(step=2.0**-6, bound=100.0),
    )
    for one in SENDS
)
SERVER_KEY = AgreementKey(SecretKey(entropy("the server")(32)))


def part(
    label: str = "the key holder",
    plan: Plan = PLAN,
    specs: Sequence[ValueSpec] = SENDS,
    row: Callable[[Header, str, bytes], int | None] = lambda at, name, digest: None,
) -> PadsPart:
    own = SecretKey(entropy(label)(32))
    return PadsPart(own, plan, specs, AgreementKey(derived(own, b"boxes")), row)


PART = part()


def agreement(
    attempt: int = 1,
    *,
    number: int = 1,
    stage: int = 0,
    task: str = "task",
    plan: str = "plan",
    holder: PadsPart = PART,
    vectors: tuple[Vector, ...] = VECTORS,
    **changed: Any,
) -> Agreement:
    """`changed` is changed in every vector."""
    return Agreement(
        header=Header(SESSION, number, attempt, stage),
        roster=Roster(tuple(identity(k).member() for k in EVERYBODY)),
        vectors=tuple(replace(vector, **changed) for vector in vectors),
        plan=told(plan),
        task=told(task),
        holder=holder.key.public,
        server=SERVER_KEY.public,
        ordered=MEMBERS,
        weights=Weights((1,) * MEMBERS).encoded(),
    )


def secret(member: int, number: int = 1) -> SecretKey:
    """What a client's journal holds for a round."""
    return SecretKey(entropy("round", member, number)(32))


def padded(of: Agreement, member: int, values: Mapping[str, Any] | None = None) -> Any:
    """What an honest client sends, as the server decodes it."""
    machine = client(of, member)
    step = machine.provide(machine.begin().state, secret(member, of.header.round))
    assert step.need is not None
    order = step.need.order
    given = values or {vector.name: integers(member, vector) for vector in of.vectors}
    releases = tuple(release(order, name, given[name]) for name in order.conceal)
    [envelope] = machine.provide(step.state, releases).out
    came: Any = tuple(Delivered(one.key.name, one.form, one._numbers, b"") for one in releases)
    return replace(envelope.message, releases=came)


def signed(of: Agreement, member: int, said: PaddedInput, by: int | None = None) -> PaddedInput:
    """The same vectors and boxes, with a signature that fits them."""
    came: Any = said.releases
    vectors = vectors_digest([one.numbers for one in came])
    text = signed_input(of, member, vectors, boxes_digest([box.raw for box in said.boxes]))
    return replace(said, signature=identity(member if by is None else by).signing.sign(text))


def requested(
    of: Agreement, members: Sequence[int] = EVERYBODY, changed: Mapping[int, PaddedInput] | None = None
) -> PadRequest:
    """What an honest server asks for, where some members sent what is `changed`."""
    inputs = {k: (changed or {}).get(k) or padded(of, k) for k in members}
    boxes: tuple[Share, ...] = tuple(box for k in members for box in inputs[k].boxes)
    signatures: tuple[Signature, ...] = tuple(inputs[k].signature for k in members)
    digests = [vectors_digest([one.numbers for one in inputs[k].releases]) for k in members]
    return PadRequest(
        task=of.task,
        members=tuple(members),
        boxes=boxes,
        inputs=tuple(map(Commitment, digests)),
        signatures=signatures,
    )


def expected(of: Agreement, members: Sequence[int] = EVERYBODY) -> dict[str, NDArray[np.int64]]:
    return {v.name: np.sum([integers(k, v) for k in members], axis=0) for v in of.vectors}


@dataclass
class Holder:
    """The key holder with its record; `opened` and `added` count how often its secrets were at work."""

    journal: Journal = field(default_factory=Journal)
    part: PadsPart = PART
    opened: int = 0
    added: int = 0

    def machine(self, of: Agreement) -> OpenedKeyHolder:
        return OpenedKeyHolder(agreement=of, least=LEAST, part=self.part)

    def asked(self, of: Agreement, what: PadRequest) -> PadReply:
        """A machine for the attempt, as after a restart, is shown one request."""
        machine = self.machine(of)
        return self.shown(machine, machine.begin().state, what)[1]

    def shown(self, machine: OpenedKeyHolder, state: Any, what: PadRequest) -> tuple[Any, PadReply]:
        step = machine.receive(state, SERVER, what)
        while step.need is not None:
            step = machine.provide(step.state, self.answer(step.need.order))
        [envelope] = step.out
        assert envelope.to == (SERVER,)
        return step.state, envelope.message

    def answer(self, order: Any) -> Any:
        if isinstance(order, RecordAct):
            return self.journal.record([order])[0]
        done = order.run.func.__name__
        assert done in ("unbox", "open")
        self.opened += done == "unbox"
        self.added += done == "open"
        return order.run()


def client(of: Agreement, member: int) -> OpenedClient:
    return OpenedClient(identity=identity(member), agreement=of, signers=LEAST, part=PaddingPart())


def server(of: Agreement, least: int = LEAST) -> OpenedServer:
    return OpenedServer(agreement=of, least=least, part=UnpaddingPart(SERVER_KEY))


def collected(machine: OpenedServer, inputs: Mapping[int, PaddedInput]) -> Any:
    """The step in which the server asks, after these inputs came; where some are missing, at the deadline."""
    step = machine.begin()
    for member, said in inputs.items():
        step = machine.receive(step.state, machine.agreement.roster.members[member].name, said)
    step = step if step.need else machine.deadline(step.state)
    return machine.provide(step.state, step.need.order.run()) if step.need else step


def summed(of: Agreement, inputs: Mapping[int, PaddedInput], holder: Holder, least: int = LEAST) -> Any:
    """The result of a whole sum, with the key holder asked as often as the server asks."""
    machine, other = server(of, least), replace(holder.machine(of), least=least)
    step, state = collected(machine, inputs), other.begin().state
    while step.out:
        state, reply = holder.shown(other, state, step.out[0].message)
        step = machine.receive(step.state, KEY_HOLDER, reply)
    return machine.provide(step.state, step.need.order.run()).result if step.need else step.result
