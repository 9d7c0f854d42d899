"""Many questions at once: p values adjusted so that the answers can be read together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reward_lens.errors import DataError

Floats = npt.NDArray[np.float64]

#: Name here -> statsmodels' name.
METHODS = {"holm": "holm", "bh": "fdr_bh"}


def adjusted(p_values: npt.ArrayLike, method: str = "holm") -> Floats:
    """Adjust p values for their number.

    Parameters
    ----------
    p_values : array of float, [n]
        NaN marks a question that was not answered: it stays NaN and is not counted.
    method : {"holm", "bh"}
        Holm (1979) bounds the chance of any false finding; Benjamini and Hochberg (1995) the
        expected share of false ones among the findings, for independent or positively dependent
        tests. Computed by ``statsmodels.stats.multitest.multipletests``.

    Returns
    -------
    ndarray of float64, [n]
        In the order given.

    Raises
    ------
    DataError
        On another method, or a value that is no probability.
    """
    from statsmodels.stats.multitest import multipletests

    if method not in METHODS:
        raise DataError(f"method={method!r}: choose one of {', '.join(METHODS)}")
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1:
        raise DataError(f"p values come as one row, not as an array of shape {p.shape}")
    known = ~np.isnan(p)
    wrong = known & ~((p >= 0) & (p <= 1))
    if wrong.any():
        first = int(wrong.argmax())
        raise DataError(f"p value {first} is {p[first]:g}: give probabilities from 0 to 1")
    out = np.full(len(p), np.nan)
    if known.any():
        out[known] = multipletests(p[known], method=METHODS[method])[1]
    return out
