"""Encrypted profile matching without federated training: three parties, in memory or with files.

    key holder   keys = KeyHolder.generate()                      keys.public goes to all parties
    evaluator    server = Evaluator.generate()                    server.public too
    client       sealed = Profile(mean, variance).encrypt(keys.public, server.public, label="p1")
    evaluator    scores = server.match(keys.public, baseline, [sealed, ...])
    key holder   keys.reveal(scores, server.public)

Evaluator and key holder are semi-honest and do not collude. Together they could decrypt every profile. The
evaluator learns no score. The key holder learns scores and, if it was declared, the baseline.

By default profiles and keys are those of pads. Under CKKS ("strong", "compact"; the key holder generates keys
with `parameters="strong"`) the evaluator declares its baseline first
(`Evaluator.declare`), and openings are checked (`securefl.linear.checked`): an evaluator alone has one score
of each profile read, which its client signed with a `ClientKey`; with one of these clients it has any entry
of a profile read. An encrypted baseline ("strong-encrypted") is not checked: a malicious evaluator gets its
key within a few hundred openings, and with it every profile that was encrypted so. `openings` limits the
volume and does not prevent that.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
