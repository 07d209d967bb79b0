"""Encrypted profile matching as a tool of its own: three parties, in memory or between files.

    key holder   keys = KeyHolder.generate()                      keys.public goes to everybody
    evaluator    server = Evaluator.generate()                    server.public too
    client       sealed = Profile(mean, variance).encrypt(keys.public, server.public, label="p1")
    evaluator    scores = server.match(keys.public, baseline, [sealed, ...])
    key holder   keys.reveal(scores, server.public)

Evaluator and key holder are semi-honest and do not collude. Together they could decrypt every profile. The
evaluator learns no score. The key holder learns scores and nothing else (see `securefl.scores.evaluator`). A
malicious evaluator reads the whole key within a few hundred openings, and with it every profile. `openings`
limits the volume, and does not prevent that.
"""

from securefl.matching.admission import NothingLeft
from securefl.matching.evaluator import Evaluator
from securefl.matching.evaluator_keys import EvaluatorPublic
from securefl.matching.key_holder import KeyHolder, Revealed
from securefl.matching.keys import PublicKeys
from securefl.matching.options import Options
from securefl.matching.sealed import Profile, Refused, Scores, Sealed

__all__ = [
    "Evaluator",
    "EvaluatorPublic",
    "KeyHolder",
    "NothingLeft",
    "Options",
    "Profile",
    "PublicKeys",
    "Refused",
    "Revealed",
    "Scores",
    "Sealed",
]
