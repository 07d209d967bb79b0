"""`python -m securefl` is the command `securefl`."""

from securefl.commands.main import main

main()
