"""Whatever can hold a secret refuses pickles and copies: every dataclass of the package, by its hints."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import io
import pickle
import pkgutil
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import pytest
from support.every import every
from support.offenders import offenders

import securefl
from securefl.core.errors import LocalProtocolError
from securefl.core.keys import Guarded, SecretKey
from securefl.core.machine import Outgoing, Step
from securefl.core.signing import AgreementKey, SigningKey
from securefl.linear.encrypted import Opener
from securefl.matching import Evaluator, KeyHolder

SECRET = SecretKey(b"correct horse battery staple 123")


def classes() -> Iterator[type[Any]]:
    """All classes that the package defines, those of the systems too."""
    for module in pkgutil.walk_packages(securefl.__path__, "securefl."):
        for own in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(own) and own.__module__ == module.name:
                yield own


def hints(kind: type[Any]) -> Mapping[str, Any]:
    try:
        found = get_type_hints(kind)
    except NameError:  # imported for the type checker alone: it may be anything
        found = {}
    return {field.name: found.get(field.name, Any) for field in dataclasses.fields(kind)}


def inside(hint: Any) -> set[Any]:
    """The types in a hint, in the fields of its dataclasses, and so on."""
    found: set[Any] = set()
    left = [hint]
    while left:
        part = left.pop()
        left += [inner for inner in get_args(part) if not isinstance(inner, list)]
        if isinstance(part, Hashable) and part not in found:
            found.add(part)
            if dataclasses.is_dataclass(part) and inspect.isclass(part):
                left += hints(part).values()
    return found


def is_guarded(part: Any) -> bool:
    return inspect.isclass(part) and issubclass(part, Guarded)


def can_hold(hint: Any) -> bool:
    """Whether a field of this type may hold a secret, itself or inside of a dataclass."""
    return any(
        part in (Any, object) or isinstance(part, TypeVar) or is_guarded(part) for part in inside(hint)
    )


DATACLASSES = sorted({own for own in classes() if dataclasses.is_dataclass(own)}, key=str)
LEAKS: list[Callable[[Any], Any]] = [
    copy.deepcopy,
    *(lambda held, p=p: pickle.dumps(held, protocol=p) for p in range(pickle.HIGHEST_PROTOCOL + 1)),
    lambda held: pickle.Pickler(io.BytesIO(), 2).dump([{"a": (held,)}]),
    lambda held: copy.deepcopy({"a": [held]}),
]


def holding(kind: type[Any], name: str, secret: object) -> Any:
    """An object of the dataclass with the secret in one field, made without its checks."""
    made = object.__new__(kind)
    for field in dataclasses.fields(kind):
        object.__setattr__(made, field.name, secret if field.name == name else None)
    return made


@cache
def carriers() -> list[tuple[type[Any], str]]:
    """Each dataclass that may hold a secret, and the field in which it may."""
    return [(own, name) for own in DATACLASSES for name, hint in hints(own).items() if can_hold(hint)]


def test_the_search_finds_what_is_known() -> None:
    found = {own for own, _ in carriers()}
    assert len(DATACLASSES) > 200
    assert {SigningKey, AgreementKey, KeyHolder, Evaluator, Outgoing, Step} <= found


def refuses(carrier: tuple[type[Any], str]) -> None:
    for secret in (SECRET, (SECRET,), {"a": [SECRET]}):
        held = holding(*carrier, secret)
        for leak in LEAKS:
            with pytest.raises(LocalProtocolError, match="neither pickled"):
                leak(held)


def test_whatever_can_hold_a_secret_is_neither_pickled_nor_copied() -> None:
    assert offenders(carriers(), refuses) == []


@every("kind", [own for own in classes() if issubclass(own, Guarded)])
def test_what_is_a_secret_refuses_every_way_around(kind: type[Any]) -> None:
    made = object.__new__(kind)
    ways: list[Callable[[Any], Any]] = [copy.copy, *LEAKS]
    ways += [lambda own: object.__reduce_ex__(own, 2), lambda own: own.__getstate__()]
    for way in ways:
        with pytest.raises(LocalProtocolError, match=f"A {kind.__name__} is neither pickled nor copied"):
            way(made)


PUBLIC = {
    "securefl.engine.drive.Packet": "bytes on their way",
    "securefl.deployment.messages.Compute": "the broadcast, which everybody has",
    "securefl.deployment.messages.Computed": "long: what an app gives its own party, and has itself",
    "securefl.deployment.messages.Enter": "a server's signed request",
    "securefl.deployment.messages.Parcel": "bytes on their way",
    "securefl.deployment.messages.SignedTurn": "bytes on their way",
    "securefl.deployment.messages.TurnReply": "bytes on their way",
    "securefl.deployment.messages.Turn": "bytes on their way",
    "securefl.deployment.party.PartySession": "a party of its own process; its keys are guarded themselves",
    "securefl.sums.opened.Adding": "what the server received: concealed vectors, digests and signatures",
    "securefl.sums.opened.Asking": "the same; the pads of an encrypted sum are guarded themselves",
    "securefl.linear.checked.Encrypted": "a client's ciphertext, as the server received it",
    "securefl.linear.turn.Arrived": "the same, and the server's product with it",
    "securefl.linear.scheme.Sent": "what a client shows the server, concealed",
    "securefl.linear.pads.Masked": "a client's masked message",
    "securefl.sums.encrypted.parts.EncryptedTotal": "ciphertexts",
    "securefl.sums.two_server.scheme.Input": "padded vectors, uniform to the server that has them",
    "securefl.matching.sealed.Sealed": "sealed to its receiver",
    "securefl.matching.sealed.Scores": "encrypted, and signed",
    "securefl.core.machine.Work": "a function; the secrets that it is called with are guarded themselves",
    "securefl.core.hiding.ConcealVector": "a function, which has no pickle, and public bounds",
    "securefl.core.hiding.ComputeAndConceal": "work whose masks are functions, which have no pickle",
    "securefl.secagg.server_rounds.Agreeing": "signatures",
    "securefl.secagg.server_rounds.Opening": "shares that were opened to the server",
    "securefl.secagg.server_rounds.Sharing": "what dealers published",
    "securefl.secagg.server_rounds.Summing": "masked sums and signatures",
    "securefl.secagg.unmasking.Summed": "the result",
    "securefl.secagg.unmasking.Unmasking": "shares that were opened to the server; other processes run it",
}
"""What is hidden from print though it is no secret, and why."""


def test_what_is_hidden_from_print_is_guarded_or_said_to_be_public() -> None:
    """Secrets as plain bytes have no type to be found by; the house marks them by hiding them from print."""
    hidden = {
        own
        for own in DATACLASSES
        if not (own.__dataclass_params__.repr and all(field.repr for field in dataclasses.fields(own)))
    }
    guarded = {own for own in hidden if any(map(is_guarded, inside(own)))}
    assert {f"{own.__module__}.{own.__name__}" for own in hidden - guarded} == set(PUBLIC)


def test_files_of_keys_do_not_leave_by_pickle() -> None:
    server = Evaluator.generate()
    for content in server.to_documents():
        for leak in LEAKS:
            with pytest.raises(LocalProtocolError, match="take its `to_bytes`"):
                leak(content)
    assert issubclass(Opener, Guarded), "it holds the key as a matrix"
