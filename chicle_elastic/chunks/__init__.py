"""Floor 1: the bytes of a chunk, seen through views; and how data becomes chunks."""
