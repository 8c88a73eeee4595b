"""`python -m sottovoce`: the command line of this very interpreter."""

from sottovoce.app.cli import main

if __name__ == "__main__":
    main()
