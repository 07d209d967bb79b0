"""The keys of one session of encrypted scores, split over the three parties that hold them."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.he.keys import KeyPair
from securefl.he.parameters import by_name
from securefl.profiles import Bounds, Query, Variant
from securefl.scores.encryptor import Encryptor
from securefl.scores.evaluator import Baseline, Evaluator
from securefl.scores.opener import Opener
from securefl.scores.terms import ScoreTerms
from securefl.signing import SigningKey


@dataclass(frozen=True, eq=False)
class ScoreKeys:
    """Client, server and key holder parts under one fresh key, and the terms they share."""

    terms: ScoreTerms
    encryptor: Encryptor
    evaluator: Evaluator
    opener: Opener

    def baseline(self, query: Query) -> Baseline:
        """What clients are matched with; with encrypted-baseline parameters its owner encrypts it first."""
        if self.terms.parameters.encrypted_baseline:
            return self.evaluator.encrypted_baseline(self.encryptor.encrypt_baseline(query))
        return self.evaluator.baseline(query)

    @classmethod
    def fresh(
        cls, parameters: str, *, bounds: Bounds, length: int, variant: Variant, scores: int
    ) -> ScoreKeys:
        """A fresh key for at most `scores` openings of profiles of `length` elements.

        The key lives as long as the process: a resumed run takes another one, and counts anew.
        """
        terms = ScoreTerms(
            parameters=by_name(parameters), bounds=bounds, length=length, variant=variant, scores=scores
        )
        keys, signing = KeyPair.generate(terms.parameters), SigningKey.generate()
        return cls(
            terms,
            Encryptor(keys.public, terms),
            Evaluator(keys.public, terms, signing),
            Opener(keys, terms, signing.public),
        )
