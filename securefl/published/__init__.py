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
    "Figure": "published.table",
    "Measure": "published.table",
    "Part": "published.table",
    "Row": "published.table",
    "Table": "published.table",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
