"""What an agent ends with where an error ends it."""

import sys

from chicle_elastic.cluster.options import PROGRAM
from chicle_elastic.cluster.rendezvous.errors import JobClosedError
from chicle_elastic.errors import ChicleError, UsageError

EXIT_FAILED = 1
EXIT_USAGE = 2


def exit_code_of_error(error: ChicleError) -> int:
    """Print an error, and return the exit code."""
    print(f"{PROGRAM}: {error}", file=sys.stderr)
    if isinstance(error, JobClosedError) and error.is_success:
        return 0  # for a resource manager, a node that came after the end of the job has not failed
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
