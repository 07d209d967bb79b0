"""Sums that a key holder opens: the agreement, the sides, and the machines of client, server and key holder.

client      --input--->    server       concealed vectors, and a signature over the agreement and them
server      --request-->   key holder   the material to open, and the signatures of the clients in it
key holder  --reply--->    server       what opens the total; or the members whose keys it cannot unbox

A scheme says what differs: a part for each party (`ClientPart`, `ServerPart`, `KeyHolderPart`). The machines
hold the order of acts, which is the same for all schemes. A client records the attempt before it computes
anything, and starts with the order that it has. The server uses a client's first input and ignores a second.
At a deadline it goes on without late and silent clients, and requests nothing below the least number of
contributions. The key holder checks the signatures, records the request, and only then opens. It opens one
total for each sum of a query, in whichever attempt the server requests it, and answers the same request with
the same reply. Its record refuses every other request for the sum, in any attempt and after a restart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Protocol

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.algorithm.weighing import Weights
from securefl.core.acts import RecordAct, entering
from securefl.core.agreement import Agreement, Directory, Identity, digest, fields, u32
from securefl.core.append_map import AppendMap
from securefl.core.errors import CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.hiding import ComputeAndConceal, Conceal
from securefl.core.keys import Commitment, SecretKey, Signature
from securefl.core.machine import Expects, Machine, Need, Outgoing, Step, Work
from securefl.core.release import KEY_HOLDER, SERVER, Form, Release, require_releases
from securefl.core.wire import Limit
from securefl.storage.own_record import PartyKeys
from securefl.sums.scheme import Attempt, Opened, Unopened, required_contributions

NOT_OPENED = "Its box does not open at the key holder, so its part cannot be taken off the total."
_CONTRIBUTION = "contribution"
Keys = Sequence[SecretKey]
"""What one client boxes for the key holder."""
Evidence = Mapping[str, Any]
"""The fields of every request: the task, and each member's number, digest of its input, and signature."""


@dataclass(frozen=True, kw_only=True)
class OrderedAgreement(Agreement):
    """The agreement of one sum that a key holder opens.

    Attributes:
        ordered: the size of the ordered cohort. The least number of clients in an opened total follows from
            it.
        weights: the weights that the order states, encoded. The key holder receives both from the server
            only, but no client signs others than those of its order.
        scheme: the label of the scheme in every hash.

    Raises:
        ConfigError: as for `Agreement`.
    """

    ordered: int
    weights: bytes
    scheme: ClassVar[bytes]

    # In every attempt `ordered` follows from `weights`. An agreement made by other code binds both.
    @property
    def rules(self) -> bytes:
        return digest(self.scheme + b" rules", b"", fields(*self.pinned, u32(self.ordered), self.weights))

    @property
    def pinned(self) -> tuple[bytes, ...]:
        """The keys of other parties that the scheme binds."""
        return ()


# The client -------------------------------------------------------------------------------------


class ClientPart(Protocol):
    """How a client conceals its vectors. `form` is the form of what it sends."""

    form: ClassVar[Form]

    def conceal(self, agreed: Any, member: int, secret: SecretKey) -> Mapping[str, Conceal]:
        """The function that conceals each vector, by name. `secret` is the recorded one of the attempt."""
        ...

    def message(
        self, agreed: Any, member: int, secret: SecretKey, releases: tuple[Release, ...], own: Identity
    ) -> Any:
        """The signed input. It has the same bytes if the attempt is run again with the same releases."""
        ...


@dataclass(frozen=True)
class Concealing:
    """`secret` is the recorded secret of this attempt. `sent` is True once the client sends nothing more."""

    secret: SecretKey | None = field(default=None, repr=False)
    sent: bool = False


@dataclass(frozen=True, kw_only=True)
class OpenedClient:
    """The client's machine: it records the attempt, conceals, signs and sends.

    agreement: from its own plan, the pinned keys and its order. signers: the least number of clients in a
    total that the key holder opens.

    Results: "answered", "abstained", "missed", "refused" (on record).
    """

    identity: Identity
    agreement: Agreement
    signers: int
    part: ClientPart

    def begin(self) -> Step[Concealing]:
        # Recorded before anything is computed: after a restart the record says which attempts are barred.
        return Step(Concealing(), need=Need(entering(self.identity.name, self.agreement, self.signers)))

    def expects(self, state: Concealing) -> Expects:
        return Expects(self.agreement.header, {})

    def receive(self, state: Concealing, sender: str, message: Any) -> Step[Concealing]:
        raise RemoteProtocolError(
            f"Expected no message to a client, got {type(message).__name__}.",
            sender=sender,
            phase="concealing",
        )

    def provide(self, state: Concealing, answer: SecretKey | tuple[Release, ...] | None) -> Step[Concealing]:
        done = replace(state, sent=True)
        # The deadline came first. The computed value stays here, since the server no longer waits for it.
        if state.sent:
            return Step(state)
        if answer is None:
            return Step(done, result="refused" if state.secret is None else "abstained")
        member = self.agreement.roster.numbers[self.identity.name]
        if isinstance(answer, SecretKey):
            order = ComputeAndConceal(
                client=self.identity.name,
                header=self.agreement.header,
                conceal=self.part.conceal(self.agreement, member, answer),
            )
            return Step(replace(state, secret=answer), need=Need(order))
        if state.secret is None:
            raise LocalProtocolError("Expected the secret of this attempt before its releases, got none.")
        require_releases(answer, self.agreement.names, self.part.form)
        message = self.part.message(self.agreement, member, state.secret, answer, self.identity)
        return Step(done, out=(Outgoing((SERVER,), message),), result="answered")

    def deadline(self, state: Concealing) -> Step[Concealing]:
        return Step(state) if state.sent else Step(replace(state, sent=True), result="missed")


# The server -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unboxable:
    """A reply that names members whose boxes do not open. The key holder recorded nothing."""

    members: tuple[int, ...]


class ServerPart(Protocol):
    """How the server adds concealed vectors, and what it sends to the key holder.

    Attributes:
        phase: the phase in which the key holder is asked, for refusals.
        reply: the class of its reply.
    """

    phase: ClassVar[str]
    reply: ClassVar[type[Any]]

    def limits(self, agreed: Any) -> Mapping[type[Any], Limit]:
        """The limits of inputs and replies."""
        ...

    def signed(self, agreed: Any, member: int, said: Any) -> tuple[bytes, bytes]:
        """The digest of a client's vectors, and the text that it signed. CryptoError for another form."""
        ...

    def add(self, agreed: Any, total: Any, sender: str, said: Any) -> Any:
        """The total (None at first) with one more input. It leaves `total` as it was.

        Raises CryptoError or RemoteProtocolError for an input that cannot be added.
        """
        ...

    def request(self, agreed: Any, total: Any, evidence: Evidence) -> tuple[Any, Any]:
        """What the server keeps to open the total, and its request.

        If the request cannot be made twice, it is on record, and the recorded one is returned: after a
        restart the server sends the same request.
        """
        ...

    def read(self, agreed: Any, kept: Any, request: Any, reply: Any) -> Work | Unboxable | None:
        """The work that opens the totals. None if the key holder refused.

        The work gives the totals by name, or None for a total that is out of bounds. Raises CryptoError for
        a reply that cannot be read.
        """
        ...


@dataclass(frozen=True)
class Adding:
    """The total so far, and each member's digest and signature."""

    total: Any = field(default=None, repr=False)
    inputs: AppendMap[int, tuple[bytes, Signature]] = field(default_factory=AppendMap, repr=False)


@dataclass(frozen=True)
class Requesting:
    pass


@dataclass(frozen=True)
class Asking:
    """`named` is the reply that named the members in `bad`.

    `again` is how many more times the server sends the same request if the reply is late.
    """

    kept: Any = field(repr=False)
    request: Any
    named: Any = None
    bad: tuple[int, ...] = ()
    again: int = 2


@dataclass(frozen=True)
class Taking:
    members: tuple[int, ...]
    bad: tuple[int, ...]


@dataclass(frozen=True)
class Ended:
    pass


ServerState = Adding | Requesting | Asking | Taking | Ended


@dataclass(frozen=True, kw_only=True)
class OpenedServer:
    """The server's machine: it adds inputs, and has the key holder open the total.

    least: the least number of contributions with which it sends a request.
    """

    agreement: Agreement
    least: int
    part: ServerPart

    def begin(self) -> Step[ServerState]:
        return Step(Adding())

    def expects(self, state: ServerState) -> Expects:
        return Expects(self.agreement.header, self.part.limits(self.agreement))

    def receive(self, state: ServerState, sender: str, message: Any) -> Step[ServerState]:
        if isinstance(message, self.part.reply):
            return self._replied(state, sender, message)
        number = self.agreement.roster.numbers.get(sender)
        if number is None:
            raise RemoteProtocolError(
                f"Expected a client of the cohort, got {sender}: it is in no sum of this attempt.",
                sender=sender,
                phase=_CONTRIBUTION,
            )
        # Late and repeated inputs are ignored, not refused: honest clients and networks cause them too.
        if not isinstance(state, Adding) or number in state.inputs:
            return Step(state)
        try:
            summary, text = self.part.signed(self.agreement, number, message)
            _require_signature(self.agreement, number, message.signature, text)
            # After the signature check: an input that no member signed costs no arithmetic.
            total = self.part.add(self.agreement, state.total, sender, message)
        except CryptoError as error:
            raise RemoteProtocolError(str(error), sender=sender, phase=_CONTRIBUTION) from None
        state = Adding(total, state.inputs.having(number, (summary, message.signature)))
        everybody = len(state.inputs) == len(self.agreement.roster.members)
        return self._collected(state) if everybody else Step(state)

    def _collected(self, state: Adding) -> Step[ServerState]:
        if len(state.inputs) < self.least:
            return self._closed(f"Expected at least {self.least} contributions, got {len(state.inputs)}.")
        members = tuple(sorted(state.inputs))
        evidence = {
            "task": self.agreement.task,
            "members": members,
            "inputs": tuple(Commitment(state.inputs[member][0]) for member in members),
            "signatures": tuple(state.inputs[member][1] for member in members),
        }
        make = partial(self.part.request, self.agreement, state.total, evidence)
        return Step(Requesting(), need=Need(Work(make)))

    def _replied(self, state: ServerState, sender: str, reply: Any) -> Step[ServerState]:
        if sender != KEY_HOLDER:
            raise RemoteProtocolError(
                f"Expected a reply of the key holder, got one of {sender}.",
                sender=sender,
                phase=self.part.phase,
            )
        # A second copy of the reply that named members answers the earlier request. It is harmless.
        if not isinstance(state, Asking) or reply == state.named:
            return Step(state)
        try:
            found = self.part.read(self.agreement, state.kept, state.request, reply)
        except CryptoError as error:
            raise self._refusal(str(error)) from None
        if found is None:
            return self._closed(
                "Expected the key holder to open, got a refusal: it opened another total of this sum.",
                state.bad,
                asked=True,
            )
        if isinstance(found, Unboxable):
            return self._without(state, reply, found.members)
        return Step(Taking(state.request.members, state.bad), need=Need(found))

    def _without(self, state: Asking, reply: Any, bad: tuple[int, ...]) -> Step[ServerState]:
        """Send a second request without the members whose boxes do not open. The first was not recorded."""
        known = tuple(member for member in state.request.members if member in bad)
        # Only once: a key holder that names members repeatedly would choose the set.
        if state.named is not None or bad != known:
            raise self._refusal(
                f"Expected members of our request, ascending and named once, got {len(bad)} of another kind, "
                "or a second time: no sum opens."
            )
        left = len(state.request.members) - len(known)
        if left < self.least:
            return self._closed(f"Expected at least {self.least} contributions, got {left} that open.", known)
        request = state.request.without(known)
        return Step(
            Asking(state.kept, request, named=reply, bad=known), out=(Outgoing((KEY_HOLDER,), request),)
        )

    def provide(self, state: ServerState, answer: Any) -> Step[ServerState]:
        match state:
            case Requesting():
                kept, request = answer
                return Step(Asking(kept, request), out=(Outgoing((KEY_HOLDER,), request),))
            case Taking(bad=bad) if answer is None:
                return self._closed(
                    "Expected a sum of vectors within the bounds, got another total.", bad, asked=True
                )
            case Taking(members=members, bad=bad):
                survivors = self.agreement.roster.names(members)
                result = Opened(totals=answer, survivors=survivors, proven_cheaters=self._named(bad))
                return Step(Ended(), result=result)
        return Step(state)

    def deadline(self, state: ServerState) -> Step[ServerState]:
        """Go on with the received inputs, send the same request again, or end without a sum."""
        match state:
            case Adding():
                return self._collected(state)
            case Asking(again=again) if again:
                return Step(replace(state, again=again - 1), out=(Outgoing((KEY_HOLDER,), state.request),))
            case Asking(bad=bad) | Taking(bad=bad):
                return self._closed("Expected a reply of the key holder, got none.", bad, asked=True)
            case Requesting():
                return self._closed("Expected a request in time, got a deadline first.", asked=True)
            case Ended():
                return Step(state)

    def _named(self, bad: tuple[int, ...]) -> dict[str, str]:
        return dict.fromkeys(self.agreement.roster.names(bad), NOT_OPENED)

    def _closed(self, reason: str, bad: tuple[int, ...] = (), *, asked: bool = False) -> Step[ServerState]:
        # After the request this set may be on the key holder's record, which then refuses every other set.
        result = Unopened(reason=f"No sum: {reason}", final=asked, proven_cheaters=self._named(bad))
        return Step(Ended(), result=result)

    def _refusal(self, reason: str) -> RemoteProtocolError:
        return RemoteProtocolError(reason, sender=KEY_HOLDER, phase=self.part.phase)


def _require_signature(agreement: Agreement, member: int, signature: Signature, text: bytes) -> None:
    """Raises CryptoError, in words for the member."""
    try:
        agreement.check(member, signature, text)
    except CryptoError:
        raise CryptoError(
            f"Expected a signature on agreement and inputs, but member {member} did not sign these."
        ) from None


# The key holder ---------------------------------------------------------------------------------


class KeyHolderPart(Protocol):
    """What the key holder opens, and how.

    Attributes:
        phase: for refusals.
        boxed: whether clients box keys for the key holder, which it unboxes before it records the request.
    """

    phase: ClassVar[str]
    boxed: ClassVar[bool]

    def limits(self, agreed: Any) -> Mapping[type[Any], Limit]:
        """The limits of requests."""
        ...

    def complete(self, agreed: Any, request: Any) -> bool:
        """Whether the request has the material of each of its members."""
        ...

    def signed(self, agreed: Any, request: Any, place: int) -> bytes:
        """The text that the member at this place of the request signed."""
        ...

    def digest(self, agreed: Any, request: Any) -> bytes:
        """The digest of the request for the record."""
        ...

    def unbox(self, agreed: Any, request: Any) -> Sequence[Keys | None]:
        """The keys of each member. None for a member whose boxes do not open."""
        ...

    def open(self, agreed: Any, request: Any, keys: Sequence[Keys]) -> Any:
        """The reply to a recorded request. Its bytes are the same each time."""
        ...

    def refusal(self, agreed: Any, request: Any, bad: tuple[int, ...] = ()) -> Any:
        """The reply that opens nothing, and names these members."""
        ...


@dataclass(frozen=True)
class Ready:
    """`request` is the request in work or answered. `keys` are those of its members once they are unboxed.

    `named` is an earlier request, the reply that named members, and these members.
    """

    request: Any = None
    keys: tuple[Keys, ...] = field(default=(), repr=False)
    recorded: bool = False
    reply: Any = None
    named: tuple[Any, Any, tuple[int, ...]] | None = None


@dataclass(frozen=True, kw_only=True)
class OpenedKeyHolder:
    """The key holder's machine: it opens one request, for at least `least` members that signed one agreement.

    The server can lie about the material, and the key holder cannot see that. Each scheme says what the
    server learns by it.

    agreement: from its own plan and the pinned keys. The task is the one that the members signed.
    Results: "opened", "refused", "unused".
    """

    agreement: Agreement
    least: int
    part: KeyHolderPart

    def begin(self) -> Step[Ready]:
        return Step(Ready())

    def expects(self, state: Ready) -> Expects:
        return Expects(self.agreement.header, self.part.limits(self.agreement))

    def receive(self, state: Ready, sender: str, message: Any) -> Step[Ready]:
        """Answer the server's request. Repeated requests get the same reply, also one that named members."""
        if sender != SERVER:
            raise RemoteProtocolError(
                f"Expected a request from the server, got one from {sender}.",
                sender=sender,
                phase=self.part.phase,
            )
        if state.named is not None and message == state.named[0]:
            return self._say(state, state.named[1])
        if state.request is not None and message != state.request:
            raise self._refused(
                "Expected the same request as before, got a second one: only one total of a sum is opened."
            )
        if state.reply is not None:
            return self._say(state, state.reply)
        if state.request is not None:
            return Step(state)
        # Exactly without the named members: a server could use one bad box to leave out any client.
        if state.named is not None and message != state.named[0].without(state.named[2]):
            raise self._refused(
                f"Expected the request without the {len(state.named[2])} members that were named, got "
                f"{len(message.members)} members. Leave out the named ones alone."
            )
        # Before the record: a refused request must not use up the sum's one opening.
        self._require_quorum(message)
        state = replace(state, request=message)
        if self.part.boxed:
            return Step(state, need=Need(Work(partial(self.part.unbox, self._agreed(message), message))))
        return self._record(state)

    def _agreed(self, request: Any) -> Agreement:
        """The agreement with the task of the request. If the members signed another task, signatures fail."""
        return replace(self.agreement, task=request.task)

    def _require_quorum(self, request: Any) -> None:
        """Require enough distinct members of the roster, each with a valid signature on its own text."""
        members, count = request.members, len(request.members)
        if {len(request.inputs), len(request.signatures)} != {count} or len(request.task) != 32:
            raise self._refused(
                f"Expected a digest and a signature for each of {count} members, and a task of 32 bytes, got "
                f"{len(request.inputs)}, {len(request.signatures)} and {len(request.task)} bytes."
            )
        if not self.part.complete(self.agreement, request):
            raise self._refused(f"Expected boxes of {count} members, one a vector, got too few or too many.")
        # Ascending numbers are distinct, so no member counts twice.
        if any(low >= high for low, high in pairwise(members)) or count < self.least:
            raise self._refused(f"Expected at least {self.least} ascending members, got {members}.")
        if members[0] < 0 or members[-1] >= len(self.agreement.roster.members):
            raise self._refused(f"Expected members of the pinned roster, got {members}.")
        # Counts were checked first: a request that is too small costs no signature check. The server states
        # the task. If a member signed another task, its signature fails.
        agreed = self._agreed(request)
        try:
            for place, member in enumerate(members):
                text = self.part.signed(agreed, request, place)
                _require_signature(agreed, member, request.signatures[place], text)
        except CryptoError as error:
            raise self._refused(str(error)) from None

    def _record(self, state: Ready) -> Step[Ready]:
        order = RecordAct(
            client=KEY_HOLDER,
            header=self.agreement.header,
            questions=self.agreement.openings,
            act="open",
            digest=self.part.digest(self._agreed(state.request), state.request),
        )
        return Step(state, need=Need(order))

    def provide(self, state: Ready, answer: Any) -> Step[Ready]:
        # In reverse order: first boxes are opened, then the set is recorded, and only then is it opened.
        request, agreed = state.request, self._agreed(state.request)
        if state.recorded:
            return self._reply(state, answer, "opened")
        if self.part.boxed and not state.keys:
            return self._unboxed(state, tuple(answer))
        if answer is not True:
            return self._reply(state, self.part.refusal(agreed, request), "refused")
        work = Work(partial(self.part.open, agreed, request, state.keys))
        return Step(replace(state, keys=(), recorded=True), need=Need(work))

    def _unboxed(self, state: Ready, keys: tuple[Keys | None, ...]) -> Step[Ready]:
        """Name the members whose boxes do not open, before any record. If all open, record the set."""
        request = state.request
        good = tuple(own for own in keys if own is not None)
        if len(good) < len(keys):
            bad = tuple(member for member, own in zip(request.members, keys, strict=True) if own is None)
            reply = self.part.refusal(self._agreed(request), request, bad)
            return self._say(Ready(named=(request, reply, bad)), reply)
        return self._record(replace(state, keys=good))

    def _reply(self, state: Ready, reply: Any, result: str) -> Step[Ready]:
        return replace(self._say(replace(state, reply=reply), reply), result=result)

    @staticmethod
    def _say(state: Ready, reply: Any) -> Step[Ready]:
        return Step(state, out=(Outgoing((SERVER,), reply),))

    def deadline(self, state: Ready) -> Step[Ready]:
        return Step(state, result="unused")

    def _refused(self, reason: str) -> RemoteProtocolError:
        """The error that names the server."""
        return RemoteProtocolError(reason, sender=SERVER, phase=self.part.phase)


# The scheme -------------------------------------------------------------------------------------


class OpenedScheme(ABC):
    """A sum scheme whose key holder opens totals. A subclass says what differs."""

    key_holder_learns: ClassVar[str]

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def check(self, spec: ValueSpec, cohort: int) -> None:
        usual = Weights.usual(self._plan, spec, cohort)
        required_contributions(self._plan, [spec], cohort, usual)

    def clients(self, directory: Directory) -> OpenedClients:
        return OpenedClients(self, directory, self.client_part(directory))

    def server(self, own: PartyKeys) -> OpenedServerSide:
        return OpenedServerSide(self, own.directory, self.server_part(own))

    def key_holder(self, own: PartyKeys) -> OpenedKeyHolderSide:
        return OpenedKeyHolderSide(self, own.directory, self.key_holder_part(own))

    def agreement(self, attempt: Attempt, directory: Directory) -> OrderedAgreement:
        """The agreement of an attempt, which each party computes for itself.

        Raises ConfigError if a total does not fit its modulus, or no key holder is pinned.
        """
        return self.agreed(directory)(
            header=attempt.header,
            roster=directory.roster(attempt.cohort),
            vectors=attempt.vectors(self.headroom),
            plan=self._plan.digest(),
            task=attempt.task,
            weights=attempt.weights.encoded(),
            ordered=attempt.ordered,
        )

    def terms(self, attempt: Attempt, directory: Directory) -> dict[str, Any]:
        """The agreement of an attempt, and the least number of clients in a total that is opened.

        Raises ConfigError if the plan does not allow the attempt.
        """
        least = required_contributions(self._plan, attempt.spec, len(attempt.cohort), attempt.weights)
        return {"agreement": self.agreement(attempt, directory), "least": least}

    def headroom(self, spec: ValueSpec) -> int:
        """The room in the modulus of a total beside its clients' values."""
        return 0

    @abstractmethod
    def agreed(self, directory: Directory) -> Callable[..., OrderedAgreement]:
        """The class of agreements, with the keys that the scheme binds."""

    @abstractmethod
    def client_part(self, directory: Directory) -> Callable[[Attempt, bytes], ClientPart]:
        """Makes the part of all clients in an attempt, from the key of the attempt."""

    @abstractmethod
    def server_part(self, own: PartyKeys) -> Callable[[Attempt, bytes], ServerPart]:
        """Makes the server's part in an attempt, from the key of the attempt."""

    @abstractmethod
    def key_holder_part(self, own: PartyKeys) -> Callable[[Attempt], tuple[KeyHolderPart, bytes]]:
        """Makes the key holder's part in an attempt, and the signed key of the attempt."""


@dataclass(frozen=True)
class OpenedClients:
    """The clients' side."""

    scheme: OpenedScheme
    directory: Directory
    part: Callable[[Attempt, bytes], ClientPart]

    def machines(
        self, attempt: Attempt, identities: Sequence[Identity], key: bytes
    ) -> Mapping[str, Machine[Any]]:
        terms = self.scheme.terms(attempt, self.directory)
        signers, part = terms.pop("least"), self.part(attempt, key)
        return {
            own.name: OpenedClient(identity=own, signers=signers, part=part, **terms) for own in identities
        }


@dataclass(frozen=True)
class OpenedServerSide:
    """The server's side."""

    scheme: OpenedScheme
    directory: Directory
    part: Callable[[Attempt, bytes], ServerPart]

    def check(self, attempt: Attempt) -> None:
        self.scheme.terms(attempt, self.directory)

    def machine(self, attempt: Attempt, key: bytes) -> OpenedServer:
        return OpenedServer(**self.scheme.terms(attempt, self.directory), part=self.part(attempt, key))

    def outcome(self, machine: Any, result: Opened | Unopened) -> Opened | Unopened:
        return result


@dataclass(frozen=True)
class OpenedKeyHolderSide:
    """The key holder's side."""

    scheme: OpenedScheme
    directory: Directory
    part: Callable[[Attempt], tuple[KeyHolderPart, bytes]]

    def machine(self, attempt: Attempt) -> tuple[OpenedKeyHolder, bytes]:
        terms = self.scheme.terms(attempt, self.directory)
        part, key = self.part(attempt)
        return OpenedKeyHolder(**terms, part=part), key
