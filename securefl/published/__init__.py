"""Published tables: their figures as constants, studies that measure them, and a comparison.

A package adds a table under the entry-point group `securefl.tables`. `securefl reproduce` runs it.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.published.table import Figure, Measure, Part, Row, Table

__all__ = [
    "Figure",
    "Measure",
    "Part",
    "Row",
    "Table",
]
_HOMES = {
    "Figure": "securefl.published.table",
    "Measure": "securefl.published.table",
    "Part": "securefl.published.table",
    "Row": "securefl.published.table",
    "Table": "securefl.published.table",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
