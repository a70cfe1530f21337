"""Identifiers, as types, so that a node id is never passed for a chunk id."""

from typing import NewType

ChunkId = NewType("ChunkId", int)  # position of a chunk in its manifest, 0-based

NodeId = NewType("NodeId", str)
"""Name of a node, unique in a job for as long as the job lives. Its uni-task has the same name."""
