"""The basic types of the package: errors, keys, releases, messages, agreements and grids.

Nothing in this folder reads a file, a clock or a socket.
"""
