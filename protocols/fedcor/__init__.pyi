from securefl.protocols.fedcor.options import FedCor as FedCor
from securefl.protocols.fedcor.process import covariance as covariance
from securefl.protocols.fedcor.process import fit as fit
from securefl.protocols.fedcor.process import most_informative as most_informative
