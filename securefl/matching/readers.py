"""The key holder's reading of scores that are addressed to it: each profile's is opened once."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from securefl.core.errors import CryptoError, DataError, RemoteProtocolError
from securefl.core.keys import PublicKey, SecretKey
from securefl.core.signing import SIGNATURE_BYTES, AgreementKey, SigningKey, unseal
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.linear.addressed import QUERY, Opening, PadFiles
from securefl.linear.addressed_checked import CheckedFiles
from securefl.linear.checked import key_factors
from securefl.linear.encrypted import Opener
from securefl.linear.pad_terms import KEY
from securefl.linear.turn import PublicQuery, Score, read_score, refusal, told_weights
from securefl.matching.clients import ClientPublic
from securefl.matching.keys import SETS, EvaluatorPublic, pads_key
from securefl.matching.matchers import requests_context
from securefl.matching.options import Files
from securefl.matching.sealed import Scores


class Reader:
    """Reads the scores of one file.

    The record of openings is keyed by what a client makes once: under pads its fresh key, under CKKS what it
    signed. So it holds over restarts, and a second request for one profile is refused.

    Args:
        signing, secrets: the key holder's.
        scores: the file.
        evaluator: the evaluator that signed it.
        files: the cipher, for this session, evaluator and options.
        clients: the signing keys of those who may be opened, under checked ciphertexts.
        openings: the durable record.
        most: the most openings of its keys.

    Raises:
        DataError: requests that were not sealed to this key with this header, or of another length, or
            weights that no baseline inside the bounds has or that were not the declared ones.
    """

    def __init__(
        self,
        signing: SigningKey,
        secrets: tuple[SecretKey, ...],
        scores: Scores,
        evaluator: EvaluatorPublic,
        files: Files,
        clients: frozenset[bytes],
        openings: Openings,
        most: int,
    ) -> None:
        self._files, self._openings, self._most = files, openings, most
        body, agreement = scores.body[:-SIGNATURE_BYTES], pads_key(signing)
        opening: Callable[[bytes, str], Opening]
        if isinstance(files, PadFiles):
            items, weights, query = _opened(body, agreement, scores, files, b"")
            opening = partial(files.opening, agreement, weights, query)
        else:
            pair = KeyPair(files.key, secrets[SETS.index(files.key.parameters)])
            if isinstance(files, CheckedFiles):
                items, weights, query = _opened(body, agreement, scores, files, pair.public.session)
                factors, known = key_factors(weights, pair, files.terms), partial(_require_known, clients)
                opening = partial(files.opening, factors, query, known, random.SystemRandom())
            else:
                items = _split(body, len(scores.labels), files.item_bytes)
                opening = Opener(pair, files.terms, evaluator.signing, openings=openings).opening
        self.requests, self._opening = items, opening
        self.error_bound = files.error_bound(len(items))
        self._uses = Counter(one[:KEY] for one in items if isinstance(files, PadFiles))

    def name(self, request: bytes) -> str:
        """16 hex digits that name a request in the ledger."""
        return hashlib.sha256(request[: len(request) - self._files.loose_bytes]).hexdigest()[:16]

    def read(self, request: bytes, label: str) -> Score:
        """The score. Raises RemoteProtocolError(label) for a request that must not be answered."""
        if self._uses[request[:KEY]] > 1:
            raise refusal(
                "Expected each fresh key once, got one twice. Have the profile encrypted again.",
                label,
                "checks",
            )
        once, own, opened = self._opening(request, label)
        stored = self._openings.once(once, 1, self._most, lambda: own + opened(), sender=label)
        if not stored.startswith(own):
            raise refusal(
                "Expected the first request for this profile again, got another: a profile is scored once. "
                "Have it encrypted again.",
                label,
                "checks",
            )
        found = int.from_bytes(stored[len(own) :], "little")
        return read_score(found, self._files.terms, self.error_bound, sender=label)


def _opened(
    body: bytes, agreement: AgreementKey, scores: Scores, files: PadFiles | CheckedFiles, key: bytes
) -> tuple[tuple[bytes, ...], Any, PublicQuery]:
    """The items in a sealed body, and the told weights before them. None of dealt pads."""
    try:
        plain = unseal(agreement, body, requests_context(scores.header))
        items = _split(plain[files.head_bytes :], len(scores.labels), files.item_bytes)
        if not files.head_bytes:
            return items, None, PublicQuery(terms=files.terms, name=QUERY, told=b"")
        head = plain[: files.head_bytes]
        weights, query = told_weights(head, files.terms, QUERY, key, sender="evaluator")
    except (CryptoError, RemoteProtocolError) as error:
        raise DataError(f"{error} Have the profiles matched again.") from None
    if query.told.hex() != scores.header["declared"]:
        raise DataError(
            "Expected the weights that were declared to the clients, got others. Have the profiles "
            "matched again."
        )
    return items, weights, query


def _split(plain: bytes, count: int, size: int) -> tuple[bytes, ...]:
    if len(plain) != count * size:
        raise DataError(
            f"Expected {count} requests of {size} bytes, got {len(plain)} bytes. Have the profiles matched "
            "again."
        )
    return tuple(plain[i * size : (i + 1) * size] for i in range(count))


def _require_known(clients: frozenset[bytes], public: PublicKey, label: str) -> None:
    if public.raw not in clients:
        raise refusal(
            "Expected a profile of a client whose key was given, got one of the client with fingerprint "
            f"{ClientPublic(public).fingerprint}. Give its client.pub as --client.",
            label,
            "checks",
        )
