"""`python -m idmetric`: the command `idmetric`, of exactly this Python."""

import sys

from idmetric.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
