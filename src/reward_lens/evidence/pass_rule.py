"""How many of so many pass: the counts behind a scorecard's verdict."""

from __future__ import annotations


def least_share(n: int, share: float) -> int:
    """The fewest of ``n`` that are at least a share of them."""
    return next(k for k in range(n + 1) if k / n >= share)


def upper_rate(k: int, n: int) -> float:
    """Upper end of the one-sided 95 % interval of a rate seen ``k`` times in ``n``.

    Clopper & Pearson (1934), doi:10.1093/biomet/26.4.404.
    """
    from scipy.stats import beta

    return 1.0 if k == n else float(beta.ppf(0.95, k + 1, n - k))


def most_within(n: int, bound: float) -> int:
    """The most of ``n`` with which the upper end of their rate stays within a bound, or 0."""
    return max((k for k in range(n + 1) if upper_rate(k, n) <= bound), default=0)


def least_covered(n: int, level: float) -> int:
    """The fewest of ``n`` effects that intervals of a level may hold.

    Fewer would come by chance in less than one case in a hundred (exact binomial).
    """
    from scipy.stats import binom

    return next(k for k in range(n + 1) if float(binom.cdf(k, n, level)) >= 0.01)
