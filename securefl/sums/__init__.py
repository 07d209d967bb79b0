"""Hidden sums: schemes by which the server learns the sum of clients' integers and nothing else.

clear        the server of an exchange adds open integers
masked       clients mask each other's integers (`secagg`)
encrypted    clients encrypt, and the key holder opens the total under a pad
two_server   clients send padded integers to the server, and the seeds of the pads to the key holder

Under every scheme the same integers of one public grid are added, so the totals are the same, bit for bit.
Another distribution adds a scheme under the entry-point group `securefl.sums` (`registry`).
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.core.acts import RecordAct, entering
    from securefl.core.agreement import Agreement, Directory, Identity
    from securefl.core.hiding import ComputeAndConceal, Concealed
    from securefl.core.machine import Expects, Machine, Need, Outgoing, Step
    from securefl.core.release import Release
    from securefl.core.wire import Header, Limit, message
    from securefl.storage.own_record import Own
    from securefl.sums.registry import names, scheme_of
    from securefl.sums.scheme import Attempt, Opened, SumScheme, Unopened

__all__ = [
    "Agreement",
    "Attempt",
    "ComputeAndConceal",
    "Concealed",
    "Directory",
    "Expects",
    "Header",
    "Identity",
    "Limit",
    "Machine",
    "Need",
    "Opened",
    "Outgoing",
    "Own",
    "RecordAct",
    "Release",
    "Step",
    "SumScheme",
    "Unopened",
    "entering",
    "message",
    "names",
    "scheme_of",
]
_HOMES = {
    "Agreement": "securefl.core.agreement",
    "Attempt": "securefl.sums.scheme",
    "ComputeAndConceal": "securefl.core.hiding",
    "Concealed": "securefl.core.hiding",
    "Directory": "securefl.core.agreement",
    "Expects": "securefl.core.machine",
    "Header": "securefl.core.wire",
    "Identity": "securefl.core.agreement",
    "Limit": "securefl.core.wire",
    "Machine": "securefl.core.machine",
    "Need": "securefl.core.machine",
    "Opened": "securefl.sums.scheme",
    "Outgoing": "securefl.core.machine",
    "Own": "securefl.storage.own_record",
    "RecordAct": "securefl.core.acts",
    "Release": "securefl.core.release",
    "Step": "securefl.core.machine",
    "SumScheme": "securefl.sums.scheme",
    "Unopened": "securefl.sums.scheme",
    "entering": "securefl.core.acts",
    "message": "securefl.core.wire",
    "names": "securefl.sums.registry",
    "scheme_of": "securefl.sums.registry",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
