from securefl.protocols.class_sums import Clipping as Clipping
from securefl.protocols.class_sums import statistic_spec as statistic_spec
from securefl.protocols.fedlog.head import Prior as Prior
from securefl.protocols.fedlog.head import gradient as gradient
from securefl.protocols.fedlog.head import objective as objective
from securefl.protocols.fedlog.head import probabilities as probabilities
from securefl.protocols.fedlog.head import solve as solve
from securefl.protocols.fedlog.options import FedLog as FedLog
