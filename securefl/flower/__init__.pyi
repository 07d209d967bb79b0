from securefl.flower.exchange import GridExchange as GridExchange
from securefl.flower.exchange import relay as relay
from securefl.flower.installed import serve_node as serve_node
from securefl.flower.secure_app import secure as secure
from securefl.flower.secure_grid import SecureGrid as SecureGrid
from securefl.flower.secured_strategy import secure_strategy as secure_strategy
from securefl.flower.study_strategy import StudyStrategy as StudyStrategy
from securefl.flower.terms import AppTerms as AppTerms
