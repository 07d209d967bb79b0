"""FedProf: selection by representation profiles (Wu, He, Lin and Maple, v1 2021, v2 2022)."""

from protocols.fedprof.options import FedProf

__all__ = ["FedProf"]
