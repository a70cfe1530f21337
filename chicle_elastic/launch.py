"""`python -m chicle_elastic.launch`: the command that runs one node of an elastic job; see `cluster.launcher`."""

import gc
import sys

from chicle_elastic.settings import hide_stack_traces_of_torch
from chicle_elastic.start_signals import install, of_node
from chicle_elastic.surroundings import prepare_command, require_folder

if __name__ == "__main__":  # before torch is imported, which takes seconds
    prepare_command()
    require_folder("python -m chicle_elastic.launch")
    install("python -m chicle_elastic.launch", of_node(sys.argv[1:]))
    hide_stack_traces_of_torch()
    gc.disable()

from chicle_elastic.cluster.launcher import main

if __name__ == "__main__":
    gc.freeze()  # or Python looks through all that was imported, while the event loop waits
    gc.enable()
    sys.exit(main())
