"""Two implementations in one aggregation: second clients among first ones, a second server of first ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import second_secagg as second
from support.every import every
from support.tiny_secagg import Outcome, aggregate, agreement, assert_exact, entropy, identity

from securefl.core.acts import RecordAct, entering
from securefl.core.errors import RemoteProtocolError
from securefl.core.hiding import ComputeAndConceal
from securefl.core.keys import Commitment, PublicKey, Share, Signature
from securefl.core.machine import Expects, Need, Outgoing, Step
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.engine.network import Faults
from securefl.secagg import Aborted, Agreement, Parameters, Summed, Vector
from securefl.secagg import messages as m
from securefl.secagg.packing import word

SPARSE = Parameters(
    mode="active", ordered=12, clients=12, corrupt=1, neighbours=6, threshold=4, quorum=7, least_survivors=8,
    least_degree=3, failure=0.0, security=math.inf,
)  # fmt: skip


def agreed_of(agreement: Agreement) -> second.Agreed:
    header, of = agreement.header, agreement.parameters
    return second.Agreed(
        session=header.session,
        round=header.round,
        attempt=header.attempt,
        stage=header.stage,
        members=tuple((one.name, one.identity.raw, one.channel.raw) for one in agreement.roster.members),
        active=of.mode == "active",
        ordered=of.ordered,
        corrupt=of.corrupt,
        neighbours=of.neighbours,
        threshold=of.threshold,
        quorum=of.quorum,
        least_survivors=of.least_survivors,
        least_degree=of.least_degree,
        vectors=tuple(
            second.Vector(**{key: value for key, value in vars(vector).items() if key != "sum_bound"})
            for vector in agreement.vectors
        ),
        plan=agreement.plan,
        task=agreement.task,
        sum_bounds=tuple(vector.sum_bound for vector in agreement.vectors),
    )


def test_a_room_by_public_weights_is_in_no_message_and_in_both_agreements() -> None:
    one_client = 2**30
    by_weights = Vector(name="update", length=11, bits=32, bound=one_client, sum_bound=one_client + 5)
    first = agreement(vectors=(by_weights,))
    second_one = agreed_of(first)
    assert second_one.context() == first.context
    with pytest.raises(second.Refused, match="wrap around"):
        replace(second_one, sum_bounds=())


def blaming(step: Callable[[], Step[str]], sender: str) -> Step[str]:
    try:
        return step()
    except second.Refused as problem:
        raise RemoteProtocolError(str(problem), sender=sender, phase="second") from None


class SecondClient:
    """Carries the messages of the wire to a second client and back; its state is the name of its phase."""

    def __init__(self, number: int, agreement: Agreement) -> None:
        own = identity(number)
        self.name, self.agreement = own.name, agreement
        self.inner = second.Client(
            agreed_of(agreement),
            number,
            own.signing.secret.reveal(),
            own.channel.secret.reveal(),
            entropy("replaced when it begins"),
        )
        self.tags: dict[int, bytes] = {}

    def begin(self) -> Step[str]:
        return Step("begin", need=Need(entering(self.name, self.agreement, self.inner.agreed.signers())))

    def expects(self, state: str) -> Expects:
        return Expects(self.agreement.header, m.from_server(self.agreement))

    def deadline(self, state: str) -> Step[str]:
        return Step(state)

    def recording(self, act: Any, what: bytes) -> Step[str]:
        order = RecordAct(
            client=self.name,
            header=self.agreement.header,
            questions=self.agreement.questions,
            act=act,
            digest=second.record_digest(what),
        )
        return Step(act, need=Need(order))

    def say(self, state: str, message: Any, result: str | None = None) -> Step[str]:
        return Step(state, out=(Outgoing((SERVER,), message),), result=result)

    def receive(self, state: str, sender: str, message: Any) -> Step[str]:
        return blaming(lambda: self.received(state, message), sender)

    def received(self, state: str, message: Any) -> Step[str]:
        match state, message:
            case "advertised", m.RosterClosed():
                fields = zip(message.members, message.keys, message.nonces, message.signatures, strict=True)
                self.dealing = self.inner.deal(
                    [second.Entry(n, k.raw, nonce.raw, s.raw) for n, k, nonce, s in fields]
                )
                return self.recording("deal", self.inner.CONTEXT)
            case "dealt", m.Dealt():
                return self.open(message)
            case "sent", m.Survivors():
                self.signature = self.inner.accept(message.survivors, message.dropped)
                return self.recording("sign", self.inner.accepted())
            case "signed", m.Confirmed():
                near = zip(self.inner.near(), message.tags, strict=True)
                self.tags = {n: tag.raw for n, tag in near if tag.raw}
                return Step(state)
            case "signed", m.Quorum():
                signers = zip(message.signers, message.signatures, strict=True)
                others = zip(message.others, message.inputs, strict=True)
                self.inner.confirm(
                    {n: s.raw for n, s in signers}, {n: s.raw for n, s in others}, self.tags, bytes(32)
                )
                return self.answer()
        return Step(state)

    def open(self, message: m.Dealt) -> Step[str]:
        near = [d for d in message.dealers if d in self.inner.graph[self.inner.own]]
        parts = zip(near, message.sealed, message.marks, message.evidence, strict=True)
        boxes = {d: second.Delivery(box.raw, marks.raw, evidence) for d, box, marks, evidence in parts}
        shown = self.inner.receive(message.dealers, boxes)
        if shown:
            keys = tuple(Share(second.u32(dealer) + key) for dealer, key in shown.items())
            return self.say("out", m.Complaint(keys=keys), "complained")
        text = second.input_text(self.inner.CONTEXT, self.inner.own, self.inner.dealers)
        return self.recording("mask", text)

    def answer(self) -> Step[str]:
        shares = tuple(map(Share, self.inner.unmask().values()))
        return self.say("out", m.Unmask(shares=shares), "answered")

    def mask(self, vector: int, integers: NDArray[Any]) -> NDArray[np.uint8]:
        return np.frombuffer(self.inner.mask(vector, integers.tolist()), np.uint8)

    def provide(self, state: str, answer: Any) -> Step[str]:
        match state:
            case _ if answer is None or answer is False:
                return Step("out", result="abstained")
            case "begin":
                self.inner.random = entropy("second", answer.reveal().hex())
                entry = self.inner.advertise()
                key, nonce = PublicKey(entry.mask_key), Commitment(entry.nonce)
                said = m.Advertise(key=key, nonce=nonce, signature=Signature(entry.signature))
                return self.say("advertised", said)
            case "deal":
                return self.say("dealt", shares(self.inner.own, self.dealing))
            case "mask":
                conceal = {v.name: partial(self.mask, i) for i, v in enumerate(self.agreement.vectors)}
                order = ComputeAndConceal(client=self.name, header=self.agreement.header, conceal=conceal)
                return Step("masking", need=Need(order))
            case "masking":
                signature = Signature(self.inner.sign_input())
                return self.say("sent", m.MaskedInput(releases=answer, signature=signature))
            case "sign" if self.inner.agreed.active:
                tags = tuple(map(Signature, self.inner.tags().values()))
                return self.say("signed", m.Consistent(signature=Signature(self.signature), tags=tags))
            case "sign":
                return self.answer()
        raise AssertionError(state)


def shares(own: int, dealing: second.Dealing) -> m.Shares:
    return m.Shares(
        seed=Commitment(dealing.seed_mark),
        marks=tuple(map(Commitment, dealing.marks.values())),
        sealed=tuple(Share(box) for holder, box in dealing.sealed.items() if holder != own),
        signature=Signature(dealing.signature),
    )


class SecondServer:
    """Carries the messages of the wire to a second server and back; a deadline ends a phase."""

    ORDER = (m.Advertise, m.Shares, m.MaskedInput, m.Consistent, m.Unmask)

    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self.inner = second.Server(agreed_of(agreement))
        self.asked = list(range(len(agreement.roster.members)))
        self.came: dict[int, Any] = {}

    def begin(self) -> Step[int]:
        return Step(0)

    def expects(self, state: int) -> Expects:
        return Expects(self.agreement.header, m.from_clients(self.agreement))

    def provide(self, state: int, answer: Any) -> Step[int]:
        raise AssertionError("it asks for nothing")

    def receive(self, state: int, sender: str, message: Any) -> Step[int]:
        number = self.agreement.roster.numbers[sender]
        if state == 2 and isinstance(message, m.Complaint):
            return self.complained(number, message)
        if state < len(self.ORDER) and isinstance(message, self.ORDER[state]) and number in self.asked:
            self.came[number] = message
        return self.close(state) if set(self.came) == set(self.asked) else Step(state)

    def deadline(self, state: int) -> Step[int]:
        return self.close(state) if state < len(self.ORDER) else Step(state)

    def complained(self, number: int, message: m.Complaint) -> Step[int]:
        [shown] = message.keys
        dealer = int.from_bytes(shown.raw[:4], "little")
        assert self.inner.judge(dealer, number, shown.raw[4:]) == "dealer"
        culprit = self.agreement.roster.members[dealer].name
        return Step(5, result=Aborted(phase="share", reason="bad shares", culprit=culprit))

    def close(self, state: int) -> Step[int]:
        came, self.came = dict(sorted(self.came.items())), {}
        return (self.rostered, self.dealt, self.summed, self.confirmed, self.opened)[state](came)

    def to(self, members: list[int], state: int, message: Any) -> Step[int]:
        self.asked = members
        return Step(state, out=(Outgoing(self.agreement.roster.names(members), message),))

    def rostered(self, came: dict[int, m.Advertise]) -> Step[int]:
        said = [second.Entry(n, a.key.raw, a.nonce.raw, a.signature.raw) for n, a in came.items()]
        self.inner.close(said)
        roster = m.RosterClosed(
            members=tuple(came),
            keys=tuple(a.key for a in came.values()),
            nonces=tuple(a.nonce for a in came.values()),
            signatures=tuple(a.signature for a in came.values()),
        )
        return self.to(list(came), 1, roster)

    def dealt(self, came: dict[int, m.Shares]) -> Step[int]:
        boxes = self.inner.deliver({n: self.dealing(n, said) for n, said in came.items()})
        out = []
        for holder, handed in boxes.items():
            message = m.Dealt(
                dealers=tuple(came),
                sealed=tuple(Share(box.sealed) for box in handed.values()),
                marks=tuple(Commitment(box.marks) for box in handed.values()),
                evidence=tuple(box.evidence for box in handed.values()),
            )
            out.append(Outgoing(self.agreement.roster.names([holder]), message))
        self.asked = list(came)
        return Step(2, out=tuple(out))

    def dealing(self, dealer: int, said: m.Shares) -> second.Dealing:
        holders = self.inner.holders(dealer)
        others = [holder for holder in holders if holder != dealer]
        sealed = dict(zip(others, (box.raw for box in said.sealed), strict=True)) | {dealer: b""}
        marks = dict(zip(holders, (one.raw for one in said.marks), strict=True))
        ordered = {holder: sealed[holder] for holder in holders}
        return second.Dealing(ordered, marks, said.seed.raw, said.signature.raw)

    def summed(self, came: dict[int, Any]) -> Step[int]:
        inputs = {
            n: ([one.numbers.tobytes() for one in said.releases], said.signature.raw)
            for n, said in came.items()
        }
        survivors, dropped = self.inner.take(inputs)
        message = m.Survivors(survivors=tuple(survivors), dropped=tuple(dropped))
        return self.to(survivors, 3 if self.inner.agreed.active else 4, message)

    def confirmed(self, came: dict[int, m.Consistent]) -> Step[int]:
        others = self.inner.confirmed({n: said.signature.raw for n, said in came.items()})
        message = m.Quorum(
            signers=tuple(came),
            signatures=tuple(said.signature for said in came.values()),
            others=tuple(others),
            inputs=tuple(map(Signature, others.values())),
        )
        tags = self.inner.passed_on({n: self.tags_of(n, said) for n, said in came.items()})
        out = [
            Outgoing(self.agreement.roster.names([n]), m.Confirmed(tags=self.in_order(n, of)))
            for n, of in tags.items()
        ]
        step = self.to(list(came), 4, message)
        return replace(step, out=(*out, *step.out))

    def near(self, member: int) -> list[int]:
        return [j for j in self.inner.graph[member] if j in self.inner.survivors]

    def tags_of(self, member: int, said: m.Consistent) -> dict[int, bytes]:
        return {j: tag.raw for j, tag in zip(self.near(member), said.tags, strict=True)}

    def in_order(self, member: int, of: dict[int, bytes]) -> tuple[Signature, ...]:
        return tuple(Signature(of.get(j, b"")) for j in self.near(member))

    def opened(self, came: dict[int, m.Unmask]) -> Step[int]:
        answers = {}
        for n, said in came.items():
            held = [dealer for dealer in self.inner.holders(n) if dealer in self.inner.dealers]
            answers[n] = dict(zip(held, (share.raw for share in said.shares), strict=True))
        vectors = self.agreement.vectors
        sums = zip(vectors, self.inner.sum(answers), strict=True)
        totals = {v.name: np.array(total, word(v.bits)) for v, total in sums}
        survivors = self.agreement.roster.names(self.inner.survivors)
        return Step(5, result=Summed(totals=totals, survivors=survivors))


COHORTS: dict[str, Agreement] = {
    "active": agreement(5, dropout=0.4, corrupt=0.0),
    "semi-honest": agreement(5, mode="semi-honest", dropout=0.4),
    "sparse": agreement(12, chosen=SPARSE),
}
ABSENCES = {
    "nobody": ((), ()),
    "one silent": ((0,), ()),
    "one without input": ((), (2,)),
    "both": ((0,), (2,)),
}
cohorts = pytest.mark.parametrize("agreed", COHORTS.values(), ids=list(COHORTS))
absences = pytest.mark.parametrize(("silent", "abstaining"), ABSENCES.values(), ids=list(ABSENCES))


def aggregated(
    agreed: Agreement, machines: dict[str, Any], silent: tuple[int, ...], abstaining: tuple[int, ...]
) -> Outcome:
    gone: dict[str, Any] = {client_name(number): None for number in silent}
    out = frozenset(map(client_name, abstaining))
    # The second server lets no deadline pass, so that the clock must not end a phase that is going on.
    return aggregate(agreed, machines=machines | gone, abstaining=out, faults=Faults(patience=60))


def assert_all_but(outcome: Outcome, agreed: Agreement, absent: tuple[int, ...]) -> None:
    assert_exact(agreed, outcome.server)
    assert isinstance(outcome.server, Summed)
    there = [number for number in range(len(agreed.roster.members)) if number not in absent]
    assert outcome.server.survivors == tuple(map(client_name, there))
    assert {outcome.results[client_name(number)] for number in there} == {"answered"}
    assert not outcome.traffic.rejected_from


@cohorts
@absences
@pytest.mark.parametrize("seconds", [(1,), (0, 2, 3)], ids=["one second client", "three"])
def test_second_clients_take_part_with_first_ones(
    agreed: Agreement, seconds: tuple[int, ...], silent: tuple[int, ...], abstaining: tuple[int, ...]
) -> None:
    machines = {client_name(number): SecondClient(number, agreed) for number in seconds}
    assert_all_but(aggregated(agreed, machines, silent, abstaining), agreed, silent + abstaining)


@cohorts
@absences
@pytest.mark.parametrize("seconds", [(), (1,)], ids=["first clients", "a second client too"])
def test_a_second_server_serves(
    agreed: Agreement, seconds: tuple[int, ...], silent: tuple[int, ...], abstaining: tuple[int, ...]
) -> None:
    machines: dict[str, Any] = {client_name(number): SecondClient(number, agreed) for number in seconds}
    machines[SERVER] = SecondServer(agreed)
    assert_all_but(aggregated(agreed, machines, silent, abstaining), agreed, silent + abstaining)


class Cheat(SecondClient):
    """A dealer that signs, for member 3, marks of other shares than it seals."""

    def provide(self, state: str, answer: Any) -> Step[str]:
        step = super().provide(state, answer)
        if state != "deal":
            return step
        [sent] = step.out
        inner, said = self.inner, self.dealing
        marks = said.marks | {3: bytes(64)}
        root = second.levels([second.leaf(h, marks[h], said.sealed[h]) for h in marks])[-1][0]
        text = second.dealing_text(inner.CONTEXT, inner.own, said.seed_mark, root)
        bad = replace(said, marks=marks, signature=second.sign(inner.identity, text))
        return replace(step, out=(replace(sent, message=shares(inner.own, bad)),))


@every("holder", ["first", "second"])
@every("server", ["first", "second"])
def test_a_bad_dealer_is_named_across_implementations(holder: str, server: str) -> None:
    agreed = COHORTS["active"]
    machines: dict[str, Any] = {client_name(1): Cheat(1, agreed)}
    if holder == "second":
        machines[client_name(3)] = SecondClient(3, agreed)
    if server == "second":
        machines[SERVER] = SecondServer(agreed)
    outcome = aggregated(agreed, machines, (), ())
    assert isinstance(outcome.server, Aborted)
    assert outcome.server.culprit == client_name(1)
    assert outcome.results[client_name(3)] == "complained"
