"""`python -m services`: the whole stack on one machine, until a signal arrives."""

from __future__ import annotations

import sys

from services.stack.command import main

if __name__ == "__main__":
    sys.exit(main())
