"""What a caller in Python calls: the same as the commands, as functions that return objects."""
