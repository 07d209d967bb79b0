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
    "BudgetExceeded": "securefl.core.errors",
    "ConfigError": "securefl.core.errors",
    "CryptoError": "securefl.core.errors",
    "DataError": "securefl.core.errors",
    "LocalProtocolError": "securefl.core.errors",
    "PrivacyError": "securefl.core.errors",
    "ProtocolError": "securefl.core.errors",
    "RemoteProtocolError": "securefl.core.errors",
    "SecureFLError": "securefl.core.errors",
    "UnaccountedRelease": "securefl.core.errors",
    "UnsupportedEvent": "securefl.core.errors",
    "WorkerDied": "securefl.core.errors",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
