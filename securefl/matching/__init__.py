"""Encrypted profile matching as a tool of its own: three parties, in memory or between files.

    key holder   keys = KeyHolder.generate()                      keys.public goes to everybody
    evaluator    server = Evaluator.generate()                    server.public too
    client       sealed = Profile(mean, variance).encrypt(keys.public, server.public, label="p1")
    evaluator    scores = server.match(keys.public, baseline, [sealed, ...])
    key holder   keys.reveal(scores, server.public)

Evaluator and key holder are semi-honest and do not collude. Together they could decrypt every profile. The
evaluator learns no score. The key holder learns scores and nothing else (see `securefl.linear.evaluator`). A
malicious evaluator reads the whole key within a few hundred openings, and with it every profile. `openings`
limits the volume, and does not prevent that.
"""

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    from securefl.matching.admission import NothingLeft
    from securefl.matching.evaluator import Evaluator
    from securefl.matching.key_holder import KeyHolder, Revealed
    from securefl.matching.keys import EvaluatorPublic, PublicKeys
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
_HOMES = {
    "Evaluator": "evaluator",
    "EvaluatorPublic": "keys",
    "KeyHolder": "key_holder",
    "NothingLeft": "admission",
    "Options": "options",
    "Profile": "sealed",
    "PublicKeys": "keys",
    "Refused": "sealed",
    "Revealed": "key_holder",
    "Scores": "sealed",
    "Sealed": "sealed",
}


def __getattr__(name: str) -> object:
    """What is used is imported then: `profiles`, which protocols need, takes no homomorphic library."""
    if name not in _HOMES:
        raise AttributeError(f"module 'securefl.matching' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"securefl.matching.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
