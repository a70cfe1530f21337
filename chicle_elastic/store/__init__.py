"""Floor 2: the memory of a node: arenas cut into slots, and the chunks that lie in them. Linux only."""
