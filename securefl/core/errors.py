"""Every error this package raises on purpose.

    SecureFLError
    ├── ConfigError                  the configuration cannot be used as written
    ├── ProtocolError
    │   ├── LocalProtocolError       you called it wrongly
    │   └── RemoteProtocolError      the peer did; carries `sender` and `phase`
    ├── CryptoError                  no detail reaches the peer
    ├── PrivacyError
    │   ├── BudgetExceeded           the release would break the budget
    │   ├── UnaccountedRelease       a value tried to leave without a charge
    │   └── UnsupportedEvent         the accountant cannot compose this event
    ├── DataError                    a data set is missing, damaged or unusable
    └── WorkerDied                   a worker process ended before its work

A message says what was expected, what came, and what to do.
"""

from __future__ import annotations


class SecureFLError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(SecureFLError):
    """The configuration cannot be used as written.

    placed: whether the message says which file and section it is about.
    """

    placed: bool = False


class ProtocolError(SecureFLError):
    """A protocol rule was broken."""


class LocalProtocolError(ProtocolError):
    """This party was driven against the rules of its protocol."""


class RemoteProtocolError(ProtocolError):
    """A peer broke the rules; it loses its place in the round, nobody else does."""

    def __init__(self, message: str, *, sender: str = "unknown", phase: str = "decode") -> None:
        super().__init__(message)
        self.sender = sender
        self.phase = phase

    def __str__(self) -> str:
        return f"{self.sender} in phase {self.phase}: {super().__str__()}"


class CryptoError(SecureFLError):
    """A cryptographic check failed; deliberately without detail."""


class PrivacyError(SecureFLError):
    """A privacy rule would have been broken."""


class BudgetExceeded(PrivacyError):
    """The release asked for costs more than the ledger has left."""


class UnaccountedRelease(PrivacyError):
    """A value that depends on data tried to leave without a committed charge."""


class UnsupportedEvent(PrivacyError):
    """The accountant cannot compose this event."""


class DataError(SecureFLError):
    """A data set is missing, damaged or unusable."""


class WorkerDied(SecureFLError):
    """A worker process ended before its work. What was finished is kept."""
