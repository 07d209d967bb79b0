"""Secure aggregation over Flower. Only this room imports flwr (the extra `flower`).

exchange          the server's side: `exchange({party: request}) -> {party: reply}` over a Grid, the node of
                  each party, and a node's relay between a Flower message and its party
records           a model's ArrayRecord as one vector and back; a frame as the content of a Flower message
terms             the terms of an app: a TOML beside it, its run config, or a packaged set
secured_strategy  the server's side in one line: a strategy of Flower under the app's terms
secure_grid       the server's side of Flower's own strategies: their training as secure sums
secure_app        the client's side: an app whose results leave only through its party
rehearsal         what a run of an app would refuse, before it runs
study_strategy    a study's own rounds as a Flower strategy
installed         a node that runs the app of its own machine, and no app that the SuperLink ships
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
