"""Coordinate descent on a quadratic function with an l1 penalty.

`descend` has all second derivatives: `H` is their symmetric matrix without the l2 penalty, `w` the weights, and
`slopes` the negative gradient of the function without penalties, which each change of a weight keeps up to date.

`descend_columns` has the columns of a sparse matrix, of whose rows it is a function. The matrix is CSC: column j has
the rows `rows[starts[j]:starts[j + 1]]` and the same range of `values`. `residuals` are r_i = a_i - c_i (row i times
the change of w), with the slopes a_i and curvatures c_i at its beginning, so that the negative gradient of the function
without penalties is <column, r>.
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


@kernel
def descend_columns(
    starts,  # starts, rows, values: of the matrix
    rows,
    values,
    curvatures,  # shape (num_rows,), float64
    squares,  # sums over each column of curvatures times squared values, shape (D,), float64
    l1,  # l1, l2: Factors of |w_j| and w_j^2 / 2, shape (D,), float64
    l2,
    offsets,  # added to the slope along each weight, shape (D,), float64
    num_sweeps,  # At most
    goal,  # sum of violations
    places,  # OUT: which weights, in this order, shape (n,), int64; the order changes
    residuals,  # OUT: shape (num_rows,), float64
    w,  # OUT: shape (D,), float64
):
    """Minimise over one weight after the other, until the slopes of a sweep are off by at most `goal` altogether.

    Weights that are 0 and likely to stay so are left out of the next sweeps (Yuan, Ho and Lin 2012); they are looked at
    again before it ends.

    Returns:
        The sum of violations in the last sweep.

    NumPy equivalent::

        size, largest, total = len(places), 1e300, 0.0
        for _ in range(num_sweeps):
            total, most, k = 0.0, 0.0, 0
            while k < size:
                j = places[k]
                column = slice(starts[j], starts[j + 1])
                slope = offsets[j] - l2[j] * w[j] + values[column] @ residuals[rows[column]]
                curvature, old = squares[j] + l2[j], w[j]
                off = abs(slope - l1[j] * np.sign(old)) if old else abs(slope) - l1[j]
                if off < -largest:
                    size -= 1
                    places[k], places[size] = places[size], j
                    continue
                total, most = total + max(off, 0.0), max(most, off)
                target = slope + curvature * old
                excess = max(abs(target) - l1[j], 0.0)
                w[j] = np.sign(target) * excess / curvature if curvature > 0 else 0.0
                residuals[rows[column]] -= (w[j] - old) * values[column] * curvatures[rows[column]]
                k += 1
            if total <= goal:
                if size == len(places):
                    break
                size, largest = len(places), 1e300
            else:
                largest = most / len(places)
    """
    size, largest, total = len(places), 1e300, 0.0
    for _ in range(num_sweeps):
        total, most, k = 0.0, 0.0, 0
        while k < size:
            j = places[k]
            slope, curvature, old = offsets[j] - l2[j] * w[j], squares[j] + l2[j], w[j]
            for e in range(starts[j], starts[j + 1]):
                slope += values[e] * residuals[rows[e]]
            if old > 0.0:
                off = abs(slope - l1[j])
            elif old < 0.0:
                off = abs(slope + l1[j])
            else:
                off = abs(slope) - l1[j]
                if off < -largest:
                    size -= 1
                    places[k], places[size] = places[size], j
                    continue
                off = max(off, 0.0)
            total += off
            most = max(most, off)
            target, new = slope + curvature * old, 0.0
            if curvature > 0.0:
                if target > l1[j]:
                    new = (target - l1[j]) / curvature
                elif target < -l1[j]:
                    new = (target + l1[j]) / curvature
            change = new - old
            if change != 0.0:
                w[j] = new
                for e in range(starts[j], starts[j + 1]):
                    residuals[rows[e]] -= change * values[e] * curvatures[rows[e]]
            k += 1
        if total <= goal:
            if size == len(places):
                return total
            size, largest = len(places), 1e300
        else:
            largest = most / len(places)
    return total
