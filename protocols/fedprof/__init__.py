"""FedProf: selection by representation profiles (Wu, He, Lin and Maple, v1 2021, v2 2022)."""

from securefl.protocols.fedprof.options import FedProf
from securefl.protocols.fedprof.statistic import Clip, profile_sends, profile_value

__all__ = ["Clip", "FedProf", "profile_sends", "profile_value"]
