"""The command line: a module for each command.

A command imports its dependencies inside its function, so that `--help` does not wait for torch.
"""
