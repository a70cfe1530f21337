"""A cluster of real agents on this machine, forked from one server that has imported everything.

In: jobs of a driver (a notebook, a grid search), each as JSON, and a sealed memory file with data and code.
Out: records of iterations, and the outcome of each job, to the driver.
It may not know: which estimator asked for the job.
"""
