"""The exceptions that this package raises on purpose.

    SecureFLError
    ├── ConfigError                  the configuration cannot be used as written
    ├── ProtocolError
    │   ├── LocalProtocolError       the caller broke a rule of the protocol
    │   └── RemoteProtocolError      a peer broke a rule of the protocol; carries `sender` and `phase`
    ├── CryptoError                  a cryptographic check failed; no detail reaches the peer
    ├── PrivacyError
    │   ├── BudgetExceeded           the release would exceed the budget
    │   ├── UnaccountedRelease       a value was about to leave without a committed charge
    │   └── UnsupportedEvent         the accountant cannot compose this event
    ├── DataError                    a data set is missing, damaged or unusable
    └── WorkerDied                   a worker process ended before its work was done

A message says what was expected, what came, and what to do.
"""

from __future__ import annotations


def of_another_version(expected: str, got: str, anew: str = "begin anew in another folder") -> str:
    """The sentence that refuses a file or folder of another version of its format.

    Args:
        expected: what the format is here, with its version.
        got: what was found, with its version.
        anew: what to do without the release that made it.
    """
    return (
        f"Expected {expected}, got {got}: another release of securefl made it, and this one neither reads "
        f"nor changes it. Use that release, or {anew}."
    )


class SecureFLError(Exception):
    """Base class of all errors that this package raises on purpose.

    It is never raised itself. Catch it to catch every error below.

    >>> from securefl.errors import ConfigError, SecureFLError
    >>> try:
    ...     raise ConfigError("Expected delta below 1, got 2. Lower delta.")
    ... except SecureFLError as error:
    ...     print(error)
    Expected delta below 1, got 2. Lower delta.
    """


class ConfigError(SecureFLError):
    """Raised if a configuration, plan or parameter cannot be used as written.

    Attributes:
        placed: whether the message names the file and the section.

    >>> from securefl.algorithm import Grid
    >>> from securefl.errors import ConfigError
    >>> try:
    ...     Grid(step=-1.0)
    ... except ConfigError as error:
    ...     print(error)
    Expected step > 0 and bound > 0 with bound / step < 2^31, got -1.0, 512.0.
    """

    placed: bool = False


class ProtocolError(SecureFLError):
    """Base class of errors about broken protocol rules.

    It is raised itself if an encrypted selection ends without the score of any client.

    >>> from securefl.errors import LocalProtocolError, ProtocolError
    >>> issubclass(LocalProtocolError, ProtocolError)
    True
    """


class LocalProtocolError(ProtocolError):
    """Raised if the caller breaks a rule of the protocol, for example with an array of the wrong shape.

    >>> from securefl.algorithm import Value
    >>> from securefl.errors import LocalProtocolError
    >>> try:
    ...     Value(after_noise=lambda numbers: numbers)
    ... except LocalProtocolError as error:
    ...     print(error)
    Expected `integers` with `after_noise`, which is applied to them.
    """


class RemoteProtocolError(ProtocolError):
    """Raised if a peer's message breaks a rule. The peer loses its place in the round; no other party does.

    Attributes:
        sender: the name of the peer.
        phase: the phase of the protocol in which the message arrived.

    >>> from securefl.errors import RemoteProtocolError
    >>> print(RemoteProtocolError("Expected 8 values, got 7.", sender="client-0003", phase="mask"))
    client-0003 in phase mask: Expected 8 values, got 7.
    """

    def __init__(self, message: str, *, sender: str = "unknown", phase: str = "decode") -> None:
        super().__init__(message)
        self.sender = sender
        self.phase = phase

    def __str__(self) -> str:
        return f"{self.sender} in phase {self.phase}: {super().__str__()}"


class CryptoError(SecureFLError):
    """Raised if a signature, a seal, a key or another cryptographic check fails.

    The message has no detail on purpose, because details can help an attacker.

    >>> from securefl.errors import CryptoError
    >>> from securefl.sums import Directory, Identity
    >>> server = Identity.generate("server").member()
    >>> directory = Directory(bytes(32), server, None, lambda names: {}[names[0]])
    >>> try:
    ...     directory.roster(["client-0000"])
    ... except CryptoError as error:
    ...     print(error)
    Expected clients whose keys are pinned, got 'client-0000'.
    """


class PrivacyError(SecureFLError):
    """Base class of errors that stop a violation of a privacy rule. It is never raised itself.

    >>> from securefl.errors import BudgetExceeded, PrivacyError
    >>> issubclass(BudgetExceeded, PrivacyError)
    True
    """


class BudgetExceeded(PrivacyError):
    """Raised if a release would cost more than the ledger's remaining budget. The value does not leave.

    >>> from securefl.errors import BudgetExceeded
    >>> raise BudgetExceeded("Expected a total of epsilon <= 2, got 2.1.")
    Traceback (most recent call last):
    securefl.core.errors.BudgetExceeded: Expected a total of epsilon <= 2, got 2.1.
    """


class UnaccountedRelease(PrivacyError):
    """Raised if a value that depends on data is about to leave without a committed charge.

    `wire.encode` and the ledger make this check.

    >>> from securefl.errors import PrivacyError, UnaccountedRelease
    >>> issubclass(UnaccountedRelease, PrivacyError)
    True
    """


class UnsupportedEvent(PrivacyError):
    """Raised if the accountant cannot compose an event.

    >>> from dp_accounting import DpEvent
    >>> from securefl.accounting import compose
    >>> from securefl.errors import UnsupportedEvent
    >>> try:
    ...     compose({DpEvent(): 1}, delta=1e-5)
    ... except UnsupportedEvent:
    ...     print("unsupported")
    unsupported
    """


class DataError(SecureFLError):
    """Raised if a data set is missing, damaged or unusable, or if a client's value is not finite or too big.

    >>> import numpy as np
    >>> from securefl.algorithm import Grid
    >>> from securefl.errors import DataError
    >>> try:
    ...     Grid().quantise(np.array([1000.0]))
    ... except DataError as error:
    ...     print(error)
    Expected a contribution within +-512, the bound of its grid, got a larger one. Lower the learning
    rate, or bound the update (`update_bound`).
    """


class WorkerDied(SecureFLError):
    """Raised if a worker process ends before its work is done. Finished work is kept.

    >>> from securefl.errors import SecureFLError, WorkerDied
    >>> issubclass(WorkerDied, SecureFLError)
    True
    """
