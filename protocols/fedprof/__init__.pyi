from securefl.protocols.fedprof.options import ByProfile as ByProfile
from securefl.protocols.fedprof.options import FedProf as FedProf
from securefl.protocols.fedprof.options import log_weights as log_weights
from securefl.protocols.fedprof.statistic import Clip as Clip
from securefl.protocols.fedprof.statistic import profile_spec as profile_spec
