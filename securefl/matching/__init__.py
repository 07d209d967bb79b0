"""Encrypted profile matching without federated training: three parties, in memory or with files.

    key holder   keys = KeyHolder.generate()                      keys.public goes to all parties
    evaluator    server = Evaluator.generate()                    server.public too
    client       sealed = Profile(mean, variance).encrypt(keys.public, server.public, label="p1")
    evaluator    scores = server.match(keys.public, baseline, [sealed, ...])
    key holder   keys.reveal(scores, server.public)

Evaluator and key holder are semi-honest and do not collude. Together they could decrypt every profile. The
evaluator learns no score. The key holder learns scores and, if it was declared, the baseline.

By default profiles are under pads. Under CKKS ("strong", "compact") the evaluator declares its baseline first
(`Evaluator.declare`), and openings are checked (`securefl.linear.checked`): an evaluator alone has one score
of each profile read, which its client signed with a `ClientKey`; with one of these clients it has any entry
of a profile read. An encrypted baseline ("strong-encrypted") is not checked: a malicious evaluator gets its
key within a few hundred openings, and with it every profile that was encrypted so. `openings` limits the
volume and does not prevent that.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.matching.admission import NothingLeft
    from securefl.matching.clients import ClientKey, ClientPublic
    from securefl.matching.declared import Declaration
    from securefl.matching.evaluator import Evaluator
    from securefl.matching.key_holder import KeyHolder, Revealed
    from securefl.matching.keys import EvaluatorPublic, PublicKeys
    from securefl.matching.options import Options
    from securefl.matching.profiles import Anchor, Bounds, Variant, divergence, linear_query
    from securefl.matching.sealed import Profile, Refused, Scores, Sealed

__all__ = [
    "Anchor",
    "Bounds",
    "ClientKey",
    "ClientPublic",
    "Declaration",
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
    "Variant",
    "divergence",
    "linear_query",
]
_HOMES = {
    "Anchor": "securefl.matching.profiles",
    "Bounds": "securefl.matching.profiles",
    "ClientKey": "securefl.matching.clients",
    "ClientPublic": "securefl.matching.clients",
    "Declaration": "securefl.matching.declared",
    "Evaluator": "securefl.matching.evaluator",
    "EvaluatorPublic": "securefl.matching.keys",
    "KeyHolder": "securefl.matching.key_holder",
    "NothingLeft": "securefl.matching.admission",
    "Options": "securefl.matching.options",
    "Profile": "securefl.matching.sealed",
    "PublicKeys": "securefl.matching.keys",
    "Refused": "securefl.matching.sealed",
    "Revealed": "securefl.matching.key_holder",
    "Scores": "securefl.matching.sealed",
    "Sealed": "securefl.matching.sealed",
    "Variant": "securefl.matching.profiles",
    "divergence": "securefl.matching.profiles",
    "linear_query": "securefl.matching.profiles",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
