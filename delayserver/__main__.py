"""`python -m delayserver`, the same as `delayserver`."""

import sys

from delayserver.cli import main

if __name__ == "__main__":
    sys.exit(main())
