"""Clients of secure aggregation that deal false shares, and sign them well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from securefl.secagg import Client
from securefl.secagg.dealing import Pair, Tree, _bound, _seal, leaves, share_key, signed
from securefl.secagg.messages import Shares
from support.tiny_secagg import entropy


def swapped(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def put(at: int, **parts: Any) -> Callable[[Any], Any]:
    """A lie: in each of these parts of a message another entry at this place."""
    return lambda said: replace(
        said, **{name: swapped(getattr(said, name), at, one) for name, one in parts.items()}
    )


def copied(of: int, to: int, *names: str, source: Any = None) -> Callable[[Any], Any]:
    """A lie: in these parts an entry also in the place of another. source: the message that it is from."""
    return lambda said: put(to, **{name: getattr(source or said, name)[of] for name in names})(said)


def signed_anew(inner: Client, state: Any, shares: Shares) -> Shares:
    """A dealing that is false and well signed."""
    own = inner.channels.own
    holders = state.closed.graph.holders(own)
    root = Tree.of(leaves(holders, own, shares.marks, shares.sealed)).root
    signature = inner.channels.identity.signing.sign(signed(state.closed, own, shares.seed, root))
    return replace(shares, signature=signature)


def wrong_pair(inner: Client, state: Any, shares: Shares) -> Shares:
    """For holder 0 other shares are sealed than were hashed."""
    own = inner.channels.own
    pair = Pair(bytes(65), bytes(65))
    key = share_key(state.closed, inner.channels, own, 0)
    box = _seal(pair, key, _bound(state.closed, own, 0), entropy("lie"))
    return signed_anew(inner, state, replace(shares, sealed=swapped(shares.sealed, 0, box)))
