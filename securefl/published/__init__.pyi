from securefl.published.table import Axis as Axis
from securefl.published.table import Figure as Figure
from securefl.published.table import Measure as Measure
from securefl.published.table import Part as Part
from securefl.published.table import Row as Row
from securefl.published.table import Table as Table
