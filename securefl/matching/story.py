"""One encrypted match, step by step: what each party holds, and what it sees of the others.

`played` plays all parties in one process with fresh keys, by the files of a matching, and notes everything
that a party gets. In a real matching nobody has such a record: it has the secrets of all parties.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from securefl.core.errors import ConfigError, DataError
from securefl.core.linear import Floats
from securefl.core.signing import SIGNATURE_BYTES, unseal
from securefl.linear.addressed import PadFiles
from securefl.linear.padded_vector import PaddedVector, padded_vector
from securefl.matching.clients import ClientKey
from securefl.matching.evaluator import Evaluator
from securefl.matching.key_holder import KeyHolder
from securefl.matching.keys import pads_key
from securefl.matching.matchers import requests_context
from securefl.matching.options import Files, Options
from securefl.matching.profiles import divergence
from securefl.matching.sealed import Profile, Scores, Sealed

_OPENINGS = 100
"""The openings that the keys of a story allow."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Client:
    """One client's part. Bytes are as they are on disk and on the way.

    features: the client's vector before encryption. clear: what the variant leaves the evaluator to read.
    file: what it sends, as anybody on the way sees it. sealed: its part that is not readable. message: the
    same part, as the evaluator opens it. again: the message of a second encryption of the same profile, which
    is not sent. request: what the evaluator sends on for this client, as the key holder opens it. score: what
    the key holder reads. truth: the divergence of the plain profiles, which no party of the protocol can
    compute. words: of pads; None for ciphertexts.
    """

    label: str
    profile: Profile
    features: Floats
    clear: Floats
    file: bytes
    sealed: bytes
    message: bytes
    again: bytes
    request: bytes
    score: float
    truth: float
    words: PaddedVector | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Story:
    """A match of several clients with one baseline. weights: of its hidden part. public_key: of the
    key holder, in bytes. declaration: the evaluator's file with the digest of its weights, which clients wait
    for; None under pads. scores_file: what the evaluator sends to the key holder, as on the way. bound:
    |score - truth| is at most this. seconds: of "keys", "declared", "encrypted" (a client), "matched" and
    "revealed" (all clients)."""

    options: Options
    baseline: Profile
    weights: Floats
    clients: Sequence[Client]
    public_key: int
    declaration: bytes | None
    scores_file: bytes
    bound: float
    seconds: Mapping[str, float]


def played(
    profiles: Mapping[str, Profile],
    baseline: Profile,
    options: Options,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Story:
    """Play a match of these profiles, by label, with a baseline, under fresh keys.

    Under ciphertexts the evaluator declares its baseline first, and the key holder checks every opening.
    clock: in seconds. Raises ConfigError or DataError for profiles, labels or a baseline that the matching
    refuses under these options, and for options with a declared or an encrypted baseline: the story has no
    step for them.
    """
    if options.declared is not None or options.encrypted_baseline:
        raise ConfigError(
            "Expected options without a declared or an encrypted baseline, got others: the story has no step "
            "for them. Leave --declared and strong-encrypted out."
        )
    if not profiles:
        raise DataError("Expected at least one profile to match, got none.")
    seconds: dict[str, float] = {}

    def timed(what: str, action: Callable[[], Any]) -> Any:
        start = clock()
        found = action()
        seconds[what] = clock() - start
        return found

    holder = timed("keys", lambda: KeyHolder.generate(openings=_OPENINGS, parameters=options.parameters))
    evaluator = Evaluator.generate()
    declaration = None
    if not options.padded:
        declaration = timed("declared", lambda: evaluator.declare(holder.public, baseline, options=options))
        options = declaration.checked(holder.public, evaluator.public, spread=options.bounds.spread)
    keys = {label: ClientKey.generate() for label in profiles}

    def encrypted(label: str) -> Sealed:
        signing = None if options.padded else keys[label]
        own = profiles[label]
        return own.encrypt(holder.public, evaluator.public, label=label, options=options, own=signing)

    sealed = timed("encrypted", lambda: {label: encrypted(label) for label in profiles})
    seconds["encrypted"] /= len(profiles)
    scores = timed(
        "matched", lambda: evaluator.match(holder.public, baseline, list(sealed.values()), options=options)
    )
    for one in scores.refused:
        raise DataError(f"{one.label}: {one.why}")
    known, spread = [own.public for own in keys.values()], options.bounds.spread
    revealed = timed(
        "revealed", lambda: holder.reveal(scores, evaluator.public, clients=known, spread=spread)
    )
    for label, why in revealed.refused.items():
        raise DataError(f"{label}: {why}")
    files = options.files(len(baseline), holder.public, evaluator.public.fingerprint)
    requests = _requests(holder, scores, files)
    linear = options.query(baseline).linear(options.variant, options.bounds)
    clients = []
    for (label, own), request in zip(profiles.items(), requests, strict=True):
        sent = sealed[label]
        again = encrypted(label)
        message = unseal(evaluator.agreement, sent.body, sent.context())
        parts = options.features(own).split(options.variant)
        clients.append(
            Client(
                label=label,
                profile=own,
                features=parts.hidden,
                clear=parts.clear,
                file=sent.to_document().to_bytes(),
                sealed=sent.body,
                message=message,
                again=unseal(evaluator.agreement, again.body, again.context()),
                request=request,
                score=revealed.scores[label],
                truth=divergence(own, baseline),
                words=padded_vector(
                    files,
                    pads_key(holder.signing),
                    linear,
                    parts.hidden,
                    label=label,
                    message=message,
                    request=request,
                )
                if isinstance(files, PadFiles)
                else None,
            )
        )
    return Story(
        options=options,
        baseline=baseline,
        weights=linear.hidden,
        clients=clients,
        public_key=len(holder.public.to_document().to_bytes()),
        declaration=None if declaration is None else declaration.to_document().to_bytes(),
        scores_file=scores.to_document().to_bytes(),
        bound=revealed.error_bound,
        seconds=seconds,
    )


def _requests(holder: KeyHolder, scores: Scores, files: Files) -> list[bytes]:
    """The part of each client in what the key holder opens. Weights that are told stand before them."""
    body = unseal(pads_key(holder.signing), scores.body[:-SIGNATURE_BYTES], requests_context(scores.header))
    return [body[at : at + files.item_bytes] for at in range(files.head_bytes, len(body), files.item_bytes)]
