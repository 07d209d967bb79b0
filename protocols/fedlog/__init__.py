"""FedLog: a Bayesian head from one small sufficient statistic per client (with a public body so far)."""

from protocols.fedlog.options import FedLog

__all__ = ["FedLog"]
