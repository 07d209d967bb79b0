from securefl.protocols.adds.feddrop import FedDrop as FedDrop
from securefl.protocols.adds.part import Adds as Adds
from securefl.protocols.adds.subnet_search import Gate as Gate
from securefl.protocols.adds.subnet_search import Search as Search
from securefl.protocols.adds.subnet_search import Subnet as Subnet
from securefl.protocols.adds.subnet_search import bilevel as bilevel
from securefl.protocols.adds.subnet_search import gates as gates
from securefl.protocols.adds.supernet import Supernet as Supernet
