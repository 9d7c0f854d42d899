"""Running path effects: every path of every pair, a group of pairs at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import Change, Reception, Run, Site, Target, write_change
from reward_lens.instruments.path_graph import READOUT, End, reaches
from reward_lens.instruments.sides import Sides
from reward_lens.instruments.token_alignment import Aligned
from reward_lens.signals import ClassifierRM, Readout
from reward_lens.signals.patching import CleanItems, clean_runs
from reward_lens.signals.sweeping import Progress

_NORMED = Site("final_norm")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PathPlan:
    """What is run: per sender the runs of each column, ``None`` where there is no path."""

    senders: list[Target]
    ends: list[End]
    names: list[str]
    joint: bool
    frozen: bool
    directions: tuple[str, ...]

    def columns(self, signal: ClassifierRM, sender: Target) -> list[list[End] | None]:
        """The ends that are changed together, per receiver column."""
        if self.joint:
            return [self.ends]
        anatomy = signal.trunk.anatomy
        return [[e] if reaches(anatomy, sender, e) else None for e in self.ends]


@dataclass
class PathRuns:
    """Runs all paths of all pairs; items ``0..n-1`` are the chosen sides."""

    signal: ClassifierRM
    sides: Sides
    tokens: list[Aligned]
    plan: PathPlan
    readout: Readout

    def __post_init__(self) -> None:
        n, plan = len(self.sides.pairs), self.plan
        self.score = np.empty(2 * n)
        # The first column is the sender's own effect, the node.
        self.moved = np.full((2 * n, len(plan.senders), 1 + len(plan.names)), np.nan)
        self.executors: Counter[str] = Counter()
        self.forwards = 0.0

    @property
    def scores(self) -> Floats:
        """Clean scores, ``[2, pair]``."""
        return self.score.reshape(2, -1)

    @property
    def effects(self) -> Floats:
        """``[direction, pair, sender, 1 + receiver]``."""
        n = len(self.sides.pairs)
        each = {"noise": -self.moved[:n], "denoise": self.moved[n:]}
        return np.stack([each[d] for d in self.plan.directions])

    def run(
        self, whole: bool, executor: str | None, batch_tokens: int, progress: Progress | None
    ) -> None:
        """Run everything."""
        n = len(self.sides.pairs)
        held = clean_runs(
            self.signal, self.sides.encoded, self.sides.read, self.readout,
            [[k, n + k] for k in range(n)], self._sites(), whole=whole, executor=executor,
            batch_tokens=batch_tokens, progress=progress,
        )  # fmt: skip
        wanted = [d == "noise" for d in self.plan.directions]
        for clean in held:
            items = [i for i in clean.index if (i < n) in wanted]
            deltas = {s: self._deltas(clean, items, s, whole) for s in self.plan.senders}
            runs: dict[int, list[Run]] = {}
            cells: dict[int, list[tuple[int, int]]] = {}
            for item in items:
                runs[item], cells[item] = self._runs(clean, item, deltas)
            for item, out in clean.run(runs).items():
                at = tuple(np.array(cells[item]).T)
                self.moved[item][at] = out.scores - clean.score[item]
            if self.plan.frozen:
                self._direct(clean, items, deltas)
            for item in clean.index:
                self.score[item] = clean.score[item]
            self.executors.update(clean.executors)
            self.forwards += clean.forwards

    def _sites(self) -> list[Site]:
        anatomy = self.signal.trunk.anatomy
        sites = [s.source for s in self.plan.senders]
        sites += [Site("attn_raw", s.site.layer) for s in self.plan.senders
                  if s.head is not None and anatomy.write(s.site).norm is not None]  # fmt: skip
        if self.plan.frozen:
            sites += [Site("resid_post", self.signal.trunk.n_layers - 1), _NORMED]
        return list(dict.fromkeys(sites))

    def _at(self, item: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """The other side, the tokens of this one, and those beside them."""
        n = len(self.sides.pairs)
        tokens = self.tokens[item % n]
        if item < n:
            return item + n, tokens.chosen, tokens.rejected
        return item - n, tokens.rejected, tokens.chosen

    def _picked(self, clean: CleanItems, site: Site, item: int, at: Sequence[int]) -> Tensor:
        state = clean.state(site, item)
        return state[list(at)] if clean.whole else state[None]

    def _deltas(
        self, clean: CleanItems, items: Sequence[int], sender: Target, whole: bool
    ) -> dict[int, tuple[Tensor, Tensor]]:
        """Per item the activation put in place, and the change of the stream that it makes."""
        anatomy = self.signal.trunk.anatomy
        own, other, raw = [], [], []
        behind = sender.head is not None and anatomy.write(sender.site).norm is not None
        for item in items:
            partner, mine, theirs = self._at(item)
            own.append(sender.of(self._picked(clean, sender.source, item, mine), anatomy))
            other.append(sender.of(self._picked(clean, sender.source, partner, theirs), anatomy))
            if behind:
                site = Site("attn_raw", sender.site.layer)
                raw.append(self._picked(clean, site, item, mine))
        change = write_change(
            anatomy, sender, torch.cat(own), torch.cat(other), torch.cat(raw) if behind else None
        )
        parts = torch.split(change, [len(o) for o in own])
        return {i: (o, p) for i, o, p in zip(items, other, parts, strict=True)}

    def _runs(
        self, clean: CleanItems, item: int, deltas: dict[Target, dict[int, tuple[Tensor, Tensor]]]
    ) -> tuple[list[Run], list[tuple[int, int]]]:
        _, at, _ = self._at(item)
        runs: list[Run] = []
        cells = []
        for row, sender in enumerate(self.plan.senders):
            other, change = deltas[sender][item]
            runs.append((Change(sender, at, other),))
            cells.append((row, 0))
            for column, ends in enumerate(self.plan.columns(self.signal, sender), 1):
                if ends is None or (self.plan.frozen and ends[0].name == READOUT):
                    continue
                runs.append(tuple(_part(end, at, change.to(other)) for end in ends))
                cells.append((row, column))
        return runs, cells

    def _direct(
        self,
        clean: CleanItems,
        items: Sequence[int],
        deltas: dict[Target, dict[int, tuple[Tensor, Tensor]]],
    ) -> None:
        """The direct path with the final norm held at its value in the clean run."""
        trunk, plan = self.signal.trunk, self.plan
        if READOUT not in plan.names:
            return
        column = 1 + plan.names.index(READOUT)
        last = Site("resid_post", trunk.n_layers - 1)
        for item in items:
            _, at, _ = self._at(item)
            where = [self.sides.read[item]]
            _, u = self.readout.local(self._picked(clean, _NORMED, item, where), np.array([item]))
            frozen = trunk.freeze_final_norm(self._picked(clean, last, item, where))
            u = u if frozen is None else frozen.pull_back(u)
            for row, sender in enumerate(plan.senders):
                change = deltas[sender][item][1]
                reads = [k for k, token in enumerate(at) if token == where[0]]
                self.moved[item, row, column] = float((change[reads] * u).sum())


def _part(end: End, at: tuple[int, ...], change: Tensor) -> Change | Reception:
    if end.receiver is not None:
        return Reception(end.receiver, at, change)
    assert end.target is not None
    return Change(end.target, at, change, add=True)
