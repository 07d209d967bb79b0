"""Both implementations of secure aggregation give the bytes of secagg/*.json, and refuse what it refuses.

The first is asked through its machines where they show the answer, through the functions below elsewhere.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from reference import second_secagg
from reference.second_secagg import Refused
from support.every import every
from support.offenders import offenders
from support.tiny_secagg import Lenient, release
from vectors import make_secagg
from vectors.make_secagg import (
    COHORTS,
    FOLDER,
    SECOND,
    Given,
    changed,
    keys,
    plain,
    randomness,
    raw,
    terms_of,
)

from securefl.core import agreement
from securefl.core.agreement import digest, tagged
from securefl.core.entropy import Random
from securefl.core.errors import ConfigError, CryptoError, RemoteProtocolError
from securefl.core.keys import Commitment, PublicKey, SecretKey, Share, Signature
from securefl.core.release import SERVER, Delivered
from securefl.core.signing import AgreementKey, SigningKey
from securefl.core.wire import Header
from securefl.secagg import (
    Aborted,
    Agreement,
    Channels,
    Client,
    Identity,
    Parameters,
    Roster,
    Server,
    Vector,
    client_rounds,
)
from securefl.secagg.dealing import (
    Pair,
    _bound,
    _seal,
    judge,
    leaf_of,
    published,
    seed_mark,
    share_key,
    signed,
)
from securefl.secagg.graph import draw
from securefl.secagg.masks import apply_masks
from securefl.secagg.messages import (
    Advertise,
    Confirmed,
    Consistent,
    Dealt,
    MaskedInput,
    Quorum,
    RosterClosed,
    Shares,
    Survivors,
    Unmask,
)
from securefl.secagg.packing import pack, unpack, word
from securefl.secagg.quorum import sample_size, sampled
from securefl.secagg.server_rounds import ServerState
from securefl.secagg.shamir import combine, split
from securefl.sums.encrypted.scheme import input_digest, signed_input

STREAMS: dict[bytes, Random] = {}
"""The draws of the vectors, by the secret that a machine is given for them."""
NUMBERS = count()
PHASES = get_args(ServerState)


@pytest.fixture(autouse=True)
def _fixed_draws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client draws from a recorded secret; here that secret only names the draws of the vectors."""
    monkeypatch.setattr(client_rounds, "drawn", lambda secret, purpose: STREAMS[secret.reveal()])
    yield
    STREAMS.clear()


def load(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


FILES = ("derivations", "complaints", *(f"round_{name}" for name in COHORTS))
ACCEPTED = {one["name"]: one for name in FILES for one in load(name)}
REFUSED = load("refused")


def identity(given: Given, number: int) -> Identity:
    own, name = keys(given, number), terms_of(given)["members"][number]["name"]
    return Identity(name, SigningKey(SecretKey(own["identity"])), AgreementKey(SecretKey(own["channel"])))


def agreed(given: Given) -> Agreement:
    of = terms_of(given)
    members = len(of["members"])
    names = ("ordered", "corrupt", "neighbours", "threshold", "quorum", "least_survivors", "least_degree")
    parameters = Parameters(
        mode="active" if of["active"] else "semi-honest",
        clients=members,
        **{name: of[name] for name in names},
        failure=0.0,
        security=math.inf,
    )
    columns = ("name", "length", "bits", "bound", "ask", "again", "once", "number")
    vectors = [Vector(**dict(zip(columns, row, strict=True))) for row in of["vectors"]]
    return Agreement(
        header=Header(bytes.fromhex(of["session"]), of["round"], of["attempt"], of["stage"]),
        roster=Roster(tuple(identity(given, number).member() for number in range(members))),
        parameters=parameters,
        vectors=tuple(vectors),
        plan=bytes.fromhex(of["plan"]),
        task=bytes.fromhex(of["task"]),
    )


def machine(given: Given, number: int) -> Client:
    of = agreed(given)
    channels = Channels(identity(given, number), of.roster, of.header.session)
    return Client(agreement=of, channels=channels, policy=Lenient())


def begun(given: Given, number: int) -> tuple[Client, Any]:
    """A client that has its secret."""
    one, secret = machine(given, number), next(NUMBERS).to_bytes(32, "little")
    STREAMS[secret] = randomness(given, number)
    return one, one.provide(one.begin().state, SecretKey(secret))


def roster(entries: Iterable[dict[str, Any]]) -> RosterClosed:
    rows = [(e["number"], PublicKey(e["mask_key"]), e["nonce"], Signature(e["signature"])) for e in entries]
    members, mask_keys, nonces, signatures = zip(*rows, strict=True)
    return RosterClosed(
        members=members, keys=mask_keys, nonces=tuple(map(Commitment, nonces)), signatures=signatures
    )


def dealing_state(given: Given, number: int, entries: Any = None) -> tuple[Client, Any]:
    one, step = begun(given, number)
    rows = entries or [vars(entry) for entry in make_secagg.entries(given)]
    return one, recorded(one, one.receive(step.state, SERVER, roster(rows))).state


def recorded(one: Client, step: Any) -> Any:
    """What follows once the host has recorded the act that is asked for."""
    return one.provide(step.state, True)


def holding(given: Given, number: int) -> tuple[Client, Any]:
    one, state = dealing_state(given, number)
    held = client_rounds.Holding(closed=state.closed, dealers=tuple(given["dealers"]), pairs={}, sent=True)
    return one, held


def said(dealer: int, of: dict[str, Any]) -> Shares:
    sealed = tuple(Share(box) for holder, box in of["sealed"].items() if holder != dealer)
    marks = tuple(map(Commitment, of["marks"].values()))
    return Shares(Commitment(of["seed_mark"]), marks, sealed, Signature(of["signature"]))


def handed(of: dict[str, Any]) -> Dealt:
    boxes = of["boxes"].values()
    return Dealt(
        dealers=tuple(of["dealers"]),
        sealed=tuple(Share(box["sealed"]) for box in boxes),
        marks=tuple(Commitment(box["marks"]) for box in boxes),
        evidence=tuple(box["evidence"] for box in boxes),
    )


# The kinds of cases, answered by the first implementation -----------------------------------------------


def first_agreement(given: Given) -> Any:
    of = agreed(given)
    digests = {"parameters": of.parameters.digest(), "roster": of.roster.digest}
    questions = [(one.round, one.name, one.ask, one.again) for one in of.questions]
    return digests | {"context": of.context, "signers": of.parameters.signers, "questions": questions}


def first_channel(given: Given) -> Any:
    return machine(given, given["own"]).channels.secret(given["other"]).reveal()


def first_advertise(given: Given) -> Any:
    sent = begun(given, given["own"])[1].out[0].message
    entry = {"mask_key": sent.key.raw, "nonce": sent.nonce.raw, "signature": sent.signature.raw}
    return {"number": given["own"], **entry}


def first_close(given: Given) -> Any:
    return dealing_state(given, given["own"], raw(given)["entries"])[1].closed.context


def first_graph(given: Given) -> Any:
    seed = digest(b"graph", raw(given)["CONTEXT"])
    return dict(draw(tuple(given["members"]), given["neighbours"], seed))


def first_split(given: Given) -> Any:
    """It draws 48 bytes per coefficient, the highest power first."""
    drawn = b"".join(int(c, 16).to_bytes(48, "little") for c in reversed(given["coefficients"]))
    threshold = len(given["coefficients"]) + 1
    points = [holder + 1 for holder in given["holders"]]
    shares = split(raw(given)["secret"], points, threshold, lambda count: drawn[:count])
    return dict(zip(given["holders"], shares, strict=True))


def first_combine(given: Given) -> Any:
    shares = {holder + 1: share for holder, share in raw(given)["shares"].items()}
    return combine(shares, given["threshold"])


def under(context: bytes) -> Any:
    """All that marks take of a closed roster."""
    return SimpleNamespace(prefix=lambda purpose: tagged(purpose, context))


def first_marks(given: Given) -> Any:
    of = raw(given)
    marks = Pair(*of["opened"]).marks(under(of["CONTEXT"]), of["dealer"], of["holder"])
    return {"marks": marks.raw, "seed mark": seed_mark(of["CONTEXT"], of["dealer"], of["seed"]).raw}


def first_seal(given: Given) -> Any:
    of, (one, state) = raw(given), dealing_state(given, given["dealer"])
    pair = of["dealer"], of["holder"]
    key = share_key(state.closed, one.channels, *pair)
    assert key == share_key(state.closed, machine(given, pair[1]).channels, *pair)
    sealed = _seal(Pair(*of["opened"]), key, _bound(state.closed, *pair), lambda count: of["nonce"])
    return {"share key": key.reveal(), "sealed": sealed.raw}


def first_leaf(given: Given) -> Any:
    of = raw(given)
    return leaf_of(of["holder"], Commitment(of["marks"]), of["sealed"])


def first_encrypted(given: Given) -> Any:
    of = agreed(given)
    bare = agreement.Agreement(
        header=of.header, roster=of.roster, vectors=of.vectors, plan=of.plan, task=of.task
    )
    text = signed_input(bare, given["own"], input_digest(raw(given)["ciphertexts"]))
    return {"signed": text, "signature": identity(given, given["own"]).signing.sign(text).raw}


def first_dealing(given: Given) -> Any:
    of, (_, state) = raw(given), dealing_state(given, 0)
    checked = published(state.closed, of["dealer"], said(of["dealer"], of["dealing"]))
    text = signed(state.closed, of["dealer"], checked.dealing.seed, checked.tree.root)
    return {"signed": text, "evidence": {h: checked.evidence(h) for h in of["dealing"]["marks"]}}


def first_receive(given: Given) -> Any:
    one, state = dealing_state(given, given["own"], raw(given)["entries"])
    step = one.receive(state, SERVER, handed(raw(given)))
    shown = step.out[0].message.keys if step.result == "complained" else ()
    return {"complaints": [key.raw for key in shown]}


def first_judge(given: Given) -> Any:
    of, (_, state) = raw(given), dealing_state(given, 0)
    dealt = {of["dealer"]: published(state.closed, of["dealer"], said(of["dealer"], of["dealing"]))}
    shown = Share(of["dealer"].to_bytes(4, "little") + of["key"])
    try:
        [(_, proven)] = judge(state.closed, dealt, of["holder"], [shown])
    except CryptoError:
        return "holder"
    return "dealer" if proven else "open"


def first_keystream(given: Given) -> Any:
    words = np.zeros(given["length"], word(given["bits"]))
    apply_masks(words, given["vector"], add=[SecretKey(raw(given)["seed"])])
    return words.tolist()


def first_pack(given: Given) -> Any:
    return pack(np.array(given["values"], word(given["bits"])), given["bits"]).tobytes()


def first_unpack(given: Given) -> Any:
    packed = np.frombuffer(raw(given)["packed"], np.uint8)
    return unpack(packed, given["length"], given["bits"]).tolist()


def first_pair(given: Given) -> Any:
    _, state = dealing_state(given, given["own"])
    return state.closed.mask_seed(given["own"], state.key, given["other"]).reveal()


def first_masked(given: Given) -> Any:
    one, state = dealing_state(given, given["own"])
    step = recorded(one, one.receive(state, SERVER, handed(raw(given))))
    assert step.need is not None
    order = step.need.order
    releases = tuple(
        release(order, name, np.array(x)) for name, x in zip(order.conceal, given["x"], strict=True)
    )
    message = one.provide(step.state, releases).out[0].message
    packed = [np.asarray(sent._numbers).tobytes() for sent in releases]
    text = state.closed.input_of(given["own"], given["dealers"])
    return {"packed": packed, "signed": text, "signature": message.signature.raw}


def first_survivors(given: Given) -> Any:
    one, held = holding(given, given["own"])
    came = Survivors(survivors=tuple(given["survivors"]), dropped=tuple(given["dropped"]))
    step = one.receive(held, SERVER, came)
    assert step.need is not None
    text = held.closed.survival(given["dealers"], given["survivors"])
    signature, tags = one.channels.identity.signing.sign(text), {}
    if one.agreement.parameters.mode == "active":
        said = one.provide(step.state, True).out[0].message
        near = held.closed.surviving_neighbours(given["own"], set(given["survivors"]))
        signature, tags = said.signature, {j: tag.raw for j, tag in zip(near, said.tags, strict=True)}
    return {"signed": text, "signature": signature.raw, "record": step.need.order.digest, "tags": tags}


def first_quorum(given: Given) -> Any:
    of, (one, held) = raw(given), holding(given, given["own"])
    one = replace(one, random=lambda count: of["seed"])
    state = client_rounds.Agreeing(held=held, survivors=tuple(given["survivors"]), signed=True)
    near = held.closed.surviving_neighbours(given["own"], set(given["survivors"]))
    tags = Confirmed(tags=tuple(Signature(of["tags"].get(j, b"")) for j in near))
    state = one.receive(state, SERVER, tags).state
    came = Quorum(
        signers=tuple(of["signers"]),
        signatures=tuple(map(Signature, of["signers"].values())),
        others=tuple(of["inputs"]),
        inputs=tuple(map(Signature, of["inputs"].values())),
    )
    step = one.receive(state, SERVER, came)
    assert [type(sent.message) for sent in step.out] == [Unmask]
    return "enough"


def first_sample(given: Given) -> Any:
    members = given["members"]
    size = sample_size(len(members), given["needed"])
    return list(sampled(members, size, lambda count: raw(given)["seed"]))


def first_aggregate(given: Given) -> Any:
    of, one = raw(given), Server(agreement=agreed(given), patience=0)
    names = [member["name"] for member in COHORTS[given["cohort"]]["members"]]
    step: Any = one.begin()
    state = step.state
    for phase, sent in enumerate(messages(of, one.agreement)):
        for number, message in sent.items():
            if PHASES.index(type(state)) < phase:
                state = closed_phase(one, state)
            step = one.receive(state, names[number], message)
            state = step.state
    if step.need is None:
        step = one.deadline(state)
    outcome = stated(step.result) if step.need is None else stated(step.need.order.run())
    totals = [outcome.totals[vector.name].tolist() for vector in one.agreement.vectors]
    return {"survivors": [names.index(name) for name in outcome.survivors], "totals": totals}


def closed_phase(server: Server, state: Any) -> Any:
    step = server.deadline(state)
    stated(step.result)
    return step.state


def stated(result: Any) -> Any:
    """An abort is a refusal."""
    if isinstance(result, Aborted):
        raise CryptoError(result.reason)
    return result


def messages(of: dict[str, Any], agreed: Agreement) -> list[dict[int, Any]]:
    """Of each phase, by member."""
    advertised = {
        e["number"]: Advertise(
            key=PublicKey(e["mask_key"]), nonce=Commitment(e["nonce"]), signature=Signature(e["signature"])
        )
        for e in of["entries"]
    }
    shared = {dealer: said(dealer, parts) for dealer, parts in of["dealings"].items()}
    masked = {}
    for number, sent in of["inputs"].items():
        releases: Any = tuple(
            Delivered(vector.name, "masked", np.frombuffer(packed, np.uint8), b"")
            for vector, packed in zip(agreed.vectors, sent["packed"], strict=True)
        )
        masked[number] = MaskedInput(releases=releases, signature=Signature(sent["signature"]))
    signatures = {
        n: Consistent(signature=Signature(sent), tags=tuple(map(Signature, of["tags"][n].values())))
        for n, sent in of["signatures"].items()
    }
    answers = {n: Unmask(shares=tuple(map(Share, sent.values()))) for n, sent in of["answers"].items()}
    return [advertised, shared, masked, signatures, answers]


FIRST: dict[str, Callable[[Given], Any]] = {name: globals()[f"first_{name}"] for name in SECOND}


def test_every_kind_has_a_case() -> None:
    assert {one["kind"] for one in ACCEPTED.values()} == set(SECOND)
    assert load("cohorts") == COHORTS


def test_both_reproduce() -> None:
    for kinds in (FIRST, SECOND):
        found = {name: plain(kinds[one["kind"]](one["given"])) for name, one in ACCEPTED.items()}
        assert found == {name: one["expected"] for name, one in ACCEPTED.items()}


def test_the_second_refuses() -> None:
    def refuses(case: Given) -> None:
        base = ACCEPTED[case["base"]]
        with pytest.raises(Refused, match=re.escape(case["refusal"]["second"])):
            SECOND[base["kind"]](changed(base, case["change"]))

    assert offenders(REFUSED, refuses) == []


def test_the_first_refuses() -> None:
    def refuses(case: Given) -> None:
        base = ACCEPTED[case["base"]]
        due = (ConfigError, CryptoError, RemoteProtocolError)
        with pytest.raises(due, match=re.escape(case["refusal"]["first"])):
            FIRST[base["kind"]](changed(base, case["change"]))

    assert offenders(REFUSED, refuses) == []


@every("name", COHORTS)
def test_the_sum_is_that_of_the_plain_integers(name: str) -> None:
    of = ACCEPTED[f"aggregate {name}"]["expected"]
    for v, (_, length, bits, *_) in enumerate(COHORTS[name]["vectors"]):
        x = [make_secagg.values({"cohort": name}, n)[v] for n in of["survivors"]]
        assert of["totals"][v] == [sum(one[i] for one in x) % 2**bits for i in range(length)]


@every("moved", [1, -1, 64])
def test_a_byte_that_moves_between_marks_and_box_gives_another_leaf(moved: int) -> None:
    """One encoding, lengths in front: the same bytes cut elsewhere are another leaf, for both."""
    given = ACCEPTED["leaf"]["given"]
    cut = 2 * (64 + moved)
    whole = given["marks"] + given["sealed"]
    other = given | {"marks": whole[:cut], "sealed": whole[cut:]}
    for kinds in (FIRST, SECOND):
        assert plain(kinds["leaf"](other)) != ACCEPTED["leaf"]["expected"]


def test_a_room_by_public_weights_is_in_no_message_and_in_both_agreements() -> None:
    given, one_client = {"cohort": "five"}, 2**30
    by_weights = Vector(name="update", length=11, bits=32, bound=one_client, sum_bound=one_client + 5)
    first = replace(agreed(given), vectors=(by_weights,))
    rows = (second_secagg.Vector("update", 11, 32, one_client),)
    second = replace(make_secagg.agreed(given), vectors=rows, sum_bounds=(one_client + 5,))
    assert second.context() == first.context
    with pytest.raises(Refused, match="wrap around"):
        replace(second, sum_bounds=())
