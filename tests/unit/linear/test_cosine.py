"""A number that is no divergence travels by the same schemes: the cosine of a vector with a public direction.

It can be negative, which no divergence is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.every import every
from support.tiny_he import SIGNER, Checked, pad_holder, pad_request, pad_score, pad_server

from securefl.core.errors import ConfigError
from securefl.core.linear import LinearBounds, LinearQuery
from securefl.core.signing import AgreementKey
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED, Parameters
from securefl.linear.pad_terms import PadTerms
from securefl.linear.pads import mask
from securefl.linear.terms import LinearTerms

LENGTH = 300
COSINE = LinearBounds(
    hidden_length=LENGTH, norm=1, weight_norm=1 + 1e-9, row_norm=1 + 1e-9, product=1, least=-1, most=1
)
RNG = np.random.default_rng(4)


def direction() -> np.ndarray:
    drawn = RNG.normal(size=LENGTH)
    return drawn / np.linalg.norm(drawn)


QUERY, OWN = LinearQuery(COSINE, direction()), direction()
VECTORS = [OWN, -OWN, QUERY.hidden, -QUERY.hidden]


@every("own", VECTORS)
@every("parameters", [STRONG, COMPACT])
def test_a_cosine_under_ckks(parameters: Parameters, own: np.ndarray) -> None:
    score = Checked(parameters, QUERY, scores=50).score(own)
    assert abs(score.value - own @ QUERY.hidden) <= score.error_bound < 0.01


def test_cosines_under_pads() -> None:
    terms, agreement = PadTerms(bounds=COSINE, context=b"c"), AgreementKey.generate()
    server = pad_server(terms, 0, "cosine", SIGNER, QUERY)
    holder = pad_holder(agreement, terms, ("cosine",), len(VECTORS), SIGNER.public)
    masked = [mask(own, terms, "cosine", server.declared.told, agreement.public) for own in VECTORS]
    reply = holder.open(pad_request(server, masked))
    for place, (own, message) in enumerate(zip(VECTORS, masked, strict=True)):
        score = pad_score(server, message, reply[8 * place : 8 * place + 8])
        assert abs(score.value - own @ QUERY.hidden) <= score.error_bound < 1e-3


def test_a_query_of_other_bounds_is_no_query_for_these_pads() -> None:
    narrow = LinearBounds(hidden_length=LENGTH, norm=1, weight_norm=2, row_norm=2, product=1)
    terms = PadTerms(bounds=narrow, context=b"c")
    with pytest.raises(ConfigError, match="bounds of its pads"):
        pad_server(terms, 0, "cosine", SIGNER, QUERY)


def test_the_row_of_an_encrypted_query_is_bounded_by_its_own_norm() -> None:
    wide = replace(COSINE, row_norm=3)
    single, encrypted = (
        LinearTerms(parameters=parameters, bounds=wide, scores=50)
        for parameters in (STRONG, STRONG_ENCRYPTED)
    )
    assert (single.weight_norm, encrypted.weight_norm) == (1 + 1e-9, 3)
    before = LinearTerms(parameters=STRONG_ENCRYPTED, bounds=COSINE, scores=50)
    assert 1.5 < encrypted.sigma / before.sigma < 3, "noise of features stays as it is"
