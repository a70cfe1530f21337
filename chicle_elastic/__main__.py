"""`python -m chicle_elastic ...` is the command `chicle ...`."""

import sys

from chicle_elastic.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
