from securefl.core.linear import LinearBounds as LinearBounds
from securefl.core.linear import LinearQuery as LinearQuery
from securefl.linear.encrypted import LinearEvaluator as LinearEvaluator
from securefl.linear.encrypted import Opener as Opener
from securefl.linear.encryptor import Encryptor as Encryptor
from securefl.linear.registry import scheme_of as scheme_of
from securefl.linear.scheme import LinearScheme as LinearScheme
from securefl.linear.terms import LinearTerms as LinearTerms
