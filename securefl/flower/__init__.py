"""The parties of a run over Flower: the only room that imports flwr (`pip install 'securefl[flower]'`).

envelopes   a frame of bytes as the content of a Flower message, and back
exchange    the server's side: `exchange({party: request}) -> {party: reply}` over a Grid
nodes       which node stands for which party
relay       a node's side: bytes between a Flower message and whoever answers for the party

secure_grid     the server's side of Flower's own strategies: their training as sums
strategies      which of them need no more than a mean
records         a model's record as one vector, and how it becomes a record again
secure_app      the client's side: an app whose results leave through its party alone
study_strategy  a study's own rounds as a strategy

installed       a node that runs the app of its own machine, and none that the SuperLink ships
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.flower.exchange import GridExchange, relay
    from securefl.flower.installed import serve_node
    from securefl.flower.secure_app import secure
    from securefl.flower.secure_grid import SecureGrid
    from securefl.flower.study_strategy import StudyStrategy

__all__ = [
    "GridExchange",
    "SecureGrid",
    "StudyStrategy",
    "relay",
    "secure",
    "serve_node",
]
_HOMES = {
    "GridExchange": "flower.exchange",
    "SecureGrid": "flower.secure_grid",
    "StudyStrategy": "flower.study_strategy",
    "relay": "flower.exchange",
    "secure": "flower.secure_app",
    "serve_node": "flower.installed",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
