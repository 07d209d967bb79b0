"""What the server of secure aggregation does at the end: one set of survivors is signed, and opened.

The rounds before stand in `server_rounds`.
"""

from __future__ import annotations

from dataclasses import replace

from securefl.core.errors import CryptoError
from securefl.core.keys import Share
from securefl.core.machine import Need, Step
from securefl.secagg.agreement import Agreement
from securefl.secagg.checks import CONSISTENCY, UNMASK
from securefl.secagg.dealing import KEY, OPENED_BYTES, SALT_BYTES, SEED, mark
from securefl.secagg.messages import Consistent, Quorum, Unmask
from securefl.secagg.server_rounds import abort, admit, opening, to
from securefl.secagg.server_states import Agreeing, Opening, ServerState, Summing, Working
from securefl.secagg.unmasking import Unmasking

# Round 3 ----------------------------------------------------------------------------------------


def signed(agreement: Agreement, state: Agreeing, number: int, said: Consistent) -> Step[ServerState]:
    """A survivor signed the one set of survivors."""
    if number in state.signatures:
        return Step(state)
    summed = state.summed
    admit(agreement, number, summed.survivors, CONSISTENCY)
    agreement.check(number, said.signature, summed.closed.survival(summed.dealers, summed.survivors))
    state = replace(state, signatures=state.signatures.having(number, said.signature))
    everybody = len(state.signatures) == len(summed.survivors)
    return close_signatures(agreement, state) if everybody else Step(state)


def close_signatures(agreement: Agreement, state: Agreeing) -> Step[ServerState]:
    """Show a quorum of signatures to those who gave them: only they open anything."""
    if len(state.signatures) < agreement.parameters.quorum:
        return abort(
            CONSISTENCY,
            f"Expected {agreement.parameters.quorum} signatures on the survivors, "
            f"got {len(state.signatures)}.",
        )
    signers = tuple(sorted(state.signatures))
    others = tuple(member for member in state.summed.survivors if member not in state.signatures)
    quorum = Quorum(
        signers=signers,
        signatures=tuple(state.signatures[member] for member in signers),
        others=others,
        inputs=tuple(state.summed.inputs[member] for member in others),
    )
    return Step(opening(state.summed, signers), out=(to(agreement, signers, quorum),))


def opened(agreement: Agreement, state: Opening, number: int, said: Unmask) -> Step[ServerState]:
    """A survivor opened its shares, each of which its dealer published a hash of."""
    if number in state.answered:
        return Step(state)
    admit(agreement, number, state.asked, UNMASK)
    summed = state.summed
    held = [dealer for dealer in summed.closed.graph.holders(number) if dealer in summed.dealt]
    if len(said.shares) != len(held):
        raise CryptoError(f"Expected {len(held)} shares, got {len(said.shares)}.")
    shares = dict(state.shares)
    for dealer, share in zip(held, said.shares, strict=True):
        _check_share(summed, dealer, number, share)
        # Shamir's points count from 1: the value at 0 is the secret.
        shares[dealer] = shares[dealer].having(number + 1, share.raw[SALT_BYTES:])
    state = replace(state, answered=state.answered | {number}, shares=shares)
    return close_shares(agreement, state) if len(state.answered) == len(state.asked) else Step(state)


def _check_share(state: Summing, dealer: int, holder: int, share: Share) -> None:
    """Raises CryptoError for a share without its dealer's published hash. That is the holder's fault."""
    marks = state.dealt[dealer].marks(holder).raw
    # Of a survivor its self-mask, of a dropped client its mask key. Both together would open its input.
    kind, wanted = (SEED, marks[:32]) if dealer in state.inputs else (KEY, marks[32:])
    # Another length has another hash. A dealer that published the hash of one is named at the opening.
    if len(share.raw) != OPENED_BYTES:
        raise CryptoError(f"Expected {OPENED_BYTES} bytes of salt and share, got {len(share.raw)}.")
    if mark(kind, state.closed.context, dealer, holder, share.raw) != wanted:
        raise CryptoError(f"The share of {dealer} is not the one whose hash its dealer published.")


def close_shares(agreement: Agreement, state: Opening) -> Step[ServerState]:
    """Let the host take the masks off, if every secret has shares enough."""
    summed, threshold = state.summed, agreement.parameters.threshold
    fewest = min(len(shares) for shares in state.shares.values())
    if fewest < threshold:
        return abort(UNMASK, f"Expected {threshold} shares of every secret, got {fewest} of one.")
    work = Unmasking(
        closed=summed.closed,
        dealers=summed.dealers,
        survivors=summed.survivors,
        seeds={dealer: of.dealing.seed for dealer, of in summed.dealt.items()},
        shares=state.shares,
        sums=summed.sums,
    )
    return Step(Working(), need=Need(work))
