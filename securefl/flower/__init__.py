"""The parties of a run over Flower: the only room that imports flwr (`pip install 'securefl[flower]'`).

envelopes   a frame of bytes as the content of a Flower message, and back
exchange    the server's side: `exchange({party: request}) -> {party: reply}` over a Grid
nodes       which node stands for which party
relay       a node's side: bytes between a Flower message and whoever answers for the party

secure_grid     the server's side of Flower's own strategies: their training as sums
strategies      which of them need no more than a mean
records         a model's record as one vector, and how it becomes a record again
secure_app      the client's side: an app whose results leave through its party alone
study_strategy  a study's own rounds as a strategy

installed       a node that runs the app of its own machine, and none that the SuperLink ships
"""

from __future__ import annotations
