"""The elastic cluster: one agent per node, torchrun's rendezvous, and the launcher."""
