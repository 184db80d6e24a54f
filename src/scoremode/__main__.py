"""`python -m scoremode` is the same program as the console script `scoremode`."""

import sys

from scoremode.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
