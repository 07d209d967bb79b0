"""Unmasking: the server reconstructs the secrets, removes the masks, and names a bad dealer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from securefl.core.errors import CryptoError
from securefl.core.keys import Commitment, SecretKey
from securefl.core.signing import AgreementKey
from securefl.secagg.agreement import ClosedRoster
from securefl.secagg.dealing import seed_mark
from securefl.secagg.masks import Words, apply_masks
from securefl.secagg.packing import reduce
from securefl.secagg.shamir import combine


@dataclass(frozen=True, kw_only=True)
class Summed:
    """The sums over the survivors. Raises nothing.

    Attributes:
        totals: for each vector, uint32 or uint64 words modulo 2^bits. `centred` gives the signed integers.
        survivors: the names of the clients whose inputs are in the sums.

    >>> import numpy as np
    >>> from securefl.secagg import Summed, centred
    >>> summed = Summed(totals={"update": np.array([3, 255], np.uint32)}, survivors=("client-0000",))
    >>> centred(summed.totals["update"], 8)
    array([ 3, -1])
    """

    totals: Mapping[str, Words] = field(repr=False)
    survivors: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Aborted:
    """The attempt ended and no sum was opened. Raises nothing.

    Attributes:
        phase: the phase in which it ended.
        reason: the reason, in words.
        culprit: a client that is proven to have caused it, or None. The next attempt leaves this client out.

    >>> from securefl.secagg import Aborted
    >>> Aborted(phase="share", reason="Expected at least 3 clients, got 2 that dealt shares.").culprit is None
    True
    """

    phase: str
    reason: str
    culprit: str | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Unmasking:
    """The server's slow work. Raises nothing.

    The host, the program that drives the server's machine, calls `run` in any thread or process and passes
    the returned value to the machine's `provide`. `shares` holds, for each dealer, the opened shares by their
    Shamir points. Every share matches the hash that its dealer published.

    >>> from securefl.secagg import Unmasking
    >>> sorted(Unmasking.__annotations__)
    ['closed', 'dealers', 'seeds', 'shares', 'sums', 'survivors']
    """

    closed: ClosedRoster
    dealers: tuple[int, ...]
    survivors: tuple[int, ...]
    seeds: Mapping[int, Commitment]
    shares: Mapping[int, Mapping[int, bytes]]
    sums: tuple[Words, ...]

    def run(self) -> Summed | Aborted:
        """Open all secrets, then remove all masks.

        The work takes the memory of one copy of the sums, however many masks there are.
        """
        alive = set(self.survivors)
        own: dict[int, SecretKey] = {}
        dropped: dict[int, AgreementKey] = {}
        for dealer in self.dealers:
            try:
                if dealer in alive:
                    own[dealer] = self._seed(dealer)
                else:
                    dropped[dealer] = self._key(dealer)
            except CryptoError:
                # Each share matched the hash that its dealer signed, so the dealer is at fault, not a holder.
                name = self.closed.agreement.roster.members[dealer].name
                reason = f"{name} dealt shares that match their hashes and open no secret of its own."
                return Aborted(phase="unmask", reason=reason, culprit=name)
        plus, minus = self._pairwise(alive, dropped)
        return self._unmasked([*own.values(), *minus], plus)

    def _seed(self, dealer: int) -> SecretKey:
        secret = self._combined(dealer)
        if seed_mark(self.closed.context, dealer, secret) != self.seeds[dealer]:
            raise CryptoError("Expected the seed to which the dealer committed, got one of another hash.")
        return SecretKey(secret)

    def _key(self, dealer: int) -> AgreementKey:
        key = AgreementKey(SecretKey(self._combined(dealer)))
        if key.public != self.closed.entries[dealer].key:
            raise CryptoError("Expected the key that the dealer advertised, got one of another public key.")
        return key

    def _combined(self, dealer: int) -> bytes:
        return combine(self.shares[dealer], self.closed.agreement.parameters.threshold)

    def _pairwise(
        self, alive: set[int], dropped: Mapping[int, AgreementKey]
    ) -> tuple[list[SecretKey], list[SecretKey]]:
        """Return the seeds of masks between survivors and dropped clients: those to add, those to subtract.

        The member with the smaller number added the mask, and the other one subtracted it.
        """
        plus: list[SecretKey] = []
        minus: list[SecretKey] = []
        for gone, key in dropped.items():
            for member in self.closed.graph[gone]:
                if member in alive:
                    (minus if member < gone else plus).append(self.closed.mask_seed(gone, key, member))
        return plus, minus

    def _unmasked(self, subtract: Sequence[SecretKey], add: Sequence[SecretKey]) -> Summed:
        agreement = self.closed.agreement
        totals = {}
        for number, (vector, total) in enumerate(zip(agreement.vectors, self.sums, strict=True)):
            # the sums belong to the server's state, which no step changes in place
            clear = total.copy()
            apply_masks(clear, number, add=add, subtract=subtract)
            reduce(clear, vector.bits)
            totals[vector.name] = clear
        return Summed(totals=totals, survivors=agreement.roster.names(self.survivors))
