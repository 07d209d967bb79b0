"""The nouns of a federated algorithm: queries to a cohort, contributions of its clients, and the plan.

An algorithm states the values that clients contribute, and runs its rounds as queries (`Algorithm`). The plan
says what a run promises. Neither says how sums are hidden or noised.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.algorithm.clients import (
        Algorithm,
        ClientContext,
        ClientFunction,
        Contribution,
        Device,
        Evaluation,
        Population,
        RoundResult,
        State,
        run_round,
    )
    from securefl.algorithm.plan import Plan
    from securefl.algorithm.queries import (
        Answers,
        ByCount,
        ByDraws,
        ClientState,
        CohortQuery,
        Float32s,
        Floats,
        PerClient,
        Sum,
        Total,
        Value,
        ValueSpec,
    )
    from securefl.core.draws import sample_without_replacement
    from securefl.core.grid import Grid
    from securefl.core.linear import LinearBounds, LinearQuery
    from securefl.core.release import Adjacency, Unit
    from securefl.dp.clipping import to_grid

__all__ = [
    "Adjacency",
    "Algorithm",
    "Answers",
    "ByCount",
    "ByDraws",
    "ClientContext",
    "ClientFunction",
    "ClientState",
    "CohortQuery",
    "Contribution",
    "Device",
    "Evaluation",
    "Float32s",
    "Floats",
    "Grid",
    "LinearBounds",
    "LinearQuery",
    "PerClient",
    "Plan",
    "Population",
    "RoundResult",
    "State",
    "Sum",
    "Total",
    "Unit",
    "Value",
    "ValueSpec",
    "run_round",
    "sample_without_replacement",
    "to_grid",
]
_HOMES = {
    "Adjacency": "securefl.core.release",
    "Algorithm": "securefl.algorithm.clients",
    "Answers": "securefl.algorithm.queries",
    "ByCount": "securefl.algorithm.queries",
    "ByDraws": "securefl.algorithm.queries",
    "ClientContext": "securefl.algorithm.clients",
    "ClientFunction": "securefl.algorithm.clients",
    "ClientState": "securefl.algorithm.queries",
    "CohortQuery": "securefl.algorithm.queries",
    "Contribution": "securefl.algorithm.clients",
    "Device": "securefl.algorithm.clients",
    "Evaluation": "securefl.algorithm.clients",
    "Float32s": "securefl.algorithm.queries",
    "Floats": "securefl.algorithm.queries",
    "Grid": "securefl.core.grid",
    "LinearBounds": "securefl.core.linear",
    "LinearQuery": "securefl.core.linear",
    "PerClient": "securefl.algorithm.queries",
    "Plan": "securefl.algorithm.plan",
    "Population": "securefl.algorithm.clients",
    "RoundResult": "securefl.algorithm.clients",
    "State": "securefl.algorithm.clients",
    "Sum": "securefl.algorithm.queries",
    "Total": "securefl.algorithm.queries",
    "Unit": "securefl.core.release",
    "Value": "securefl.algorithm.queries",
    "ValueSpec": "securefl.algorithm.queries",
    "run_round": "securefl.algorithm.clients",
    "sample_without_replacement": "securefl.core.draws",
    "to_grid": "securefl.dp.clipping",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
