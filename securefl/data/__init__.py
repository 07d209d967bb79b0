"""Data sets by name, their partition over clients, and the corruption of some clients' data.

Nothing here protects anything: the module feeds studies. `sources` finds, checks and splits data sets.
`partitions` cuts them into clients. `corruptions` spoils them on purpose.
"""

from securefl.data.corruptions import Corruption, unrelated
from securefl.data.dataset import Dataset, Split
from securefl.data.fetching import fetch
from securefl.data.files import data_folder
from securefl.data.partitions import Partition
from securefl.data.sources import NAMES, load, require_files

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
    "unrelated",
]
