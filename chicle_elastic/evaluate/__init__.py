"""The paper's evaluation with this product: `chicle evaluate`.

In: the reader's own files (`files`), or data that is generated (`shapes`, `image_data`).
Out: tables, pictures and the paper's claims with a verdict each (`claims`); every run is kept, so that an evaluation
which was interrupted goes on where it was.
It may not know: nodes. Tasks run one after the other in one process, but for the balancing process (`balance`). So
iterations are real, and time is *projected*: what an iteration would take on nodes of which each processes a sixteenth
of the data in one unit (`projection`).
"""
