"""Coordinate descent on a quadratic function with an l1 penalty, of which the second derivatives are all there.

`H` is the symmetric matrix of second derivatives without the l2 penalty, `w` the weights, and `slopes` the negative
gradient of the function without penalties, which each change of a weight keeps up to date.
"""

from chicle_elastic.solvers.kernels.jit import kernel


@kernel
def descend(
    H,  # shape (h, h), float64, symmetric
    places,  # which weights, in this order, shape (n,), int64
    l1,  # l1, l2: Factors of |w|_1 and of |w|^2 / 2
    l2,
    num_sweeps,  # Sweeps over the places at most
    enough,  # Twice the decrease of the function
    slopes,  # OUT: shape (h,), float64
    w,  # OUT: shape (h,), float64
):
    """Minimise over one weight after the other; stops where no change of a sweep has brought more than `enough`.

    NumPy equivalent::

        for _ in range(num_sweeps):
            largest = 0.0
            for j in places:
                target, curvature = slopes[j] + H[j, j] * w[j], H[j, j] + l2
                size = max(abs(target) - l1, 0.0)
                new = np.sign(target) * size / curvature if size > 0 and curvature > 0 else 0.0
                change = new - w[j]
                slopes -= change * H[j]
                w[j] = new
                largest = max(largest, change * change * curvature)
            if largest <= enough:
                break
    """
    size = len(w)
    for _ in range(num_sweeps):
        largest = 0.0
        for k in range(len(places)):
            j = places[k]
            target, curvature, new = slopes[j] + H[j, j] * w[j], H[j, j] + l2, 0.0
            if curvature > 0.0:
                if target > l1:
                    new = (target - l1) / curvature
                elif target < -l1:
                    new = (target + l1) / curvature
            change = new - w[j]
            if change != 0.0:
                row = H[j]
                for i in range(size):
                    slopes[i] -= change * row[i]
                w[j] = new
                largest = max(largest, change * change * curvature)
        if largest <= enough:
            break
