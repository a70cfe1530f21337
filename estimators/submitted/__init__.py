"""Fits that take place elsewhere, as jobs of a cluster: the folder of such a job, and who writes and reads it.

    data/fit.json       {"format": "chicle-fit", "version": 1, "estimator": name of the class, "params": constructor
                        arguments, "module": "module:Class" or null, "augment": "module:function" or null, "classes":
                        labels or null, "has_object_labels", "feature_names": names or null, "layout": "dense" | "csr" |
                        "folder", "folder": path or null}
    data/X.npy          or X.data.npy, X.indices.npy, X.indptr.npy and the shape in "shape" for CSR
    data/y.npy          codes of labels, or targets; data/weights.npy, where there are sample weights
    model.npz           what `save` writes; warnings.json: [{"category", "text"}] of the fit; error.txt: why a
                        task failed
    nodes/              event files of the agents

A runtime that has `submit` takes the folder to a cluster (`fit`); each task of the job makes the estimator again, maps
the arrays and fits (`task`); every process that sees the folder can wait for the result (`fit.attach`). Nothing is
pickled.
"""
