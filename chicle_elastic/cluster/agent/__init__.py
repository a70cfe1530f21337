"""The agent of a node: it supervises the task, owns the chunk store, and executes effects for its node.

In: entries of the log, messages of its task and its peers, signals of the operating system.
Out: effects executed, proposals for the log, an exit code.
It may not know: how a model is trained; how a local cluster or a launcher started it.
"""
