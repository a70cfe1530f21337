"""Commands of `chicle` for a job that an anchor serves: JOB is the folder that the job writes, its `--out`.

What comes in is that folder and what its anchor wrote there; what goes out is text, and wishes on the board of the
rendezvous store. Nothing here decides anything: anchor and scheduler do.
"""
