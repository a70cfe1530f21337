"""What an agent and the task of its node say to each other, and the Unix socket over which they do.

In: typed messages, file descriptors of arenas.
Out: the same at the other end, checked.
It may not know: what either end does with a message.
"""
