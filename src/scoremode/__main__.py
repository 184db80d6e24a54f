"""`python -m scoremode` is the same program as the console script `scoremode`."""

import sys

from scoremode.cli.program import program

if __name__ == "__main__":
    sys.exit(program())
