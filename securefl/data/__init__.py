"""Data sets by name, their partition over clients, and the corruption of some clients' data.

This room supplies the records of studies and has no privacy protection of its own. `sources` finds, checks
and splits data sets. `partitions` divides their records between clients. `corruptions` corrupts them on
purpose.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.data.corruptions import Corruption
    from securefl.data.dataset import Dataset, Split
    from securefl.data.digests import NAMES
    from securefl.data.fetching import fetch
    from securefl.data.files import data_folder
    from securefl.data.partitions import Partition
    from securefl.data.sources import load, require_files

__all__ = [
    "NAMES",
    "Corruption",
    "Dataset",
    "Partition",
    "Split",
    "data_folder",
    "fetch",
    "load",
    "require_files",
]
_HOMES = {
    "Corruption": "securefl.data.corruptions",
    "Dataset": "securefl.data.dataset",
    "NAMES": "securefl.data.digests",
    "Partition": "securefl.data.partitions",
    "Split": "securefl.data.dataset",
    "data_folder": "securefl.data.files",
    "fetch": "securefl.data.fetching",
    "load": "securefl.data.sources",
    "require_files": "securefl.data.sources",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
