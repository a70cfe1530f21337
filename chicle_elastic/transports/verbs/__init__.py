"""RDMA: chunks read from the memory of a peer by the network cards, and bytes both ways between tasks (`stream`).

Theory of operation. A connection is an authenticated TCP connection (`handshake`) and a pair of reliable queue pairs
that is made over it. The TCP connection stays open as long as the pair: it says which key opens which arena, and its
end says at once that the process at the other side is gone, or that this end closes the connection. All bytes of
chunks go through the queue pair.

    caller                                        listener
    QUEUE_PAIR {number, packet, gid, ...}    ->                    makes its queue pair and connects it
                                             <-   QUEUE_PAIR {...}
    connects its own
    MEMORY_KEY arena                         ->
                                             <-   MEMORY_KEY {key, address, bytes}, or REFUSED
    RDMA READ, RDMA READ, ...                ->                    answered by the card; no program is involved

Rules:

* Memory is registered once per arena, in one piece, when the arena is new; a READ of a slot that lies in a registered
  arena goes straight into the slot. Other memory gets its bytes through a small staging area.
* One thread uses a connection at a time; each has a completion queue of its own, so that no thread waits for another.
* pyverbs never gives the interpreter's lock up. So no call here may block: a thread that waits, waits in `poll` on
  the descriptors of the completion channel and of the socket, and asks the queue when there is something.
* A fetch that fails ends its queue pair before it says so: from then on no card writes into the slot. The next request
  makes a new pair.
* A READ proves nothing about what was read: the owner keeps the chunk in its slot until the copy is committed, and
  the receiver compares CRC and version, as with every transport.
* Numbers of retries are finite. Seven would mean for ever.
* The caller posts one receive, to which nothing is sent: its completion is the alarm that the queue pair has an error,
  also where a card calls a READ successful that it gave up.

Nothing here is imported before RDMA is asked for, and pyverbs is imported by `library.load` only.
"""
