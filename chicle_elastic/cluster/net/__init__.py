"""The network side of an agent: its event loop, the links to its peers, its event file, and the fault points.

In: descriptors, timers, results of worker threads, bytes from peers that have proved the job secret.
Out: callbacks in the thread of the loop; messages to peers; lines in the event file.
It may not know: the log, the scheduler, chunks, tasks.
"""
