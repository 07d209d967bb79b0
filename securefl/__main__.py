"""`python -m securefl` is the command `securefl`."""

from securefl.commands.main import main

if __name__ == "__main__":  # whoever imports every module runs nothing
    main()
