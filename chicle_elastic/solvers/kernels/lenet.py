"""A gradient of the default network (`engines.paper_cnn`), for eight samples at a time.

Eight samples are the innermost dimension of every array ("lanes"), so that what is a row of pixels for the loops is a
long vector for the machine, whatever the network's few channels. A plane is [y][x][lane], and what a convolution gives
stays in planes as wide as those that it reads: then a filter row is five shifts of one vector, also over the line end,
and what comes out beyond the width is not looked at (forward) or zero (backward).

All samples of a batch that is no multiple of eight: unused lanes have the factor 0.
"""

import numpy as np

from chicle_elastic.solvers.kernels.jit import kernel

LANES = 8
TAPS = 5
SHIFT1, SHIFT2, SHIFT3, SHIFT4 = (np.uint64(LANES * tap) for tap in range(1, TAPS))
BLOCK_ROWS = 7  # rows of a plane that are worked on at a time, so that they stay in the first cache


@kernel
def convolve(planes, filters, bias, width, height_out, width_out, out):
    """Convolve planes with an even number of filters.

    planes: shape (c, height * width * 8), float32. filters: shape (o, c, 5, 5). bias: shape (o,). out: OUT, shape
    (o, height_out * width * 8); values beyond `width_out` of a row mean nothing. Equal to::

        for y in range(5):
            for x in range(5):
                at = (y * width + x) * 8
                shifted = planes[:, at : at + out.shape[1]]
                out[:, : shifted.shape[1]] += filters[:, :, y, x] @ shifted
        out += bias[:, None]
    """
    row = width * LANES
    for top in range(0, height_out, BLOCK_ROWS):
        rows = min(BLOCK_ROWS, height_out - top)
        start, count = top * row, (rows - 1) * row + width_out * LANES
        for o in range(0, filters.shape[0], 2):
            a, b = out[o, start : start + count], out[o + 1, start : start + count]
            a[:] = bias[o]
            b[:] = bias[o + 1]
            for c in range(filters.shape[1]):
                for y in range(filters.shape[2]):
                    source, f, g = planes[c, start + y * row :], filters[o, c, y], filters[o + 1, c, y]
                    f0, f1, f2, f3, f4 = f[0], f[1], f[2], f[3], f[4]
                    g0, g1, g2, g3, g4 = g[0], g[1], g[2], g[3], g[4]
                    for i in range(np.uint64(count)):  # no index with a sign, which no vector could have
                        s0, s1, s2 = source[i], source[i + SHIFT1], source[i + SHIFT2]
                        s3, s4 = source[i + SHIFT3], source[i + SHIFT4]
                        a[i] += f0 * s0 + f1 * s1 + f2 * s2 + f3 * s3 + f4 * s4
                        b[i] += g0 * s0 + g1 * s1 + g2 * s2 + g3 * s3 + g4 * s4


@kernel
def convolve_gradient(planes, gradients, front, width, height_out, width_out, filters, bias):
    """Add the gradient of `convolve` to that of its filters and of its bias.

    planes, gradients: as `planes` and `out` of `convolve`; gradients begin at `front` of each row, and are 0 beyond
    `width_out`. filters: OUT, shape (o, c, 5, 5). bias: OUT, shape (o,). Equal to::

        g = gradients[:, front : front + height_out * width * 8]
        bias += g.sum(axis=1)
        for y in range(5):
            for x in range(5):
                at = (y * width + x) * 8
                shifted = planes[:, at : at + g.shape[1]]
                filters[:, :, y, x] += g[:, : shifted.shape[1]] @ shifted.T
    """
    row, zero = width * LANES, np.float32(0)
    for top in range(0, height_out, BLOCK_ROWS):
        rows = min(BLOCK_ROWS, height_out - top)
        start, count = top * row, (rows - 1) * row + width_out * LANES
        for o in range(0, filters.shape[0], 2):
            at = front + start
            a, b = gradients[o, at : at + count], gradients[o + 1, at : at + count]
            total_a, total_b = zero, zero
            for i in range(count):
                total_a += a[i]
                total_b += b[i]
            bias[o] += total_a
            bias[o + 1] += total_b
            for c in range(filters.shape[1]):
                for y in range(filters.shape[2]):
                    source = planes[c, start + y * row :]
                    a0, a1, a2, a3, a4 = zero, zero, zero, zero, zero
                    b0, b1, b2, b3, b4 = zero, zero, zero, zero, zero
                    for i in range(np.uint64(count)):
                        s0, s1, s2 = source[i], source[i + SHIFT1], source[i + SHIFT2]
                        s3, s4 = source[i + SHIFT3], source[i + SHIFT4]
                        x, z = a[i], b[i]
                        a0 += x * s0
                        a1 += x * s1
                        a2 += x * s2
                        a3 += x * s3
                        a4 += x * s4
                        b0 += z * s0
                        b1 += z * s1
                        b2 += z * s2
                        b3 += z * s3
                        b4 += z * s4
                    for filter_, sums in ((o, (a0, a1, a2, a3, a4)), (o + 1, (b0, b1, b2, b3, b4))):
                        for tap in range(TAPS):
                            filters[filter_, c, y, tap] += sums[tap]


@kernel
def pool(planes, width, height_out, width_out, out, which):
    """ReLU, then the largest of 2 x 2.

    planes: shape (o, rows * width * 8). out: OUT, shape (o, height_out, width_out, 8). which: OUT, shape of `out`,
    int64: place in the plane of the first of the four that is largest; -1 where none is above 0.
    """
    row = width * LANES
    for o in range(planes.shape[0]):
        for y in range(height_out):
            for x in range(width_out):
                at = 2 * y * row + 2 * x * LANES
                for lane in range(LANES):
                    best, place = planes[o, at + lane], at + lane
                    for other in (at + LANES + lane, at + row + lane, at + row + LANES + lane):
                        value = planes[o, other]
                        if value > best:
                            best, place = value, other
                    is_on = not best <= 0  # NaN stays
                    out[o, y, x, lane] = best if is_on else np.float32(0)
                    which[o, y, x, lane] = place if is_on else -1


@kernel
def unpool(gradients, which, front, planes):
    """Find the gradient before `pool`: that of each output at the place that it came from, and 0 elsewhere.

    gradients, which: shape (o, outputs * 8). planes: OUT, shape (o, front + rows * width * 8).
    """
    for o in range(planes.shape[0]):
        planes[o, front:] = np.float32(0)
        for i in range(gradients.shape[1]):
            if which[o, i] >= 0:
                planes[o, front + which[o, i]] = gradients[o, i]


def load(rows, scale, shift, planes):
    """planes[:, lane] = rows[lane] * scale + shift; unused lanes repeat the last sample.

    rows: shape (1 to 8, values), uint8 or float32. planes: OUT, shape (values, 8).
    """
    used = planes[:, : len(rows)]
    np.multiply(rows.T, scale, out=used, dtype=np.float32)
    used += shift
    planes[:, len(rows) :] = used[:, -1:]


def dense(weights, bias, inputs, out, is_relu):
    """out = weights @ inputs + bias, with ReLU if wanted. inputs: shape (i, 8). out: OUT, shape (o, 8)."""
    np.dot(weights, inputs, out)
    out += bias[:, None]
    if is_relu:
        np.maximum(out, 0, out=out)


def dense_gradient(weights, inputs, gradients, room, to_weights, to_bias, to_inputs, is_relu):
    """Adds to the gradients of `dense`, and gives that of its inputs, which had ReLU (`is_relu`) before.

    gradients: shape (o, 8). room: shape of `weights`, overwritten. to_weights, to_bias: OUT. to_inputs: OUT, (i, 8).
    """
    np.dot(gradients, inputs.T, room)
    to_weights += room
    to_bias += gradients.sum(axis=1)
    np.dot(weights.T, gradients, to_inputs)
    if is_relu:
        np.copyto(to_inputs, 0, where=inputs <= 0)


@kernel
def cross_entropy(logits, codes, start, used, factors):
    """Sum of factor * loss; the logits become its gradient.

    logits: OUT, shape (classes, 8). codes: shape (n,). factors: shape (n,), float32, of the samples.
    """
    total = 0.0
    for lane in range(LANES):
        if lane >= used:
            for k in range(logits.shape[0]):
                logits[k, lane] = np.float32(0)
            continue
        code, factor = codes[start + lane], factors[start + lane]
        largest = logits[0, lane]
        for k in range(1, logits.shape[0]):
            largest = max(largest, logits[k, lane])
        total_exp = np.float32(0)
        for k in range(logits.shape[0]):
            total_exp += np.exp(logits[k, lane] - largest)
        total += factor * (np.log(total_exp) + largest - logits[code, lane])
        for k in range(logits.shape[0]):
            chance = np.exp(logits[k, lane] - largest) / total_exp
            logits[k, lane] = factor * (chance - np.float32(1 if k == code else 0))
    return total


@kernel
def step(w, v, g, lr, momentum):
    """v = momentum * v + g; w -= lr * v; g = 0. w, v, g: OUT, shape (n,), float32."""
    for i in range(w.size):
        v[i] = momentum * v[i] + g[i]
        w[i] -= lr * v[i]
        g[i] = np.float32(0)
