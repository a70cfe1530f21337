"""The evaluation of the paper with this product: `python -m benchmarks.paper`.

Tasks run one after the other in one process. So iterations are real, and time is *projected*: what an iteration would
take on nodes of which each processes a sixteenth of the data in one unit (`projection`).
"""
