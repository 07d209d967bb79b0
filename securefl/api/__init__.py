"""The Python API: the commands as functions that return objects."""
