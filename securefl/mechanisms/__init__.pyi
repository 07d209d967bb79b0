from securefl.core.release import Charge as Charge
from securefl.mechanisms.charges import Protection as Protection
from securefl.mechanisms.charges import grid_within as grid_within
from securefl.mechanisms.mechanism import Headroom as Headroom
from securefl.mechanisms.mechanism import Mechanism as Mechanism
from securefl.mechanisms.protecting import protect as protect
from securefl.mechanisms.registry import names as names
