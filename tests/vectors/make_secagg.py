"""Writes secagg/*.json: what secure aggregation computes and what it refuses, by the second implementation.

`PYTHONPATH=tests python tests/vectors/make_secagg.py`; do so only together with a new version of the
specification. Randomness is SHAKE-256 of labels. A case is one kind of question: `SECOND` answers it here,
the first implementation in test_secagg_vectors.py. A refused case is an accepted one with a few changes.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from reference import second_secagg as second
from reference.second_secagg import Agreed, Client, Dealing, Delivery, Entry, Refused, Server, Vector, u32

FOLDER = Path(__file__).parent / "secagg"
Given = dict[str, Any]
NAMES = ("session", "round", "attempt", "stage", "active", "ordered", "corrupt", "neighbours", "threshold")


def drawn(*labels: str | int, count: int = 32) -> bytes:
    return hashlib.shake_256("/".join(map(str, labels)).encode()).digest(count)


def cohort(label: str, clients: int, *, closed: Sequence[int], **parameters: Any) -> Given:
    kinds = ("identity", "channel", "mask", "nonce", "seed")
    members = [
        {"name": f"client-{n:03d}"} | {kind: drawn(label, kind, n) for kind in kinds} for n in range(clients)
    ]
    # name, length, bits, bound, ask, again, once, number
    vectors = [
        ["update", 5, 32, 10**6, 0, 0, False, 0],
        ["count", 1, 20, 100, 0, 2, False, 3],
        ["wide", 3, 61, 2**50, 1, 0, True, 0],
        ["odd", 4, 13, 80, 0, 0, False, 0],
    ]
    place = {"session": drawn(label, "session"), "round": 7, "attempt": 1, "stage": 2}
    told = {"plan": drawn(label, "plan"), "task": drawn(label, "task")}
    found: Given = plain(
        place | parameters | told | {"members": members, "vectors": vectors, "closed": list(closed)}
    )
    return found


def plain(value: Any) -> Any:
    """As JSON has it: bytes in hexadecimal, names as strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(vars(value))
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def raw(value: Any) -> Any:
    """The inverse of `plain` for byte strings and member numbers; every string of a case is hexadecimal."""
    if isinstance(value, dict):
        return {int(k) if k.isdigit() else k: raw(v) for k, v in value.items() if k != "cohort"}
    if isinstance(value, list):
        return [raw(one) for one in value]
    return bytes.fromhex(value) if isinstance(value, str) else value


COHORTS = {
    "five": cohort(
        "five", 5, closed=range(5), active=True, ordered=5, corrupt=1, neighbours=4, threshold=4, quorum=4,
        least_survivors=4, least_degree=3,
    ),
    "sparse": cohort(
        "sparse", 12, closed=[0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11], active=True, ordered=12, corrupt=1,
        neighbours=8, threshold=2, quorum=7, least_survivors=8, least_degree=3,
    ),
    "curious": cohort(
        "curious", 4, closed=range(4), active=False, ordered=5, corrupt=0, neighbours=3,
        threshold=3, quorum=0, least_survivors=3, least_degree=2,
    ),
}  # fmt: skip


def keys(given: Given, number: int) -> dict[str, bytes]:
    member = terms_of(given)["members"][number]
    return {kind: bytes.fromhex(one) for kind, one in member.items() if kind != "name"}


def terms_of(given: Given) -> Given:
    """The cohort, with what the case changes of it."""
    return {**COHORTS[given["cohort"]], **given.get("instead", {})}


def agreed(given: Given) -> Agreed:
    of = terms_of(given)
    identity = Ed25519PrivateKey.from_private_bytes
    members = [
        (
            one["name"],
            identity(bytes.fromhex(one["identity"])).public_key().public_bytes_raw(),
            second.x25519_public(bytes.fromhex(one["channel"])),
        )
        for one in of["members"]
    ]
    rest = {name: of[name] for name in (*NAMES[1:], "quorum", "least_survivors", "least_degree")}
    digests = {name: bytes.fromhex(of[name]) for name in ("session", "plan", "task")}
    vectors = tuple(Vector(*row) for row in of["vectors"])
    return Agreed(members=tuple(members), vectors=vectors, **digests, **rest)


def randomness(given: Given, number: int) -> Callable[[int], bytes]:
    """The secrets of the cohort in the order they are drawn, then anything."""
    own = keys(given, number)
    fixed, calls = [own["mask"], own["nonce"], own["seed"]], iter(range(10**6))
    return lambda count: (
        fixed.pop(0) if fixed else drawn(given["cohort"], "rest", number, next(calls), count=count)
    )


def client(given: Given, number: int) -> Client:
    own = keys(given, number)
    return Client(agreed(given), number, own["identity"], own["channel"], randomness(given, number))


def entries(given: Given) -> list[Entry]:
    return [client(given, number).advertise() for number in COHORTS[given["cohort"]]["closed"]]


def dealt(given: Given) -> tuple[list[Client], dict[int, Dealing]]:
    clients = [client(given, number) for number in COHORTS[given["cohort"]]["closed"]]
    closed = [one.advertise() for one in clients]
    return clients, {one.own: one.deal(closed) for one in clients}


def server(given: Given) -> Server:
    one = Server(agreed(given))
    one.close(entries(given))
    return one


def ready(given: Given, number: int) -> Client:
    one = client(given, number)
    one.advertise()
    one.deal(entries(given))
    return one


# The kinds of cases ------------------------------------------------------------------------------------


def agreement(given: Given) -> Any:
    of = agreed(given)
    digests = {"parameters": of.parameter_digest(), "roster": of.roster_digest(), "context": of.context()}
    return digests | {"signers": of.signers(), "questions": of.questions()}


def channel(given: Given) -> Any:
    own, other = given["own"], given["other"]
    return second.channel_secret(agreed(given), own, keys(given, own)["channel"], other)


def advertise(given: Given) -> Any:
    return client(given, given["own"]).advertise()


def close(given: Given) -> Any:
    one = client(given, given["own"])
    one.advertise()
    one.deal([Entry(**entry) for entry in raw(given)["entries"]])
    return one.CONTEXT


def graph(given: Given) -> Any:
    return second.graph(raw(given)["CONTEXT"], given["members"], given["neighbours"])


def split(given: Given) -> Any:
    return second.split(raw(given)["secret"], given["holders"], [int(c, 16) for c in given["coefficients"]])


def combine(given: Given) -> Any:
    return second.combine(raw(given)["shares"], given["threshold"])


def marks(given: Given) -> Any:
    of = raw(given)
    both = second.marks(of["CONTEXT"], of["dealer"], of["holder"], *of["opened"])
    return {"marks": both, "seed mark": second.seed_mark(of["CONTEXT"], of["dealer"], of["seed"])}


def seal(given: Given) -> Any:
    of, one = raw(given), ready(given, given["dealer"])
    pair = of["dealer"], of["holder"]
    key = second.share_key(one.CONTEXT, one.channel_secret(pair[1]), *pair)
    sealed = second.seal(one.CONTEXT, key, *pair, of["nonce"], b"".join(of["opened"]))
    return {"share key": key, "sealed": sealed}


def dealing(given: Given) -> Any:
    of, one = raw(given), server(given)
    said = Dealing(**of["dealing"])
    one.check_dealing(of["dealer"], said)
    one.dealings = {of["dealer"]: said}
    root = second.levels(one.leaves(of["dealer"], said))[-1][0]
    text = second.dealing_text(one.CONTEXT, of["dealer"], said.seed_mark, root)
    return {"signed": text, "evidence": {h: one.box(of["dealer"], h).evidence for h in said.sealed}}


def receive(given: Given) -> Any:
    of, one = raw(given), client(given, given["own"])
    one.advertise()
    one.deal([Entry(**entry) for entry in of["entries"]])
    boxes = {dealer: Delivery(**box) for dealer, box in of["boxes"].items()}
    shown = one.receive(of["dealers"], boxes)
    return {"complaints": [u32(dealer) + key for dealer, key in shown.items()]}


def judge(given: Given) -> Any:
    of, one = raw(given), server(given)
    one.dealings = {of["dealer"]: Dealing(**of["dealing"])}
    return one.judge(of["dealer"], of["holder"], of["key"])


def leaf(given: Given) -> Any:
    of = raw(given)
    return second.leaf(of["holder"], of["marks"], of["sealed"])


def encrypted(given: Given) -> Any:
    text = second.encrypted_text(agreed(given).context_under(b""), given["own"], raw(given)["ciphertexts"])
    return {"signed": text, "signature": second.sign(keys(given, given["own"])["identity"], text)}


def keystream(given: Given) -> Any:
    return second.keystream(raw(given)["seed"], given["vector"], given["length"], given["bits"])


def pack(given: Given) -> Any:
    return second.pack(given["values"], given["bits"])


def unpack(given: Given) -> Any:
    return second.unpack(raw(given)["packed"], given["length"], given["bits"])


def pair(given: Given) -> Any:
    one = ready(given, given["own"])
    return second.pair_seed(one.CONTEXT, one.secret, one.keys[given["other"]], given["own"], given["other"])


def masked(given: Given) -> Any:
    of, one = raw(given), ready(given, given["own"])
    one.receive(of["dealers"], {dealer: Delivery(**box) for dealer, box in of["boxes"].items()})
    packed, signature = one.masked(given["x"])
    signed = second.input_text(one.CONTEXT, one.own, one.dealers)
    return {"packed": packed, "signed": signed, "signature": signature}


def survivors(given: Given) -> Any:
    one = ready(given, given["own"])
    one.dealers = given["dealers"]
    signature = one.accept(given["survivors"], given["dropped"])
    signed = second.survivors_text(one.CONTEXT, one.dealers, one.survivors)
    tags = one.tags() if one.agreed.active else {}
    return {"signed": signed, "signature": signature, "record": one.digest(), "tags": tags}


def quorum(given: Given) -> Any:
    of, one = raw(given), ready(given, given["own"])
    one.dealers, one.survivors = given["dealers"], given["survivors"]
    one.confirm(of["signers"], of["inputs"], of["tags"], of["seed"])
    return "enough"


def sample(given: Given) -> Any:
    size = second.sample_size(len(given["members"]), given["needed"])
    return second.sample(raw(given)["seed"], given["members"], size)


def aggregate(given: Given) -> Any:
    of, one = raw(given), Server(agreed(given))
    one.close([Entry(**entry) for entry in of["entries"]])
    one.deliver({dealer: Dealing(**said) for dealer, said in of["dealings"].items()})
    one.take({number: (said["packed"], said["signature"]) for number, said in of["inputs"].items()})
    if one.agreed.active:
        one.confirmed(of["signatures"])
        one.passed_on(of["tags"])
    return {"survivors": one.survivors, "totals": one.sum(of["answers"])}


SECOND: dict[str, Callable[[Given], Any]] = {
    of.__name__: of
    for of in (
        agreement, channel, advertise, close, graph, split, combine, marks, seal, leaf, dealing,
        receive, judge, encrypted, keystream, pack, unpack, pair, masked, survivors, quorum, sample,
        aggregate,
    )
}  # fmt: skip


# The cases ---------------------------------------------------------------------------------------------


def case(name: str, kind: str, **given: Any) -> Given:
    asked = plain(given)
    return {"name": name, "kind": kind, "given": asked, "expected": plain(SECOND[kind](asked))}


def derivations() -> list[Given]:
    context, secret = drawn("context", count=104), drawn("secret")
    coefficients = [
        f"{int.from_bytes(drawn('coefficient', n, count=64)) % second.PRIME:066x}" for n in range(3)
    ]
    opened = [drawn("salt", n) + drawn("share", n) + b"\0" for n in range(2)]
    found = [case(f"agreement of {name}", "agreement", cohort=name) for name in COHORTS]
    found += [
        case("channel secret", "channel", cohort="five", own=1, other=3),
        case("channel secret of the other", "channel", cohort="five", own=3, other=1),
        *[case(f"advertise of {name}", "advertise", cohort=name, own=1) for name in COHORTS],
        *[case(f"close {n}", "close", cohort=n, own=2, entries=entries({"cohort": n})) for n in COHORTS],
        case("graph, complete", "graph", CONTEXT=context, members=[0, 2, 3, 7], neighbours=3),
        case("graph, sparse", "graph", CONTEXT=context, members=[*range(3), *range(4, 16)], neighbours=6),
        case("graph, one ring", "graph", CONTEXT=context, members=[1, 2, 5, 7], neighbours=2),
        case("split", "split", secret=secret, holders=[0, 2, 3, 9], coefficients=coefficients[:2]),
        case(
            "split, highest",
            "split",
            secret=b"\xff" * 32,
            holders=[0, 1, 2, 2**20],
            coefficients=coefficients,
        ),
        case("marks", "marks", CONTEXT=context, dealer=3, holder=1, opened=opened, seed=secret),
        case("seal", "seal", cohort="five", dealer=3, holder=1, nonce=bytes(range(12)), opened=opened),
        case("leaf", "leaf", holder=3, marks=drawn("marks", count=64), sealed=drawn("box", count=158)),
        case("leaf of the dealer itself", "leaf", holder=3, marks=drawn("marks", count=64), sealed=b""),
        *[
            case(f"sample {name}", "sample", seed=secret, members=list(range(listed)), needed=needed)
            for name, listed, needed in (
                ("of a large cohort", 750, 400),
                ("of 0.8 n at 10 % corrupt", 800, 551),
                ("of all that are needed", 23, 19),
                ("where neighbours suffice", 23, 0),
                ("of one", 5, 1),
            )
        ],
        case("encrypted", "encrypted", cohort="five", own=2, ciphertexts=[drawn("one"), b"", drawn("two")]),
        *[case(f"pair seed of {o}", "pair", cohort="sparse", own=o, other=11 - o) for o in (1, 10)],
        case("keystream, 32 bits", "keystream", seed=secret, vector=0, length=9, bits=32),
        case("keystream, 13 bits", "keystream", seed=secret, vector=2**33, length=9, bits=13),
        case("keystream, 33 bits", "keystream", seed=secret, vector=3, length=5, bits=33),
    ]
    shares = found[[one["name"] for one in found].index("split")]["expected"]
    found.append(
        case("combine", "combine", shares={int(h): bytes.fromhex(s) for h, s in shares.items()}, threshold=3)
    )
    for bits in (8, 13, 20, 32, 33, 61, 64):
        values = [int.from_bytes(drawn("value", bits, n, count=8)) % 2**bits for n in range(11)]
        found.append(case(f"pack, {bits} bits", "pack", values=values, bits=bits))
        packed = second.pack(values, bits)
        found.append(case(f"unpack, {bits} bits", "unpack", packed=packed, length=11, bits=bits))
    return found


def values(given: Given, number: int) -> list[list[int]]:
    """A client's integers; the first one is at the bound."""
    found = []
    for name, length, _, bound, *_ in COHORTS[given["cohort"]]["vectors"]:
        words = [int.from_bytes(drawn("x", name, number, n, count=8)) for n in range(length - 1)]
        found.append([-bound if number % 2 else bound, *[w % (2 * bound + 1) - bound for w in words]])
    return found


def round_of(name: str, silent: int, missing: Sequence[int]) -> list[Given]:
    """One aggregation in which `silent` does not deal and `missing` send no input."""
    given = {"cohort": name}
    clients, dealings = dealt(given)
    clients = [one for one in clients if one.own != silent]
    dealings = {dealer: said for dealer, said in dealings.items() if dealer != silent}
    one = server(given)
    boxes = one.deliver(dealings)
    found, inputs, signed, answers, tags = [], dict[int, Given](), {}, {}, {}
    for client in clients:
        client.receive(one.dealers, boxes[client.own])
        if client.own not in missing:
            packed, signature = client.masked(values(given, client.own))
            inputs[client.own] = {"packed": packed, "signature": signature}
    alive, dropped = one.take({n: (said["packed"], said["signature"]) for n, said in inputs.items()})
    for client in clients:
        if client.own in alive:
            signed[client.own] = client.accept(alive, dropped)
            tags[client.own] = client.tags() if client.agreed.active else {}
    # The highest survivor does not sign where the quorum holds without it.
    signers = dict(list(signed.items())[: max(one.agreed.quorum, len(signed) - 1)])
    others = one.confirmed(signers) if one.agreed.active else {}
    tags = {n: of for n, of in tags.items() if n in signers and one.agreed.active}
    for client in clients:
        if client.own in (signers if one.agreed.active else alive):
            answers[client.own] = client.unmask()
    own, shown = alive[0], {"dealers": one.dealers, "survivors": alive}
    found = [
        case(f"dealing in {name}", "dealing", cohort=name, dealer=own, dealing=dealings[own]),
        case(
            f"receive in {name}", "receive", cohort=name, own=own, dealers=one.dealers, boxes=boxes[own],
            entries=entries(given),
        ),
        *[
            case(
                f"masked by {n} in {name}", "masked", cohort=name, own=n, dealers=one.dealers, boxes=boxes[n],
                x=values(given, n),
            )
            for n in (alive[0], alive[-1])
        ],
        case(f"survivors in {name}", "survivors", cohort=name, own=own, dropped=dropped, **shown),
        case(
            f"aggregate {name}", "aggregate", cohort=name, entries=entries(given), dealings=dealings,
            inputs=inputs, signatures=signers if one.agreed.active else {}, tags=tags,
            answers=answers,
        ),
    ]  # fmt: skip
    if one.agreed.active:
        # One that a silent survivor is a neighbour of, where there is one.
        own = next((n for silent in others for n in one.graph[silent] if n in signers), own)
        mine = one.passed_on(tags)[own]
        whole = shown | {"signers": signers, "inputs": others, "tags": mine, "seed": drawn("sample", name)}
        found.append(case(f"quorum in {name}", "quorum", cohort=name, own=own, **whole))
        found += unlike(name, own, whole)
    return found


def unlike(name: str, own: int, whole: Given) -> list[Given]:
    """The same quorum where tags do not hold and signatures do, and where nobody looks at a false one."""
    cast = {"cohort": name, "own": own, **whole}
    none = case(f"quorum in {name} without tags", "quorum", **cast | {"tags": {}})
    false = {n: flip(tag) for n, tag in whole["tags"].items()}
    tagged = case(f"quorum in {name} with false tags", "quorum", **cast | {"tags": false})
    unseen = {n: flip(one) if n in whole["tags"] else one for n, one in whole["signers"].items()}
    by_tags = case(f"quorum in {name}, tags instead of signatures", "quorum", **cast | {"signers": unseen})
    found = [none, tagged, by_tags]
    rest, drawn_of = sampled_in(cast)
    if rest != drawn_of:
        outside = {
            n: flip(one) if n in rest and n not in drawn_of else one for n, one in whole["signers"].items()
        }
        title = f"quorum in {name}, false outside of the sample"
        found.append(case(title, "quorum", **cast | {"signers": outside}))
    return found


def sampled_in(cast: Given) -> tuple[list[int], list[int]]:
    """The signers of whom a sample is drawn, and the sample."""
    of = agreed(cast)
    near = [*ready(cast, cast["own"]).graph[cast["own"]], cast["own"]]
    rest = sorted(int(n) for n in cast["signers"] if int(n) not in near)
    size = second.sample_size(len(rest), of.quorum - (len(cast["signers"]) - len(rest)))
    seed = cast["seed"] if isinstance(cast["seed"], bytes) else bytes.fromhex(cast["seed"])
    return rest, sorted(second.sample(seed, rest, size))


def flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def complaints() -> list[Given]:
    """Dealer 3 seals for holder 1 what does not match its marks, and signs it."""
    given = {"cohort": "five"}
    clients, dealings = dealt(given)
    found = []
    context, holders = clients[3].CONTEXT, list(range(5))
    key = second.share_key(context, clients[1].channel_secret(3), 3, 1)
    good = second.unseal(context, key, 3, 1, dealings[3].sealed[1])
    large = (good[0], good[1][:32] + second.PRIME.to_bytes(33, "little"))
    for name, opened, marked in (
        ("shares of another", (good[1], good[0]), dealings[3].marks[1]),
        ("a share not below the prime", large, second.marks(context, 3, 1, *large)),
        ("a box that does not open", None, dealings[3].marks[1]),
        ("shares that are right", good, dealings[3].marks[1]),
    ):
        sealed = bytes(158)
        if opened:
            sealed = second.seal(context, key, 3, 1, bytes(12), b"".join(opened))
        said = resigned(given, 3, dataclasses.replace(
            dealings[3], sealed=dealings[3].sealed | {1: sealed}, marks=dealings[3].marks | {1: marked},
        ), context, holders)  # fmt: skip
        one = server(given)
        boxes = one.deliver(dealings | {3: said})
        dealers = one.dealers
        found.append(
            case(
                f"receive {name}", "receive", cohort="five", own=1, dealers=dealers, boxes=boxes[1],
                entries=entries(given),
            )
        )  # fmt: skip
        found.append(case(f"judge {name}", "judge", cohort="five", dealer=3, holder=1, dealing=said, key=key))
    return found


def resigned(given: Given, dealer: int, said: Dealing, context: bytes, holders: Sequence[int]) -> Dealing:
    root = second.levels([second.leaf(h, said.marks[h], said.sealed[h]) for h in holders])[-1][0]
    text = second.dealing_text(context, dealer, said.seed_mark, root)
    return dataclasses.replace(said, signature=second.sign(keys(given, dealer)["identity"], text))


# What is refused ---------------------------------------------------------------------------------------


def changed(base: Given, changes: Sequence[tuple[Sequence[str | int], Any]]) -> Given:
    """The given of `base` with values put in some places; None takes the place away."""
    given: Given = copy.deepcopy(base["given"])
    for places, value in changes:
        inside: Any = given
        for place in places[:-1]:
            inside = inside[place]
        if value is None:
            del inside[places[-1]]
        else:
            inside[places[-1]] = value
    return given


def flipped(text: str, byte: int = 0) -> str:
    data = bytearray.fromhex(text)
    data[byte] ^= 1
    return data.hex()


def refused(accepted: Sequence[Given]) -> list[Given]:
    by = {one["name"]: one for one in accepted}

    def g(name: str) -> Any:
        return by[name]["given"]

    found: list[Given] = []
    odd = [*COHORTS["five"]["vectors"][:3], ["odd", 4, 13, 820, 0, 0, False, 0]]
    twice = [*COHORTS["five"]["members"][:4], COHORTS["five"]["members"][3] | {"name": "client-004"}]

    def bad(name: str, base: str, first: str, reason: str, *changes: tuple[Sequence[str | int], Any]) -> None:
        plainly = plain(changes)
        try:
            SECOND[by[base]["kind"]](changed(by[base], plainly))
        except Refused as problem:
            said = str(problem)
        else:
            said = "nothing"
        if reason not in said:
            raise AssertionError(f"{name}: expected the refusal {reason!r}, got {said!r}")
        found.append(
            {"name": name, "base": base, "change": plainly, "refusal": {"first": first, "second": reason}}
        )

    name = "agreement of five"
    bad(
        "too low a threshold", name, "a threshold of at least 4", "threshold", (["instead"], {"threshold": 3})
    )
    bad("too low a quorum", name, "a quorum of at least 4", "quorum", (["instead"], {"quorum": 3}))
    bad("too few least survivors", name, "at least 4 survivors", "least survivors",
        (["instead"], {"least_survivors": 3}))  # fmt: skip
    bad(
        "a sum that could wrap around",
        name,
        "got the 13 bits",
        "wrap around",
        (["instead"], {"vectors": odd}),
    )
    doubled = [*COHORTS["five"]["vectors"], COHORTS["five"]["vectors"][0]]
    bad("a vector twice", name, "distinct names", "a vector twice", (["instead"], {"vectors": doubled}))
    bad("more clients than were ordered", name, "clients that were ordered", "were ordered",
        (["instead"], {"ordered": 4}))  # fmt: skip
    for digest in ("plan", "task"):
        bad(f"a short digest of the {digest}", name, "digests of plan and task", "32 bytes",
            (["instead"], {digest: COHORTS["five"][digest][2:]}))  # fmt: skip
    bad("one key for two members", name, "distinct keys", "a key twice", (["instead"], {"members": twice}))
    bad("members out of order", name, "in ascending order", "do not ascend",
        (["instead"], {"members": COHORTS["five"]["members"][::-1]}))  # fmt: skip

    five = g("close five")["entries"]
    later = agreed({"cohort": "five"})
    other = second.advertise_text(
        dataclasses.replace(later, attempt=0).context(),
        1,
        *(bytes.fromhex(five[1][k]) for k in ("mask_key", "nonce")),
    )
    replay = second.sign(keys(g("close five"), 1)["identity"], other)
    for title, foreign in others(later).items():
        text = second.advertise_text(
            foreign.context(), 1, *(bytes.fromhex(five[1][k]) for k in ("mask_key", "nonce"))
        )
        signature = second.sign(keys(g("close five"), 1)["identity"], text)
        bad(f"a key signed for {title}", "receive in five", "did not sign this key", "does not hold",
            (["entries", 1, "signature"], signature))  # fmt: skip
    fourth = second.sign(keys(g("close five"), 4)["identity"], second.advertise_text(
        later.context(), 1, *(bytes.fromhex(five[1][k]) for k in ("mask_key", "nonce"))
    ))  # fmt: skip
    unsigned = "did not sign this key"
    for title, signature in (("a replayed attempt", replay), ("an entry of another identity", fourth)):
        change = (["entries", 1, "signature"], signature)
        bad(title, "receive in five", unsigned, "does not hold", change)
        bad(
            f"{title} at the server",
            "aggregate five",
            "not that of the expected key",
            "does not hold",
            change,
        )
    bad("a key that nobody signed", "receive in five", unsigned, "does not hold",
        (["entries", 1, "mask_key"], five[3]["mask_key"]))  # fmt: skip
    bad("a short signature", "close five", unsigned, "64 bytes", (["entries", 1, "signature"], replay[:63]))
    bad(
        "a foreign member",
        "close five",
        "of the pinned roster",
        "pinned roster",
        (["entries", 4, "number"], 5),
    )
    bad("a member twice", "close five", "ascending", "ascend", (["entries", 1], five[0]))
    bad(
        "a descending roster",
        "close five",
        "ascending",
        "ascend",
        (["entries"], [five[k] for k in (1, 0, 2, 3, 4)]),
    )
    bad("a short roster", "close five", "at least 4 members", "too short", (["entries"], five[:3]))
    bad(
        "another entry of one's own",
        "close five",
        "our own key",
        "own entry",
        (["entries", 2, "nonce"], bytes(32)),
    )
    bad("one's own entry left out", "close five", "our own key", "own entry", (["entries", 2], None))
    bad("a nonce cut into the key", "close five", unsigned, "32 bytes",
        (["entries", 1, "mask_key"], five[1]["mask_key"] + five[1]["nonce"][:2]),
        (["entries", 1, "nonce"], five[1]["nonce"][2:]))  # fmt: skip

    shares = g("combine")["shares"]
    prime = second.PRIME.to_bytes(33, "little")
    top = (second.PRIME - 1).to_bytes(33, "little")
    bad("too few shares", "combine", "Expected 5 shares", "fewer shares", (["threshold"], 5))
    bad(
        "a share of no field element",
        "combine",
        "below the prime",
        "below the prime",
        (["shares", "0"], prime),
    )
    bad("a short share", "combine", "33 bytes", "33 bytes", (["shares", "0"], shares["0"][:-2]))
    bad("a secret of 33 bytes", "combine", "no secret", "no secret",
        *[(["shares", h], top) for h in ("0", "2", "3")])  # fmt: skip

    packed = bytes.fromhex(g("unpack, 13 bits")["packed"])
    high = packed[:-1] + bytes([packed[-1] | 0x80])
    bad(
        "bits after the last value",
        "unpack, 13 bits",
        "after the last value",
        "after the last",
        (["packed"], high),
    )
    bad(
        "a byte too many",
        "unpack, 13 bits",
        "Expected 18 bytes",
        "wrong length",
        (["packed"], packed + b"\0"),
    )
    bad("a byte too few", "unpack, 13 bits", "Expected 18 bytes", "wrong length", (["packed"], packed[:-1]))

    name, said = "dealing in five", g("dealing in five")["dealing"]
    sealed, marked = said["sealed"], said["marks"]
    wrong = "not that of the expected key"
    bad(
        "a short signature of a dealing",
        name,
        wrong,
        "64 bytes",
        (["dealing", "signature"], said["signature"][:-2]),
    )
    bad("a dealing of another dealer", name, wrong, "does not hold", (["dealing"], plain(other_dealing())))
    bad("swapped boxes", name, wrong, "does not hold",
        (["dealing", "sealed", "2"], sealed["3"]), (["dealing", "sealed", "3"], sealed["2"]))  # fmt: skip
    bad(
        "a changed mark of the dealer itself",
        name,
        wrong,
        "does not hold",
        (["dealing", "marks", "0"], flipped(marked["0"])),
    )
    bad(
        "a changed seed mark",
        name,
        wrong,
        "does not hold",
        (["dealing", "seed_mark"], flipped(said["seed_mark"])),
    )
    bad("a short box", name, "of one length", "158 bytes", (["dealing", "sealed", "2"], sealed["2"][:-2]))
    bad("a box missing", name, "Expected shares for", "holders",
        (["dealing", "sealed", "2"], None), (["dealing", "marks", "2"], None))  # fmt: skip

    name, boxes = "receive in five", g("receive in five")["boxes"]
    box = boxes["2"]
    forged = "did not sign these shares"
    bad(
        "a box the server altered",
        name,
        forged,
        "does not hold",
        (["boxes", "2", "sealed"], flipped(box["sealed"])),
    )
    bad(
        "marks the server altered",
        name,
        forged,
        "does not hold",
        (["boxes", "2", "marks"], flipped(box["marks"], 40)),
    )
    bad("an altered box with altered evidence", name, forged, "does not hold",
        (["boxes", "2", "sealed"], flipped(box["sealed"])),
        (["boxes", "2", "evidence"], flipped(box["evidence"], 100)))  # fmt: skip
    bad("an altered box with a short signature", name, forged, "wrong length",
        (["boxes", "2", "sealed"], flipped(box["sealed"])),
        (["boxes", "2", "evidence"], box["evidence"][2:]))  # fmt: skip
    for title, cut in (("a byte of the box among the marks", 2), ("a byte of the marks in the box", -2)):
        joined = box["marks"] + box["sealed"]
        bad(title, name, forged, "wrong length", (["boxes", "2", "marks"], joined[: 128 + cut]),
            (["boxes", "2", "sealed"], joined[128 + cut :]))  # fmt: skip
    bad(
        "the box of a neighbour missing",
        name,
        "Expected the shares of our",
        "neighbours",
        (["boxes", "2"], None),
    )
    bad("oneself no dealer", name, "us among them", "itself", (["dealers"], [1, 2, 3, 4]))
    bad("too few dealers", name, "or more ascending", "too few", (["dealers"], [0, 1, 2]))

    overlap, name = "both survive and drop", "survivors in five"
    bad("overlapping survivors", name, overlap, "overlap", (["dropped"], [0, 3]))
    bad("a dealer missing", name, "somebody is missing", "make up", (["dropped"], []))
    bad(
        "a stranger among the survivors",
        name,
        "ascending dealers",
        "make up",
        (["survivors"], [0, 1, 2, 4, 7]),
    )
    bad("descending survivors", name, "ascending dealers", "ascend", (["survivors"], [1, 0, 2, 4]))
    bad("oneself dropped", name, "not among the survivors", "itself",
        (["survivors"], [1, 2, 3, 4]), (["dropped"], [0]))  # fmt: skip
    bad(
        "too few survivors",
        name,
        "at least 4 survivors",
        "too few",
        (["survivors"], [0, 1, 2]),
        (["dropped"], [3, 4]),
    )
    found += [lonely(by["survivors in sparse"])]

    name, cast = "quorum in sparse", g("quorum in sparse")
    signer, silent = next(iter(cast["signers"])), neighbour_without(cast)
    bad(
        "too few signers",
        name,
        "Expected 7 signatures",
        "quorum",
        *[(["signers", one], None) for one in list(cast["signers"])[-2:]],
    )
    near, forged = neighbour_with(cast), "did not sign what"
    rest, [looked_at, *_] = sampled_in(cast)
    assert len(rest) > 1
    bad("a forged signature in the sample", name, forged, "does not hold",
        (["signers", str(looked_at)], flipped(cast["signers"][str(looked_at)])))  # fmt: skip
    false = (["signers", near], flipped(cast["signers"][near]))
    bad("a signature on other survivors, and no tag", name, forged, "does not hold",
        (["tags", near], None), false)  # fmt: skip
    bad("a false tag beside a false signature", name, forged, "does not hold",
        (["tags", near], flipped(cast["tags"][near])), false)  # fmt: skip
    own = ready(cast, cast["own"])
    own.dealers, own.survivors = cast["dealers"], cast["survivors"]
    bad("one's own tag sent back", name, forged, "does not hold",
        (["tags", near], own.tag(cast["own"], int(near))), false)  # fmt: skip
    own.survivors = cast["survivors"][:-1]
    bad("a tag for other survivors", name, forged, "does not hold",
        (["tags", near], own.tag(int(near), cast["own"])), false)  # fmt: skip
    bad("a short signature on the survivors", name, forged, "64 bytes",
        (["tags", near], None), (["signers", near], cast["signers"][near][:-2]))  # fmt: skip
    late = {"cohort": "sparse", "instead": {"attempt": 2}}
    moved = second.survivors_text(ready(late, int(near)).CONTEXT, cast["dealers"], cast["survivors"])
    signed = {one: second.sign(keys(cast, int(one))["identity"], moved) for one in cast["signers"]}
    bad(
        "a quorum of another attempt",
        name,
        "did not sign what",
        "does not hold",
        (["signers"], signed),
    )
    bad("a quorum of another attempt, and no tags", name, "did not sign what", "does not hold",
        (["signers"], signed), (["tags"], {}))  # fmt: skip
    text = second.input_text(ready(cast, int(silent)).CONTEXT, int(silent), cast["dealers"][1:])
    elsewhere = second.sign(keys(cast, int(silent))["identity"], text)
    bad("a neighbour that was shown other dealers", name, "did not sign what", "does not hold",
        (["inputs", silent], elsewhere))  # fmt: skip
    bad(
        "a neighbour that neither signed nor sent",
        name,
        "every surviving neighbour",
        "neither",
        (["inputs", silent], None),
    )
    assert signer != silent

    name, whole = "aggregate five", g("aggregate five")
    answers, inputs = whole["answers"], whole["inputs"]
    published = "whose hash its dealer published"
    bad(
        "a wrong share of a seed",
        name,
        published,
        "wrong share",
        (["answers", "1", "0"], flipped(answers["1"]["0"], 40)),
    )
    bad(
        "a wrong share of a key",
        name,
        published,
        "wrong share",
        (["answers", "1", "3"], flipped(answers["1"]["3"], 40)),
    )
    bad(
        "a share of another holder",
        name,
        published,
        "wrong share",
        (["answers", "1", "0"], answers["2"]["0"]),
    )
    bad("a wrong salt", name, published, "wrong share", (["answers", "1", "0"], flipped(answers["1"]["0"])))
    bad(
        "a short opened share",
        name,
        "Expected 65 bytes",
        "65 bytes",
        (["answers", "1", "0"], answers["1"]["0"][:-2]),
    )
    bad(
        "too few answers for the threshold",
        name,
        "Expected 4 shares",
        "fewer shares",
        (["answers", "1"], None),
    )
    seeds, mask_keys = misdealt(whole, 1), misdealt(whole, 3)
    bad("another seed than promised", name, "open no secret of its own", "another seed", *seeds)
    bad("another key than advertised", name, "open no secret of its own", "another mask secret", *mask_keys)
    count = bytearray.fromhex(inputs["1"]["packed"][1])
    count[-1] |= 0x80
    bad("bits after the last value of an input", name, "after the last", "after the last",
        (["inputs", "1", "packed", 1], bytes(count)))  # fmt: skip
    bad("an input of a wrong length", name, "Expected 3 bytes", "wrong length",
        (["inputs", "1", "packed", 1], bytes(count) + b"\0"))  # fmt: skip
    bad("an input signed by another", name, wrong, "does not hold",
        (["inputs", "1", "signature"], inputs["2"]["signature"]))  # fmt: skip
    bad("a mask key of small order", name, "cannot be agreed with", "small order", *weak(whole))
    bad("a signature of another on the survivors", name, wrong, "does not hold",
        (["signatures", "1"], whole["signatures"]["2"]))  # fmt: skip
    tags = whole["tags"]["1"]
    bad("a tag too few", name, "tags of 16 bytes", "surviving neighbours", (["tags", "1", min(tags)], None))
    bad("a short tag", name, "tags of 16 bytes", "16 bytes", (["tags", "1", min(tags)], tags[min(tags)][2:]))
    return found


def others(of: Agreed) -> dict[str, Agreed]:
    """Agreements that differ from this one in what a signature must not be carried between."""

    def changed(**change: Any) -> Agreed:
        first = dataclasses.replace(of.vectors[0], **change)
        return dataclasses.replace(of, vectors=(first, *of.vectors[1:]))

    return {
        "another plan": dataclasses.replace(of, plan=flip(of.plan)),
        "another task": dataclasses.replace(of, task=flip(of.task)),
        "another round": dataclasses.replace(of, round=of.round + 1),
        "another ordered cohort": dataclasses.replace(of, ordered=of.ordered + 1),
        "another ask": changed(ask=1),
        "a question put anew": changed(again=1),
        "a value that cannot change": changed(once=True),
    }


def other_dealing() -> Dealing:
    return dataclasses.replace(
        dealt({"cohort": "five"})[1][0], signature=dealt({"cohort": "five"})[1][1].signature
    )


def lonely(base: Given) -> Given:
    """Drop neighbours of one member until it has too few."""
    given = base["given"]
    one = ready(given, given["own"])
    alive = given["survivors"]
    for member in (m for m in alive if m != given["own"]):
        near = [n for n in one.graph[member] if n in alive and n != given["own"]]
        gone = near[: len(alive) - one.agreed.least_survivors]
        change: list[tuple[list[str], list[int]]] = [
            (["survivors"], [n for n in alive if n not in gone]),
            (["dropped"], sorted([*given["dropped"], *gone])),
        ]
        try:
            survivors(changed(base, change))
        except Refused as problem:
            if "neighbours" in str(problem):
                why = {"first": "enough surviving neighbours", "second": "surviving neighbours"}
                name = "a survivor with too few neighbours"
                return {"name": name, "base": base["name"], "change": plain(change), "refusal": why}
    raise AssertionError("nobody can be made lonely")


def neighbour_with(cast: Given) -> str:
    near = ready(cast, cast["own"]).graph[cast["own"]]
    return str(next(n for n in cast["signers"] if int(n) in near))


def neighbour_without(cast: Given) -> str:
    near = ready(cast, cast["own"]).graph[cast["own"]]
    return str(next(n for n in cast["inputs"] if int(n) in near))


def misdealt(whole: Given, dealer: int) -> list[tuple[list[str], Any]]:
    """The dealer shares other secrets than it promised; marks, signature and answers agree."""
    given = {"cohort": "five"}
    cheat = ready(given, dealer)
    cheat.random = randomness(given, dealer)
    cheat.advertise()
    cheat.secret, honest = drawn("other key"), cheat.entry
    cheat.random = lambda count: drawn("other", count=count)
    said = cheat.deal(entries(given))
    assert honest == cheat.entry
    mark = bytes.fromhex(whole["dealings"][str(dealer)]["seed_mark"])
    said = resigned(given, dealer, dataclasses.replace(said, seed_mark=mark), cheat.CONTEXT, range(5))
    changes: list[tuple[list[str], Any]] = [(["dealings", str(dealer)], said)]
    for holder in whole["answers"]:
        if int(holder) == dealer:
            opened = cheat.held[dealer]
        else:
            key = second.share_key(cheat.CONTEXT, cheat.channel_secret(int(holder)), dealer, int(holder))
            opened = second.unseal(cheat.CONTEXT, key, dealer, int(holder), said.sealed[int(holder)])
        changes.append((["answers", holder, str(dealer)], opened[0 if str(dealer) in whole["inputs"] else 1]))
    return changes


def weak(whole: Given) -> list[tuple[list[Any], Any]]:
    text = second.advertise_text(agreed(whole).context(), 1, bytes(32), bytes(32))
    signature = second.sign(keys(whole, 1)["identity"], text)
    entry = {"number": 1, "mask_key": bytes(32), "nonce": bytes(32), "signature": signature}
    return [(["entries", 1], entry)]


def files() -> dict[str, Any]:
    rounds = {
        "five": round_of("five", silent=-1, missing=[3]),
        "sparse": round_of("sparse", silent=2, missing=[9]),
        "curious": round_of("curious", silent=-1, missing=[0]),
    }
    basic, complaining = derivations(), complaints()
    accepted = [*basic, *(one for found in rounds.values() for one in found), *complaining]
    found: dict[str, Any] = {"cohorts": COHORTS, "derivations": basic, "complaints": complaining}
    found |= {f"round_{name}": cases for name, cases in rounds.items()}
    return found | {"refused": refused(accepted)}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in files().items():
        lines = [json.dumps(one) for one in content] if isinstance(content, list) else None
        text = "[\n" + ",\n".join(lines) + "\n]" if lines else json.dumps(content, indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n")
