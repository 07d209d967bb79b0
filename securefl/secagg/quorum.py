"""A client's check of the quorum: enough members confirmed the survivors that it was shown.

Every survivor signs the survivors, and sends each surviving neighbour a short tag under the secret of their
channel. A client accepts a neighbour by its tag, or by its signature if the tag does not hold. Of the other
signers it verifies a random sample. The client draws the sample after it received the list, so the server
cannot know where a forged signature will be looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from securefl.core.entropy import Random
from securefl.core.errors import CryptoError
from securefl.core.keys import Guarded, Signature
from securefl.core.newest import newest
from securefl.secagg.agreement import Channels, ClosedRoster, alive, hashed
from securefl.secagg.checks import CONSISTENCY, ascending, refusal
from securefl.secagg.messages import Quorum

PASSES_UNSEEN_BITS: Final = 56
"""A list with too few signatures passes one client's sample with a probability of at most 2^-56.

Over 2^16 checked lists (clients, rounds and restarts) that leaves the 40 bits of `policy.parameters`.
"""


@dataclass(frozen=True, kw_only=True, repr=False)
class View(Guarded):
    """What one client was shown, and all that it needs to check who else was shown the same.

    Attributes:
        closed: the closed roster under which it dealt.
        channels: its keys, and its secrets with the other members.
        dealers, survivors: member numbers, ascending, as it was shown them.
    """

    closed: ClosedRoster
    channels: Channels
    dealers: tuple[int, ...]
    survivors: tuple[int, ...]

    @cached_property
    def text(self) -> bytes:
        """The text that every survivor signs."""
        return self.closed.survival(self.dealers, self.survivors)

    @cached_property
    def near(self) -> tuple[int, ...]:
        """Our surviving neighbours, ascending."""
        return self.closed.surviving_neighbours(self.channels.own, alive(self.survivors))

    def tags(self) -> tuple[Signature, ...]:
        """Return our tag for each surviving neighbour, in their order."""
        text, own = hashed(self.text), self.channels.own
        return tuple([self.channels.tag(self.closed, own, other, text) for other in self.near])

    def confirmed_by(self, tags: Sequence[Signature]) -> frozenset[int]:
        """Return the surviving neighbours whose tag for us holds. A tag is empty where none came."""
        text, near = hashed(self.text), self.near
        if len(tags) != len(near):
            raise refusal(CONSISTENCY, f"Expected a tag of each of {len(near)} neighbours, got {len(tags)}.")
        return frozenset(
            other
            for other, tag in zip(near, tags, strict=True)
            if self.channels.holds(self.closed, other, text, tag)
        )

    def require_quorum(self, came: Quorum, confirmed: frozenset[int], random: Random) -> None:
        """Check that a quorum confirmed our survivors, and each surviving neighbour our dealers.

        With a quorum, no other set can be opened. The neighbours' confirmations protect a client to which the
        server showed other dealers: its input lacks masks that we expect, and must not be opened.

        Args:
            came: the server's list.
            confirmed: the neighbours whose tags hold.
            random: the operating system's randomness, of which the sample is drawn.

        Raises:
            RemoteProtocolError: the list is too short or malformed, or a signature does not hold. It names
                the server, which verified each signature before it sent the list.
        """
        signers, inputs = _listed(self.closed, self.survivors, came)
        near, text = self.near, self.text
        # In a simulation the first member asks for every signature, once for all: that is more than a sample.
        together = self.closed.agreement.roster.known is not None and _each_holds(self.closed, signers, text)
        if not all(member in signers or member in inputs for member in near):
            raise refusal(CONSISTENCY, "Expected a signature of every surviving neighbour, got fewer.")
        for member in near:
            if member not in signers:
                self._check(member, inputs[member], self.closed.input_of(member, self.dealers))
            elif member not in confirmed and not together:
                self._check(member, signers[member], text)
        if together:
            return
        # Our own signature and those of our neighbours count. The rest is sampled.
        counted = {member for member in (*near, self.channels.own) if member in signers}
        needed = self.closed.agreement.parameters.quorum - len(counted)
        size = sample_size(len(signers) - len(counted), needed)
        if size:
            rest = [member for member in signers if member not in counted]
            for member in sampled(rest, size, random):
                self._check(member, signers[member], text)

    def _check(self, member: int, signature: Signature, text: bytes) -> None:
        try:
            self.closed.agreement.check(member, signature, text)
        except CryptoError:
            raise refusal(CONSISTENCY, f"Member {member} did not sign what we were shown.") from None


# In a simulation the first member checks the form of the one list for all that were shown the same survivors.
@newest
def _listed(
    closed: ClosedRoster, survivors: Sequence[int], came: Quorum
) -> tuple[Mapping[int, Signature], Mapping[int, Signature]]:
    """Return the signatures on the survivors and on inputs, if the list has its form and is long enough."""
    if len(came.signers) != len(came.signatures) or len(came.others) != len(came.inputs):
        raise refusal(CONSISTENCY, "Expected one signature for each member, got more or fewer.")
    if not ascending(came.signers, survivors) or not ascending(came.others, survivors):
        raise refusal(
            CONSISTENCY,
            "Expected distinct, ascending survivors as signers, got some twice, unsorted or outside the sum.",
        )
    quorum = closed.agreement.parameters.quorum
    if len(came.signers) < quorum:
        raise refusal(CONSISTENCY, f"Expected {quorum} signatures on one set, got {len(came.signers)}.")
    signed = dict(zip(came.signers, came.signatures, strict=True))
    return signed, dict(zip(came.others, came.inputs, strict=True))


@newest
def _each_holds(closed: ClosedRoster, signers: Mapping[int, Signature], text: bytes) -> bool:
    """Whether every signature of a list holds. If one does not, each member samples as it does apart."""
    try:
        for member, signature in signers.items():
            closed.agreement.check(member, signature, text)
    except CryptoError:
        return False
    return True


@lru_cache(maxsize=256)
def sample_size(listed: int, needed: int, bits: int = PASSES_UNSEEN_BITS) -> int:
    """Return the least sample that shows `needed` true signatures among `listed`, except with 2^-bits.

    A list with at most `needed` - 1 true signatures passes a sample of s with the probability
    C(needed - 1, s) / C(listed, s), which is 0 for s = `needed`. Computed in whole numbers, so that every
    implementation gets the same size.

    >>> sample_size(800, 551), sample_size(23, 19), sample_size(23, 0)
    (96, 19, 0)
    """
    size, true, all_of = 0, 1, 1
    while needed > 0 and true << bits > all_of:
        true *= needed - 1 - size
        all_of *= listed - size
        size += 1
    return size


def sampled(members: Sequence[int], size: int, random: Random) -> Iterator[int]:
    """Yield `size` distinct members, each set equally likely, from a fresh seed of 32 bytes."""
    if not size:
        return
    left, stream = list(members), Integers(random(32))
    for at in range(size):
        other = at + stream.below(len(left) - at)
        left[at], left[other] = left[other], left[at]
        yield left[at]


_WORDS: Final = 512
"""How many words of the keystream are drawn at once."""


class Integers:
    """Uniform integers from AES-256-CTR under a 32-byte seed.

    SPEC.md, section 8, fixes every draw for the vectors.
    """

    def __init__(self, seed: bytes) -> None:
        self._stream = Cipher(AES(seed), CTR(bytes(16))).encryptor()
        self._words: Iterator[int] = iter(())

    def _word(self) -> int:
        word = next(self._words, None)
        if word is None:
            self._words = iter(struct.unpack(f"<{_WORDS}Q", self._stream.update(bytes(8 * _WORDS))))
            word = next(self._words)
        return word

    def below(self, bound: int) -> int:
        # A word at or above the largest multiple of the bound is drawn again. Otherwise small remainders
        # would be more likely.
        limit = 2**64 - 2**64 % bound
        while True:
            word = self._word()
            if word < limit:
                return word % bound
