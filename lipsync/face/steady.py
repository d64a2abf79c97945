"""Landmarks without their jitter and without lag: each frame's points from a fit through its neighbours on both sides.

Landmarks tremble by about half a hundredth of the face's size, which is seen as a trembling mouth. A filter that knows only the past would
lag behind a moving face; this one waits for a few frames instead.
"""
import numpy as np

REACH = 4  # frames to each side
NOISE_SHARE, NOISE_PIXELS = 0.006, 0.3  # how far landmarks tremble: share of the brows' distance (MediaPipe, measured), px (rounding)
EXPLAINED = 2.5  # times the noise: what differs by less is no motion
OUTLIER = 4.5  # times the noise: a frame this far off the fit does not count
PASSES = 3  # of leaving outliers out


def steady_points(points: np.ndarray, at: int) -> np.ndarray:
    """Points [K,3,2] of successive frames (left brow, right brow, nose; px) -> those of frame `at`, [3,2], steadied.

    A parabola is fitted to each coordinate over time, without frames that are off it. Where a straight line says the same within the noise,
    the line is taken: it trembles less; where a shorter fit says something else, that one is: the motion was quicker than a parabola.
    """
    points = np.asarray(points, dtype=np.float64)
    times = np.arange(len(points)) - at
    places = points.reshape(len(points), -1)
    noise = np.hypot(NOISE_PIXELS, NOISE_SHARE * np.linalg.norm(points[at, 1] - points[at, 0]))
    weights = np.cos(times * (np.pi / 2 / (REACH + 1))) ** 2
    kept = np.ones(len(points))
    for _ in range(PASSES):
        parabola = _fit(times, weights * kept, 2)
        off = np.sqrt(((places - np.vander(times, 3, increasing=True) @ (parabola @ places)) ** 2).mean(1))
        kept = np.clip(1 - (off / (OUTLIER * max(noise, float(np.median(off))))) ** 2, 0, 1) ** 2
    long, line, short = (_fit(times, w * kept, order)[0] for w, order in ((weights, 2), (weights, 1), (weights * (abs(times) <= 2), 2)))
    taken = _nearer(places, long, line, noise)
    return (_nearer(places, short, taken, noise) @ places).reshape(3, 2)


def _fit(times, weights, order):
    """The polynomial of up to `order` through weighted values, as the matrix [3,K] that gives its coefficients; the first is for time 0."""
    order = min(order, max(0, np.count_nonzero(weights > 1e-3) - 1))
    powers = np.vander(times, order + 1, increasing=True).astype(np.float64)
    fit = np.linalg.pinv(powers * np.sqrt(weights)[:, None]) * np.sqrt(weights)
    return np.concatenate([fit, np.zeros((2 - order, len(times)))])


def _nearer(places, exact, calm, noise):
    """`calm` (weights [K] of the frames) where it agrees with `exact` within the noise, `exact` where not, and in between a mixture."""
    differ = exact - calm
    off = np.sqrt(((differ @ places) ** 2).mean())
    explained = EXPLAINED * noise * np.linalg.norm(differ)
    share = np.clip(off / max(explained, 1e-9) - 1, 0, 1)
    return calm + share * differ
