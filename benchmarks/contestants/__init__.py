"""Who takes part in `benchmarks/peers.py`, each in a process and an environment of its own.

A contestant is a module with `play` and the names of its packages. `turns` has what all of them share, and
`models` what those without securefl do. No module here imports more than numpy and its contestant's packages.
"""
