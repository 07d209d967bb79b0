"""One masked aggregation, played aloud: no machines, no engine, no network, everybody at one table.

    python tests/reference/one_aggregation_aloud.py

The rounds are those of Bonawitz et al. (2017, figure 4) and of SPEC.md, with the package's own small
functions. Nobody lies here, so most of what the machines check is left out. All that is said, and the sum, is
compared with the machines, bit for bit, by `test_one_aggregation_aloud.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.agreement import Identity, Roster, Vector
from securefl.core.entropy import drawn
from securefl.core.keys import Commitment, SecretKey
from securefl.core.messages import client_name
from securefl.core.signing import AgreementKey
from securefl.core.wire import Header
from securefl.secagg import Agreement, Channels, centred
from securefl.secagg.agreement import Advertise, ClosedRoster, advertised
from securefl.secagg.dealing import SALT_BYTES, deal
from securefl.secagg.dealing import opened as open_box
from securefl.secagg.masks import apply_masks
from securefl.secagg.packing import reduce, words
from securefl.secagg.policy import parameters
from securefl.secagg.shamir import combine


def play(
    agreed: Agreement,
    identities: Sequence[Identity],
    secrets: Sequence[SecretKey],
    inputs: Sequence[NDArray[np.int64]],
    dropped: int,
    tell: Callable[..., None],
) -> tuple[NDArray[np.int64], dict[str, dict[int, Any]]]:
    """The sum, and what was said in each round. One vector; active mode; `dropped` deals and falls silent.

    Args:
        secrets: one a client, for this attempt: all that it draws follows from it.
        tell: prints a sentence.
    """
    cohort, bits, threshold = range(len(inputs)), agreed.vectors[0].bits, agreed.parameters.threshold
    channels = [Channels(identity, agreed.roster, agreed.header.session) for identity in identities]
    keys, entries, seeds, dealings, masked, vouched = {}, {}, {}, {}, {}, {}
    held = {k: {} for k in cohort}

    for k in cohort:
        random = drawn(secrets[k], b"advertise" + agreed.context)
        keys[k], nonce = AgreementKey(SecretKey(random(32))), Commitment(random(32))
        text = advertised(agreed.context, k, keys[k].public, nonce)
        entries[k] = Advertise(keys[k].public, nonce, identities[k].signing.sign(text))
        tell(
            f"0 advertise    Client {k} signs a mask key for this attempt, {keys[k].public.raw.hex()[:8]}..."
        )
    closed = ClosedRoster(agreed, entries)
    near = closed.graph
    tell("               The server closes the roster. All that follows is bound to it.")

    for k in cohort:
        random = drawn(secrets[k], b"deal" + closed.context)
        seeds[k] = SecretKey(random(32))
        dealings[k], held[k][k] = deal(closed, channels[k], seeds[k], keys[k].secret, random)
        tell(f"1 share        Client {k} deals a seed and its mask key; any {threshold} shares open either.")
    for dealer in cohort:
        marks = dict(zip(closed.graph.holders(dealer), dealings[dealer].marks, strict=True))
        for k, box in zip(near[dealer], dealings[dealer].sealed, strict=True):
            held[k][dealer] = open_box(closed, channels[k], dealer, box, marks[k])
    tell("               The server passes the boxes on. Each client opens its own.")

    survivors = [k for k in cohort if k != dropped]
    for k in survivors:
        pair = {j: closed.mask_seed(k, keys[k], j) for j in near[k]}
        masked[k] = words(inputs[k], bits)
        above, below = [pair[j] for j in near[k] if j > k], [pair[j] for j in near[k] if j < k]
        apply_masks(masked[k], 0, add=[seeds[k], *above], subtract=below)
        reduce(masked[k], bits)
        vouched[k] = identities[k].signing.sign(closed.input_of(k, cohort))
        tell(f"2 mask         Client {k} has {inputs[k].tolist()} and sends {masked[k].tolist()}.")
    total = sum(masked.values())
    tell(f"               Client {dropped} is silent. The server adds the others: {total.tolist()}.")

    text = closed.survival(cohort, survivors)
    signatures = {k: identities[k].signing.sign(text) for k in survivors}
    for k in survivors:
        agreed.check(k, signatures[k], text)
    tell(f"3 consistency  The clients {survivors} sign that they survived, and see all signatures.")

    shares = {
        k: {j: held[k][j].key if j == dropped else held[k][j].seed for j in sorted(held[k])}
        for k in survivors
    }
    tell(f"4 unmask       They open their shares of each other's seeds, and of client {dropped}'s mask key.")
    opened = {}
    for dealer in cohort:
        points = {k + 1: shares[k][dealer][SALT_BYTES:] for k in survivors if dealer in shares[k]}
        opened[dealer] = SecretKey(combine(points, threshold))
    gone = AgreementKey(opened.pop(dropped))
    pair = {k: closed.mask_seed(dropped, gone, k) for k in near[dropped]}
    above, below = [pair[k] for k in pair if k > dropped], [pair[k] for k in pair if k < dropped]
    apply_masks(total, 0, add=above, subtract=[*opened.values(), *below])
    reduce(total, bits)
    tell(f"               The masks come off: the sum over {survivors} is {centred(total, bits).tolist()}.")

    inputs_said = {k: (masked[k], vouched[k]) for k in survivors}
    said = {
        "advertise": entries,
        "share": dealings,
        "mask": inputs_said,
        "sign": signatures,
        "unmask": shares,
    }
    return centred(total, bits), said


def main() -> None:
    identities = [Identity.of(client_name(k), SecretKey(bytes(31) + bytes([k]))) for k in range(4)]
    agreed = Agreement(
        header=Header(hashlib.sha256(b"a table").digest(), 1, 1, 0),
        roster=Roster(tuple(identity.member() for identity in identities)),
        vectors=(Vector(name="update", length=3, bits=16, bound=100),),
        plan=bytes(32),
        task=bytes(32),
        parameters=parameters(4, 0.0, 0.25, "active"),
    )
    secrets = [SecretKey(bytes([k]) * 32) for k in range(4)]
    play(agreed, identities, secrets, [np.array([k, 10 * k, -k]) for k in range(4)], 2, print)


if __name__ == "__main__":
    main()
