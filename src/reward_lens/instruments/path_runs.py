"""Running path effects: every path of every pair, a group of pairs at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import MEAN, Change, Reception, Run, Site, Target, write_change
from reward_lens.instruments.path_graph import READOUT, End, reaches, together
from reward_lens.instruments.sides import Sides
from reward_lens.instruments.token_alignment import Aligned
from reward_lens.progress import Progress
from reward_lens.signals import ClassifierRM, Readout
from reward_lens.signals.patching import CleanItems, clean_runs
from reward_lens.signals.sweeping import Swept

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
        anatomy = signal.trunk.anatomy
        if self.joint:
            reached = [e for e in self.ends if reaches(anatomy, sender, e)]
            return [together(anatomy, reached) or None]
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
        return np.stack([each[d] for d in self.plan.directions]) + 0.0  # no negative zeros

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
            items = [i for i in clean.index if (i < n) in wanted and len(self._at(i)[1])]
            for item in filter(self._identical, items):
                self.moved[item][self._cells(frozen=True)] = 0.0
            items = [i for i in items if not self._identical(i)]
            deltas = {s: self._deltas(clean, items, s) for s in self.plan.senders} if items else {}
            runs = {item: self._runs(item, deltas) for item in items}
            for item, out in clean.run(runs).items():
                self.moved[item][self._cells()] = out.scores - clean.score[item]
            if self.plan.frozen and items:
                self._direct(clean, items, deltas)
            for item in clean.index:
                self.score[item] = clean.score[item]
            self.executors.update(clean.executors)
            self.forwards += clean.forwards

    def _identical(self, item: int) -> bool:
        """Whether both sides of an item's pair are the same text: then nothing changes."""
        return self.sides.identical(item % len(self.sides.pairs))

    def _cells(self, *, frozen: bool = False) -> tuple[list[int], list[int]]:
        """Senders and columns of the paths there are; ``frozen``: with those that are not run."""
        rows, columns = [], []
        for row, sender in enumerate(self.plan.senders):
            for column, ends in enumerate([[], *self.plan.columns(self.signal, sender)]):
                if ends is not None and (frozen or not self._is_frozen(ends)):
                    rows.append(row)
                    columns.append(column)
        return rows, columns

    def _is_frozen(self, ends: Sequence[End]) -> bool:
        return self.plan.frozen and READOUT in [e.name for e in ends]

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
        self, clean: CleanItems, items: Sequence[int], sender: Target
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

    def _runs(self, item: int, deltas: dict[Target, dict[int, tuple[Tensor, Tensor]]]) -> list[Run]:
        """The runs of an item, one per cell."""
        _, at, _ = self._at(item)
        runs: list[Run] = []
        for sender in self.plan.senders:
            other, change = deltas[sender][item]
            runs.append((Change(sender, at, other),))
            for ends in self.plan.columns(self.signal, sender):
                if ends is not None and not self._is_frozen(ends):
                    runs.append(tuple(_part(end, at, change.to(other)) for end in ends))
        return runs

    def _direct(
        self,
        clean: CleanItems,
        items: Sequence[int],
        deltas: dict[Target, dict[int, tuple[Tensor, Tensor]]],
    ) -> None:
        """The direct path with the final norm held at its value in the clean run."""
        if READOUT not in self.plan.names:
            return
        column = 1 + self.plan.names.index(READOUT)
        read = {i: self._read_tokens(i) for i in items}
        u = self.signal.linearize(self.readout, self._last_states(clean, read)).u
        each = torch.split(u, [len(tokens) for tokens in read.values()])
        for item, functional in zip(items, each, strict=True):
            _, at, _ = self._at(item)
            seen = [k for k, token in enumerate(at) if token in read[item]]
            where = [read[item].index(at[k]) for k in seen]
            for row, sender in enumerate(self.plan.senders):
                change = deltas[sender][item][1][seen]
                self.moved[item, row, column] = float((change * functional[where]).sum())

    def _read_tokens(self, item: int) -> range:
        """The token that the head reads, or all where it reads their mean."""
        read = self.sides.read[item]
        return range(len(self.sides.encoded[item].ids)) if read == MEAN else range(read, read + 1)

    def _last_states(self, clean: CleanItems, read: dict[int, range]) -> Swept:
        sites = (Site("resid_post", self.signal.trunk.n_layers - 1), _NORMED)
        counts = torch.tensor([len(tokens) for tokens in read.values()])
        states = {s: torch.cat([self._picked(clean, s, i, at) for i, at in read.items()])
                  for s in sites}  # fmt: skip
        owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
        weight = 1.0 / counts.double()[owner]
        device = states[_NORMED].device
        return Swept(np.array(list(read)), states, counts.numpy(), owner.to(device),
                     weight.to(device))  # fmt: skip


def _part(end: End, at: tuple[int, ...], change: Tensor) -> Change | Reception:
    if end.receiver is not None:
        return Reception(end.receiver, at, change)
    assert end.target is not None
    return Change(end.target, at, change, add=True)
