"""Moving bytes between nodes: into slots by `fetch`, as small messages by links; peers prove the job secret first.

Processes of one host and user talk by `unix_frames`: frames over a Unix socket, with descriptors beside them.
"""
