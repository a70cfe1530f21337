"""Windows and macOS, as far as Linux can show it: the estimators fit without what only Linux or Unix has.

An interpreter loses the modules, functions and signals that are not on Windows, after the libraries below have been
imported; what Chicle imports or calls of them then fails as it would there.
"""

from pathlib import Path

from tests.programs import run_python

PROGRAM = """
import os, signal, socket, sys, tempfile
import joblib, numba, numpy, scipy.sparse, sklearn.linear_model, sklearn.svm
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.preprocessing import scale
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for place, names in (
    (os, "eventfd fork geteuid getpgid getuid killpg memfd_create pidfd_open sched_getaffinity statvfs"),
    (signal, "SIGALRM SIGHUP SIGKILL SIGUSR1 SIGUSR2 pthread_sigmask setitimer"),
    (socket, "AF_UNIX"),
):
    for name in names.split():
        if hasattr(place, name):
            delattr(place, name)
sys.platform = "win32"

from chicle_elastic import ArraySource, ChunkFolder, InProcess, LocalCluster, Rebalance, UsageError
from estimators import ChicleLasso, ChicleLogisticRegression, ChicleRidge, ChicleSVM, ChicleSVR

X, y = load_breast_cancer(return_X_y=True)
X = scale(X)
svm = ChicleSVM(runtime=InProcess(num_tasks=2, changes=((2, 3),)), policy=Rebalance()).fit(X, y)
assert svm.score(X, y) > 0.95 and svm.duality_gap_ <= 1e-3
path = os.path.join(sys.argv[1], "model.npz")
svm.save(path)
assert (ChicleSVM.load(path).coef_ == svm.coef_).all()
ChicleLogisticRegression().fit(scipy.sparse.csr_matrix(X), y)
X, y = load_diabetes(return_X_y=True)
for estimator in (ChicleRidge(), ChicleLasso(), ChicleSVR()):
    estimator.fit(X, y)
for cluster in (lambda: LocalCluster(2), lambda: ChicleRidge(n_workers=2).fit(X, y)):
    try:
        cluster()
    except UsageError as error:
        print(error)
"""


def test_estimators_fit_without_what_windows_lacks(tmp_path: Path) -> None:
    """In process, with several tasks, saved and loaded; a cluster says that it needs Linux."""
    run = run_python("-c", PROGRAM, str(tmp_path), seconds=120, CHICLE_WAITS="off")
    assert run.stdout.count("nodes run on Linux only, and this is win32") == 2
