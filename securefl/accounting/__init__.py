"""Privacy accounting: ledgers of releases, composition of privacy events, budgets and statements."""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.accounting.composition import compose
    from securefl.accounting.events import NO_COST, NON_PRIVATE, steps_event
    from securefl.accounting.ledger import Ledger
    from securefl.accounting.statements import Statement, statement
    from securefl.accounting.store import Terms
    from securefl.core.release import Charge

__all__ = [
    "NON_PRIVATE",
    "NO_COST",
    "Charge",
    "Ledger",
    "Statement",
    "Terms",
    "compose",
    "statement",
    "steps_event",
]
_HOMES = {
    "Charge": "securefl.core.release",
    "Ledger": "securefl.accounting.ledger",
    "NON_PRIVATE": "securefl.accounting.events",
    "NO_COST": "securefl.accounting.events",
    "Statement": "securefl.accounting.statements",
    "Terms": "securefl.accounting.store",
    "compose": "securefl.accounting.composition",
    "statement": "securefl.accounting.statements",
    "steps_event": "securefl.accounting.events",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
