"""What the intervals are simulated on, and what is asked of the simulated coverage."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy import stats

import reward_lens
from reward_lens.evidence.intervals import accuracy, cluster_t, cluster_t_slope
from reward_lens.evidence.prompt_correlation import prompt_correlation

CLUSTERS = (15, 30, 60, 200)
STATED = 0.95
#: Coverage that a stated 95 % may have without a word.
BAND = (0.93, 0.97)
#: Share of replicates whose evidence says that the level is doubtful, where it does not hold.
NOTED = 0.9
DOSES = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
_MODULES = ("intervals.py", "clusters.py", "prompt_correlation.py")

#: low, high, whether a note says that the level is doubtful; low and high as if rows were
#: independent; the truth.
Replicate = tuple[float, float, bool, float, float, float]


def fingerprint() -> str:
    """Hash of the code that makes the intervals, and of the simulation itself."""
    room = Path(reward_lens.__file__).parent / "evidence"
    digest = hashlib.blake2b(digest_size=12)
    for path in [*(room / m for m in _MODULES), Path(__file__)]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def cells() -> Iterator[tuple[str, Callable[[np.random.Generator], Replicate]]]:
    """Name and replicate of every cell of the table."""
    for groups in CLUSTERS:
        for share in (0.6, 0.8, 0.9):
            yield f"accuracy {share}, {groups} lineages", _accuracy(groups, share)
        for tails in ("light", "heavy"):
            yield f"bias effect, {tails} tails, {groups} lineages", _bias(groups, tails)
            yield f"dose slope, {tails} tails, {groups} lineages", _slope(groups, tails)
            for rho in (0.0, 0.6, 0.9):
                name = f"effective angle at correlation {rho}, {tails} tails, {groups} lineages"
                yield name, _angle(groups, tails, rho)


def _lineages(rng: np.random.Generator, groups: int) -> np.ndarray:
    """One to five pairs a lineage."""
    return np.repeat(np.arange(groups), rng.integers(1, 6, groups))


def _noise(rng: np.random.Generator, shape: int | tuple[int, ...], tails: str) -> np.ndarray:
    return rng.standard_normal(shape) if tails == "light" else rng.standard_t(3, shape)


def _accuracy(groups: int, share: float) -> Callable[[np.random.Generator], Replicate]:
    def run(rng: np.random.Generator) -> Replicate:
        lineage = _lineages(rng, groups)
        chance = rng.beta(2 * share, 2 * (1 - share), groups)[lineage]
        margins = np.where(rng.random(len(lineage)) < chance, 1.0, -1.0)
        found, _ = accuracy("accuracy", margins, lineage)
        naive = stats.binomtest(int((margins > 0).sum()), len(margins)).proportion_ci(
            STATED, "wilson"
        )
        return (found.low, found.high, bool(found.note), naive.low, naive.high, share)

    return run


def _bias(groups: int, tails: str) -> Callable[[np.random.Generator], Replicate]:
    def run(rng: np.random.Generator) -> Replicate:
        lineage = _lineages(rng, groups)
        n = len(lineage)
        effect = 1 + _noise(rng, groups, tails)[lineage] + _noise(rng, n, tails)
        found = cluster_t("effect", effect, lineage)
        naive = cluster_t("effect", effect, np.arange(n))
        return (found.low, found.high, bool(found.note), naive.low, naive.high, 1.0)

    return run


def _slope(groups: int, tails: str) -> Callable[[np.random.Generator], Replicate]:
    def run(rng: np.random.Generator) -> Replicate:
        pairs = _lineages(rng, groups)
        n = len(pairs)
        steep = 1 + _noise(rng, groups, tails)[pairs] + 0.5 * _noise(rng, n, tails)
        reward = steep[:, None] * DOSES + _noise(rng, (n, len(DOSES)), tails)
        rows = [np.tile(DOSES, n), reward.ravel(), np.repeat(pairs, len(DOSES))]
        found = cluster_t_slope("slope", *rows)
        naive = cluster_t_slope("slope", *rows[:2], np.arange(len(rows[0])))
        return (found.low, found.high, bool(found.note), naive.low, naive.high, 1.0)

    return run


def _angle(groups: int, tails: str, rho: float) -> Callable[[np.random.Generator], Replicate]:
    """Lineages of one to three prompts, two responses each; heavy tails scale whole lineages."""
    mixing = np.linalg.cholesky([[1, rho], [rho, 1]])

    def run(rng: np.random.Generator) -> Replicate:
        lineage = np.repeat(np.arange(groups), rng.integers(1, 4, groups))
        n = len(lineage)
        shared, own = rng.standard_normal((groups, 2))[lineage], rng.standard_normal((n, 2))
        margins = (math.sqrt(0.5) * (shared + own)) @ mixing.T
        if tails == "heavy":  # a multivariate t of three degrees of freedom
            margins = margins / np.sqrt(rng.chisquare(3, groups) / 3)[lineage][:, None]
        x, y = (np.concatenate([m / 2, -m / 2]) + np.tile(rng.standard_normal(n), 2)
                for m in margins.T)  # fmt: skip
        prompt, twice = np.tile(np.arange(n), 2), np.tile(lineage, 2)
        found = prompt_correlation("correlation", x, y, prompt, twice)
        reach = stats.norm.ppf(0.5 + STATED / 2) / math.sqrt(2 * n - 3)
        middle = math.atanh(found.estimate)
        naive = (math.tanh(middle - reach), math.tanh(middle + reach))
        return (found.low, found.high, bool(found.note), *naive, rho)

    return run


def simulated(replicate: Callable[[np.random.Generator], Replicate], n: int) -> dict[str, float]:
    """Coverage of a cell over seeded replicates."""
    rng = np.random.default_rng(2026)
    rows = np.array([replicate(rng) for _ in range(n)], dtype=float)
    low, high, noted, naive_low, naive_high, truth = rows.T
    return {
        "covers": round(float(((low <= truth) & (truth <= high)).mean()), 4),
        "noted": round(float(noted.mean()), 4),
        "unclustered covers": round(
            float(((naive_low <= truth) & (truth <= naive_high)).mean()), 4
        ),
    }


def holds(cell: dict[str, float]) -> bool:
    """Whether the stated level holds, or the evidence says that it does not."""
    return BAND[0] <= cell["covers"] <= BAND[1] or cell["noted"] >= NOTED
