"""The replicated event log: every agent holds the same sequence of events, and one leader at a time extends it.

In: events of this node (`ReplicatedLog.append`), messages of other replicas, the signed value in the store that
names the leader.
Out: entries in their order for the subscribers; messages to other replicas; elections. The agent uses `replicated_log`,
which performs in its loop what `replica` decides.
It may not know: sockets, tasks, arenas, what an entry means. `replica` and all that it imports are pure.

Theory of operation. At any time one agent is the leader. It sequences events and sends them to all followers; every
agent folds the same entries in the same order, and executes the effects that concern its own node. While an iteration
runs the leader holds events back and lets its task vote for a stop; every agent appends an iteration without votes by
itself (`log`), which is the usual case and costs no message. Where the log is steady, tasks do not even wait for that:
they go on by themselves until a task votes or the group breaks, and every agent folds the reports of its task in order.
The log then lags behind the task and is never ahead of it, and a breaking term waits until the task has reported all.

    FOLLOWING   another agent leads, or will; this agent sends its proposals to it
    CLAIMING    this agent sees that a new term is due and asks the store for it
    COLLECTING  it has the term, and asks all reachable agents for their log positions
    LEADING     it sequences events

A new term is due when an agent is lost, when an iteration breaks, and when the leader is under notice and was released.
An agent asks for one only if the nodes that it reaches may go on without the others (`reachability`); otherwise it
*pauses* until it reaches more. The store grants each term once (compare-and-set). If the store is unreachable, a
majority goes on without its permission: every agent follows one candidate per term, and it does not leave a leader that
it hears for a candidate that merely does not hear that leader. An incarnation that is not among the members of a newer
term is out, as is a candidate that a better log has lost, and its node rejoins; so a node which was only silent, and
comes back, can neither lead nor declare others lost. Only a majority overrules such a term, where its members cannot
have been half of all that live: they reached the store, and the majority went on without it. A node looks for a while
before it believes that it has one (`patience`): if it was stopped, it still counts on links whose end it has not read.
Two followers that do not hear each other report it to the leader; if nothing goes on, the leader declares the one lost
that fewer others hear.
When a member of the iteration in flight is gone the term is *breaking*: every agent ends that iteration before it
answers. Then no log grows any more, and:

* the most complete log wins, by (term of its last entry, length); the leader adopts, then sends, the missing entries
* an iteration that any task merged is `IterationFinished`, one that no task merged is `IterationAborted`
* present nodes that the leader cannot reach are `NodeLost`
* an agent whose log has entries that the winning log lacks is out

In a term that is not breaking the iteration goes on; in-band entries may overtake the answers; they are the same in
every log and may therefore overlap.

The author of a proposal keeps it until it is in the log, and sends it again to every new leader when that one sends its
log; the leader sequences a proposal once, and those of one author in their order.
"""
