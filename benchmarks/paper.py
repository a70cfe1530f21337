"""The paper's evaluation, as `chicle evaluate` runs it: `make paper`, and the block of docs/benchmarks/paper.md."""

import sys

from chicle_elastic.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
