"""The keys of one session of encrypted scores, split over the three parties that hold them."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.core.keys import Guarded
from securefl.core.signing import AgreementKey, SigningKey
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.he.ring import Ring
from securefl.profiles import Query
from securefl.scores.encryptor import Encryptor
from securefl.scores.evaluator import Baseline, ScoreEvaluator
from securefl.scores.opener import Opener
from securefl.scores.pad_terms import PARAMETERS
from securefl.scores.terms import ScoreTerms


@dataclass(frozen=True, eq=False)
class ScoreKeys:
    """Client, server and key holder parts under one fresh key, and the terms they share."""

    terms: ScoreTerms
    encryptor: Encryptor
    evaluator: ScoreEvaluator
    opener: Opener

    def baseline(self, query: Query) -> Baseline:
        """What clients are matched with; with encrypted-baseline parameters its owner encrypts it first."""
        if self.terms.parameters.encrypted_baseline:
            return self.evaluator.encrypted_baseline(self.encryptor.encrypt_baseline(query))
        return self.evaluator.baseline(query)

    @classmethod
    def fresh(cls, terms: ScoreTerms) -> ScoreKeys:
        """A fresh key under these terms.

        The key lives as long as the process: a resumed run takes another one, and counts anew.
        """
        keys, signing = KeyPair.generate(terms.parameters), SigningKey.generate()
        return cls(
            terms,
            Encryptor(keys.public, terms),
            ScoreEvaluator(keys.public, terms, signing),
            Opener(keys, terms, signing.public),
        )


@dataclass(frozen=True, eq=False)
class PadKeys(Guarded):
    """Under pads: the key holder's pair and agreement key, the server's signing key, and what was opened."""

    pair: KeyPair
    agreement: AgreementKey
    signing: SigningKey
    openings: Openings
    ring: Ring

    @classmethod
    def fresh(cls) -> PadKeys:
        """Fresh keys; they live as long as the process."""
        return cls(
            KeyPair.generate(PARAMETERS),
            AgreementKey.generate(),
            SigningKey.generate(),
            Openings(),
            Ring(PARAMETERS),
        )
