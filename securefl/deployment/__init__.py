"""Parties that live apart: their rosters, their sessions, sockets to reach them, and an engine over them.

The code is in `engine.apart` and `study.parties`. This face names what others import.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.engine.apart.connection import send
    from securefl.engine.apart.engine import RemoteEngine
    from securefl.engine.apart.local_deployment import LocalDeployment
    from securefl.engine.apart.party_session import PartySession
    from securefl.engine.apart.remote_transport import SendAndReceive
    from securefl.engine.apart.roster import PinnedRoster
    from securefl.engine.apart.serving import serve
    from securefl.engine.apart.updates import Updates
    from securefl.study.parties.asking import run_deployed

__all__ = [
    "LocalDeployment",
    "PartySession",
    "PinnedRoster",
    "RemoteEngine",
    "SendAndReceive",
    "Updates",
    "run_deployed",
    "send",
    "serve",
]
_HOMES = {
    "LocalDeployment": "engine.apart.local_deployment",
    "PartySession": "engine.apart.party_session",
    "PinnedRoster": "engine.apart.roster",
    "RemoteEngine": "engine.apart.engine",
    "SendAndReceive": "engine.apart.remote_transport",
    "Updates": "engine.apart.updates",
    "run_deployed": "study.parties.asking",
    "send": "engine.apart.connection",
    "serve": "engine.apart.serving",
}
_RENAMED = {
    "Apart": "RemoteEngine",
    "Exchange": "SendAndReceive",
    "House": "LocalDeployment",
    "Resident": "PartySession",
    "run_apart": "run_deployed",
}
__getattr__, __dir__ = lazy(__name__, _HOMES, _RENAMED)
