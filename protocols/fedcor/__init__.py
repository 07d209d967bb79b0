"""FedCor: selection by the correlation of loss changes (Tang et al., CVPR 2022)."""

from securefl.protocols.fedcor.options import FedCor

__all__ = ["FedCor"]
