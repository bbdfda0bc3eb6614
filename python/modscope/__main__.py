"""The command line: ``modscope``, or ``python -m modscope``."""

import sys

from modscope._cli.main import main

if __name__ == "__main__":
    sys.exit(main())
