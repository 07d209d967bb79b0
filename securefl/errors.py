"""The errors that this package raises: one tree, each with what it means."""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.core.errors import (
        BudgetExceeded,
        ConfigError,
        CryptoError,
        DataError,
        LocalProtocolError,
        PrivacyError,
        ProtocolError,
        RemoteProtocolError,
        SecureFLError,
        UnaccountedRelease,
        UnsupportedEvent,
        WorkerDied,
    )

__all__ = [
    "BudgetExceeded",
    "ConfigError",
    "CryptoError",
    "DataError",
    "LocalProtocolError",
    "PrivacyError",
    "ProtocolError",
    "RemoteProtocolError",
    "SecureFLError",
    "UnaccountedRelease",
    "UnsupportedEvent",
    "WorkerDied",
]
_HOMES = {
    "BudgetExceeded": "core.errors",
    "ConfigError": "core.errors",
    "CryptoError": "core.errors",
    "DataError": "core.errors",
    "LocalProtocolError": "core.errors",
    "PrivacyError": "core.errors",
    "ProtocolError": "core.errors",
    "RemoteProtocolError": "core.errors",
    "SecureFLError": "core.errors",
    "UnaccountedRelease": "core.errors",
    "UnsupportedEvent": "core.errors",
    "WorkerDied": "core.errors",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
