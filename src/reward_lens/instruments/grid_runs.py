"""Running a patch grid: the score of every changed run, a group of items at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from reward_lens.backbone import Change, Run, engine_of
from reward_lens.instruments.grid_plan import ABLATION, Cell, GridPlan
from reward_lens.progress import Progress
from reward_lens.signals import ClassifierRM, Readout
from reward_lens.signals.patching import CleanItems, clean_runs

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GridScores:
    """What the runs of a grid gave; items are the chosen sides, then the rejected.

    Attributes
    ----------
    score : ndarray, [item]
        Of the clean runs.
    changed : ndarray, [item, target, column]
        Of the changed runs; NaN where there was none.
    flips : ndarray, [item, target, column]
        Router choices that differ from the clean run.
    executors : set of str
    gap : float
        Largest gap to the full forward of those executors when they were verified, in shares of the
        largest effect.
    unrun : int
        How many runs were not needed, because both sides begin alike.
    forwards : float
        Clean runs included, in forwards of one item.
    """

    score: Floats
    changed: Floats
    flips: Floats
    executors: set[str]
    gap: float
    unrun: int
    forwards: float

    @property
    def scores(self) -> Floats:
        """Clean scores by side, ``[2, pair]``."""
        return self.score.reshape(2, -1)

    def effects(self, directions: tuple[str, ...]) -> Floats:
        """Effects on the margin: ``[direction, pair, target, column]``, in reward units."""
        gained = self.changed - self.score[:, None, None]
        lost = self.score[:, None, None] - self.changed
        n = len(lost) // 2
        each = {"noise": lost[:n], "denoise": gained[n:], ABLATION: lost[:n] + gained[n:]}
        return np.stack([each[d] for d in directions]) + 0.0  # no negative zeros

    def flipped(self, directions: tuple[str, ...]) -> Floats:
        """Router choices that changed: ``[direction, pair, target, column]``."""
        n = len(self.flips) // 2
        noise, denoise = self.flips[:n], self.flips[n:]
        each = {"noise": noise, "denoise": denoise, ABLATION: noise + denoise}
        return np.stack([each[d] for d in directions]) + 0.0  # no negative zeros

    def engine_table(self) -> pd.DataFrame:
        """One row: what ran, how often, and what it cost."""
        return pd.DataFrame(
            {
                "executor": [", ".join(sorted(self.executors)) or "none"],
                "gap_to_full_forward": [self.gap],
                "runs": [int((~np.isnan(self.changed)).sum()) - self.unrun],
                "runs_not_needed": [self.unrun],
                "forwards": [self.forwards],
            }
        )


def run_grid(
    signal: ClassifierRM,
    plan: GridPlan,
    readout: Readout,
    executor: str | None,
    batch_tokens: int,
    progress: Progress | None,
) -> GridScores:
    """Run a grid.

    Parameters
    ----------
    readout : Readout
        Bound to the items of the plan.
    executor : str, optional
        ``"full forward"`` for a whole forward per run.
    """
    shape = (2 * plan.n_pairs, len(plan.targets), len(plan.columns))
    score, changed, flips = np.empty(shape[0]), np.full(shape, np.nan), np.full(shape, np.nan)
    executors, forwards, unrun = set[str](), 0.0, 0
    sites = list(dict.fromkeys(t.source for t in plan.targets))
    held = clean_runs(
        signal, plan.encoded, plan.read, readout, plan.replacements.groups, sites,
        whole=plan.replacements.whole, executor=executor, batch_tokens=batch_tokens,
        progress=progress,
    )  # fmt: skip
    for clean in held:
        cells: dict[int, list[Cell]] = {}
        for item in (i for i in clean.index if i < len(score)):
            score[item] = clean.score[item]
            all_cells = list(plan.cells(item)) if plan.is_run(item) else []
            cells[item] = [c for c in all_cells if len(c.slots)]
            still = _where([c for c in all_cells if not len(c.slots)])
            changed[item][still], flips[item][still] = score[item], 0
            unrun += len(still[0])
        runs = {i: [_run(signal, plan, clean, i, c) for c in found]
                for i, found in cells.items() if found}  # fmt: skip
        for item, out in clean.run(runs).items():
            at = _where(cells[item])
            changed[item][at] = out.scores
            flips[item][at] = np.nan if clean.engine.uncounted else out.flips
        executors |= clean.executors
        forwards += clean.forwards
    gaps = engine_of(signal.trunk).gaps
    gap = max((gaps.get(e, 0.0) for e in executors), default=0.0)
    return GridScores(score, changed, flips, executors, gap, unrun, forwards)


def _where(cells: list[Cell]) -> tuple[list[int], list[int]]:
    """The places of cells in ``[target, column]``."""
    return [c.target for c in cells], [c.column for c in cells]


def _run(signal: ClassifierRM, plan: GridPlan, clean: CleanItems, item: int, cell: Cell) -> Run:
    target, at = plan.targets[cell.target], plan.replacements.tokens[item]
    value = plan.replacements.value(signal, clean, target, item, cell.slots)
    return (Change(target, tuple(at[s] for s in cell.slots), value),)
