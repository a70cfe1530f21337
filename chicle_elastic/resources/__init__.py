"""Where nodes come from: the interface of resource managers, and one that keeps to a schedule.

    in     how many nodes a job wants (`RequestNodes`), which ones it has given back, the time
    out    nodes that are assigned or revoked, what more there is and what it costs (`managers`)

A manager stands beside the job and never in its scheduler: what it says becomes events (`NodeJoined`, `LeaveNoticed`,
`ResourcesOffered`), and the scheduler decides as ever. `ManagedNodes` stands between the two and takes neither at its
word.

This room starts no process and reads no clock. It may know neither the cluster nor a runtime.
"""
