"""Floor 4: the elastic cluster, one agent per node.

Rooms, from the lowest to the highest:

    net          sockets of an agent: its event loop, the links to its peers, its event file
    rendezvous   the store that lies outside of the nodes, its signed state, and the rendezvous of plain torchrun
    consensus    the replicated event log: replica, leader election, followers, terms
    transfer     chunks on their way between nodes
    options      the command line of a node
    agent        the process that supervises one node
    launcher     runs an agent or a rendezvous store until it ends
    local        a cluster of real agents on this machine
"""
