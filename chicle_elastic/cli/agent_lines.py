"""The warnings and errors that an agent can print, each with what to do about it, for `chicle doctor --log`."""

from collections.abc import Iterable, Iterator

NOTHING = "nothing: the job goes on"
NETWORK = "look at the network between the two hosts; chicle doctor --peer STORE tries each step"
REPORT = "report it as an error in Chicle, with the event file and the recording of the agent"
ADVICE = {
    "has waited for": "look at the task it names (py-spy dump): it computes for long, or it hangs",
    "was cut: nothing was acknowledged": NETWORK + "; a firewall may forget connections",
    "no surviving node has the model": NOTHING + " from an earlier iteration",
    "could not connect": "open the ports of the tasks between the hosts (--port-range)",
    "and begins it anew": NOTHING + " as a new one",
    " waits: ": "the line says for what; open the ports between the hosts",
    "is no member of the job any more": NOTHING + ", and the node joins again; was its host stopped or overloaded?",
    "is under notice": NOTHING + " without this node",
    " leaves: ": NOTHING + " without this node",
    " has failed": "correct the code of the task; its traceback follows",
    " died": "look at what the task printed, and for the kernel's word about memory (dmesg)",
    "pause": "the line says for what the job waits: more nodes, or more memory",
    "gives up: ": "the line says why, and what to change",
    "the job cannot go on: ": "correct the trainer or solver that it names",
    "what its script does after it": "nothing: it may save or evaluate a model; end the agent by a signal if it hangs",
    "the store cannot be told": "end the process of the store: a node that comes later would begin the job again",
    "is unreachable since": "start the store again at its address, with its secret; training goes on, joins wait",
    "is back; it was unreachable": NOTHING,
    "the resource manager cannot be reached": "look whether the anchor runs; the job goes on with its nodes",
    "no resource manager is here": "start more nodes by hand, or leave the policy out",
    "the task is ended: ": "look whether the task was stopped: it read no message for long",
    "control socket": "look for another program of this host that uses Chicle's socket",
    "broken the protocol of the control channel": REPORT,
    "restores term": "look for a process without the secret that writes into the store",
    "restores the last valid state": "look for a process without the secret that writes into the store",
    "of the job secret now": NOTHING + "; an old line of the file may go when every agent has said so",
    "keeps the job secret of before": "correct the file that the line names; it is read again when it has changed",
    "takes this machine: ": NOTHING + " without this node",
    "does not answer as it should": "give --notices the right cloud; a signal is a notice as well",
    "no metrics at": "give --metrics another port, or 0 for a free one",
    "has no link to": NETWORK,
    "refusing the agent": "the line says what differs: a name, a version of Chicle, the data or an option",
    "breaks the protocol: ": "install one version of Chicle on every node; else look for who else uses the port",
    "held the event loop for": "give the host more processor time if it comes often",
    "which is an error in Chicle": REPORT,
    "could not leave the rendezvous": NOTHING,
    "TensorBoard": "give --log-dir a faster disk, or one with room; training is as it was",
    "waited for a place, and is dropped": "look at that machine; the job has its nodes",
    "which did not come for": "look at the machines that the line names; they can come again",
    "the disk hangs": "look at the disk of --log-dir; training is as it was",
    "hangs or is slow": "look at the disk that the line names if it comes often; a large checkpoint may take so long",
    "lines were dropped here": "let stderr be read (Ctrl-Q); training is as it was",
    "cannot write to": "make room on the disk of --log-dir; training is as it was",
    "gets no more lines": "make room on the disk of --log-dir; training is as it was",
    "does not keep up: entries": "give --log-dir a faster disk; the recording can be replayed up to there",
    "cannot be written: ": REPORT,
}
"""Words of a line, and what to do."""


def explained(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Return each line that is known, once for each kind, with what to do."""
    left = dict(ADVICE)
    for line in lines:
        for words in [words for words in left if words in line]:
            yield line.strip(), left.pop(words)
