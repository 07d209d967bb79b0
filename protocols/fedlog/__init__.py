"""FedLog (Yu, Zhang and Poupart): a Bayesian head from one small sufficient statistic per client."""

from securefl.protocols.fedlog.options import FedLog

__all__ = ["FedLog"]
