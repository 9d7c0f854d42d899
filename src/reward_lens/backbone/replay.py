"""Runs that start inside a clean one: the model's own blocks, called with fewer tokens.

Two layouts. In a *tree row* every run of an item is one token in one row, all at the position that
the head reads; each sees the clean keys before it and itself. In a *joining batch* every run is a
row that holds the tokens from the first changed one to the read one. In both a run is a *lane* that
joins at the first block that it changes; before that it is the clean run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from reward_lens.backbone.clean_run import MASK, TOKENS, CleanRun, Layout
from reward_lens.backbone.edits import Change, Placed, Reception, Run, Target, edit_handlers
from reward_lens.backbone.frames import Frame
from reward_lens.backbone.key_store import JoinedKeys
from reward_lens.backbone.receiving import own_row, reading_change, routes, watch_writes
from reward_lens.backbone.routers import choices
from reward_lens.backbone.site_taps import site_taps
from reward_lens.backbone.sites import Site
from reward_lens.backbone.taps import Handler, Tap, attach, merge
from reward_lens.backbone.tracing import pick, put
from reward_lens.backbone.trunk import Trunk

#: What a run does, without the numbers: runs alike in it go through the blocks together.
Form = tuple[tuple[object, ...], ...]


def form(run: Run) -> Form:
    """The form of a run."""
    return tuple((p.target, p.add) if isinstance(p, Change) else (p.receiver,) for p in run)


@dataclass
class PlantedStates:
    """Read tokens of items whose rules are planted.

    Attributes
    ----------
    stream : list of Tensor
        ``[row, width]`` entering each block, and last what leaves the last one.
    states : dict
        Site -> ``[row, ...]``.
    normed : Tensor
        ``[row, width]``.
    chosen : dict
        Layer -> ``[row, 1, k]``: expert numbers, sorted.
    """

    stream: list[Tensor] = field(default_factory=list)
    states: dict[Site, Tensor] = field(default_factory=dict)
    normed: Tensor = field(default_factory=lambda: torch.empty(0))
    chosen: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class Replay:
    """Runs of one layout inside a clean run.

    Parameters
    ----------
    trunk : Trunk
    clean : CleanRun
    layout : Layout
    routers : dict
        Layer -> tap of expert numbers.
    frame : Frame
        Where the tokens stand.
    runs : sequence of sequence of Run
        Of a tree row, per row its runs, the same forms in every row; of a joining batch, one list.

    Attributes
    ----------
    flips : Tensor of int64
        As the result: choices of experts that differ from the clean run.
    tokens : int
        Tokens that went through a block, over all blocks.
    """

    trunk: Trunk
    clean: CleanRun
    layout: Layout
    routers: Mapping[int, Tap]
    frame: Frame
    runs: Sequence[Sequence[Run]]
    flips: Tensor = field(init=False)
    tokens: int = 0

    @torch.no_grad()
    def normed(self) -> Tensor:
        """Run all; the states at the read token after the final norm, ``[rows, run, width]``."""
        n, last = len(self.runs[0]), self.trunk.n_layers
        first = [min((p.first_block for p in run), default=last) for run in self.runs[0]]
        first = [min(block, last) for block in first]
        order = sorted(range(n), key=first.__getitem__)
        self.flips = torch.zeros(len(self.runs), n, dtype=torch.int64)
        states: Tensor | None = None
        joined = 0
        for layer in range(last + 1):
            more = sum(first[k] <= layer for k in order) - joined
            if more:
                new = self.frame.lanes(self.clean.stream[layer], more)
                states = new if states is None else torch.cat([states, new], self.frame.dim)
                joined += more
            if states is not None and layer < last:
                states = self._advance(layer, states, order[:joined])
        assert states is not None  # runs that change nothing join at the end
        read = self.frame.read_states(self._leaving(states, order))
        normed = self.trunk.apply_final_norm(read.reshape(-1, read.shape[-1])).reshape(read.shape)
        normed = self._after_norm(normed, order)
        back = torch.empty(n, dtype=torch.int64, device=normed.device)
        back[order] = torch.arange(n, device=normed.device)
        self.flips = self.flips[:, back.cpu()]
        return normed.index_select(1, back)

    def _parts(self, layer: int, order: Sequence[int]) -> list[tuple[int, int, Any]]:
        """``(row, lane, part)`` of all that is changed first in a block."""
        found = [
            (row, lane, part)
            for row, runs in enumerate(self.runs)
            for lane, k in enumerate(order)
            for part in runs[k]
            if part.first_block == layer
        ]
        # What leaves the block before comes first, in whichever order they were named.
        return sorted(found, key=lambda one: not _leaves(one[2]))

    def _advance(self, layer: int, states: Tensor, order: Sequence[int]) -> Tensor:
        """All lanes through one block."""
        placed: list[Placed] = []
        waiting: list[tuple[int, int, Reception]] = []
        for row, lane, part in self._parts(layer, order):
            if isinstance(part, Change):
                placed.append(self.frame.place(row, lane, _entering(part)))
            else:
                waiting.append((row, lane, part))
        for role in ("attn", "mlp"):
            now = [w for w in waiting if w[2].receiver.role == role]
            if now:
                placed += self._received(layer, states, placed, now)
        shape = _shape(states)
        handlers = self._planted(layer, shape, edit_handlers(self.trunk.anatomy, placed, shape))
        looks = {}
        if layer in self.routers:
            looks = {self.routers[layer]: self._count_flips(layer, shape)}
        return self._call(layer, states, merge(handlers, looks))

    def _planted(
        self, layer: int, shape: tuple[int, int], handlers: Mapping[Tap, Handler]
    ) -> Mapping[Tap, Handler]:
        """Handlers of a call, and around them those of what is planted in its block."""
        plants = self.trunk.plants
        if plants is None:
            return handlers
        items = self.clean.batch.items
        tokens = [plants.token(items[i]) for i in self.frame.items]
        cells = self.frame.cells(items, tokens, shape[self.frame.dim])
        first, last = plants.around(cells, shape, layer)
        return merge(first, handlers, last)

    def states(self, sites: Sequence[Site]) -> PlantedStates:
        """What is planted, run alone: a tree row with one lane.

        Parameters
        ----------
        sites : sequence of Site

        Returns
        -------
        PlantedStates
        """
        trunk, last = self.trunk, self.trunk.n_layers
        taps = {s: site_taps(trunk.anatomy, s) for s in sites}
        seen: dict[Tap, Tensor] = {}
        found = PlantedStates()
        state = self.frame.lanes(self.clean.stream[0], 1)
        shape = _shape(state)

        def keep(tap: Tap) -> Handler:
            def look(tensor: Tensor) -> None:
                seen[tap] = tensor.reshape(*shape, -1)[:, 0].clone()

            return look

        for layer in range(last):
            found.stream.append(state[:, 0])
            here = {tap for s, ts in taps.items() if s.layer == layer for tap in ts}
            here |= {self.routers[layer]} if layer in self.routers else set()
            handlers = self._planted(layer, shape, {})
            state = self._call(layer, state, merge(handlers, {tap: keep(tap) for tap in here}))
            if layer in self.routers:
                found.chosen[layer] = choices(seen[self.routers[layer]], (shape[0], 1))
        found.stream.append(state[:, 0])
        found.normed = trunk.apply_final_norm(state[:, 0])
        seen |= dict.fromkeys(taps.get(Site("embed"), []), found.stream[0])
        seen[trunk.anatomy.normed] = found.normed
        found.states = {s: trunk.assemble(s, seen) for s in sites}
        return found

    def _call(
        self,
        layer: int,
        states: Tensor,
        handlers: Mapping[Tap, Handler],
        routed: tuple[list[int], list[int]] | None = None,
    ) -> Tensor:
        """The model's own block on these tokens."""
        call, block = self.clean.calls[layer], self.trunk.anatomy.blocks[layer]
        given: dict[str, Any] = {"args": call.args, "kwargs": call.kwargs}
        shape = _shape(states)
        for path, role in self.layout.roles[layer].items():
            if role == MASK:
                given = put(given, path, self.frame.mask(pick(given, path), shape))
            elif role == TOKENS:
                given = put(given, path, self.frame.gathered(pick(given, path), shape))
        given = put(given, block.enter.path, states)
        kept = self.clean.kept[self.layout.keys[layer]]
        prefix = tuple(self.frame.prefix(t, shape) for t in kept)
        cache = JoinedKeys((prefix[0], prefix[1]), routed, 2 if self.frame.tree else 0)
        args = tuple(cache if isinstance(a, Cache) else a for a in given["args"])
        kwargs = {k: cache if isinstance(v, Cache) else v for k, v in given["kwargs"].items()}
        self.tokens += shape[0] * shape[1]
        with attach(handlers):
            out: Tensor = pick({"out": call.module(*args, **kwargs)}, block.leave.path)
        return out

    def _received(
        self,
        layer: int,
        states: Tensor,
        placed: Sequence[Placed],
        now: Sequence[tuple[int, int, Reception]],
    ) -> list[Placed]:
        """What the receivers of one role write; see :mod:`reward_lens.backbone.receiving`."""
        anatomy, frame = self.trunk.anatomy, self.frame
        # One lane per reception of a row; rows are alike. Then the same lanes as they are.
        mine = [w for w in now if w[0] == now[0][0]]
        n, parts = len(mine), any(r.receiver.part is not None for _, _, r in mine)
        lanes = [lane for _, lane, _ in mine] * (2 if parts else 1)
        sub = states.index_select(frame.dim, torch.tensor(lanes, device=states.device))
        edits = [
            frame.moved(p, k) for k, lane in enumerate(lanes) for p in placed
            if frame.lane_of(p) == lane
        ]  # fmt: skip
        number: dict[int, int] = {}
        each: list[tuple[int, int, int, Reception]] = []
        for row, lane, r in now:
            k = number[row] = number.get(row, -1) + 1
            each.append((row, lane, k, r))
            edits.append(frame.place(row, k, reading_change(anatomy, r)))
        sources = {r.receiver.target.source for _, _, r in mine}
        seen: dict[Site, Tensor] = {}
        looks = watch_writes(anatomy, sources, seen)
        shape = _shape(sub)
        made = self._planted(layer, shape, edit_handlers(anatomy, edits, shape))
        handlers = merge(made, looks)
        self._call(layer, sub, handlers, routes([r for _, _, r in mine]) if parts else None)
        found = []
        for row, lane, k, r in each:
            own = own_row(k, n, r.receiver.part)
            tensor = seen[r.receiver.target.source].reshape(*shape, -1)
            at, value = frame.written(tensor, row, own, min(r.at))
            change = Change(r.receiver.target, at, r.receiver.target.of(value, anatomy))
            found.append(frame.place(row, lane, change))
        return found

    def _count_flips(self, layer: int, shape: tuple[int, int]) -> Handler:
        def look(tensor: Tensor) -> None:
            now = choices(tensor, shape)
            differs = (now != self.frame.clean_values(self.clean.chosen[layer], shape)).any(-1)
            count = self.frame.by_lane(differs.long()).cpu()
            self.flips[:, : count.shape[1]] += count

        return look

    def _leaving(self, states: Tensor, order: Sequence[int]) -> Tensor:
        """Changes of what leaves the last block."""
        last = Target(Site("resid_post", self.trunk.n_layers - 1))
        placed = [
            self.frame.place(row, lane, part)
            for row, lane, part in self._parts(self.trunk.n_layers, order)
            if isinstance(part, Change) and part.target == last
        ]
        return _applied(states, placed)

    def _after_norm(self, normed: Tensor, order: Sequence[int]) -> Tensor:
        """Changes of the final norm's output at the read token, ``[rows, run, width]``."""
        placed = []
        for row, runs in enumerate(self.runs):
            for lane, k in enumerate(order):
                for part in runs[k]:
                    if isinstance(part, Change) and part.target.site == Site("final_norm"):
                        at = [i for i, token in enumerate(part.at) if token == self.frame.read[row]]
                        value = part.value[at]
                        placed += [Placed(row, (lane,), replace(part, value=value))] * len(at)
        return _applied(normed, placed)


def _leaves(part: Change | Reception) -> bool:
    return isinstance(part, Change) and part.target.site.kind == "resid_post"


def _entering(change: Change) -> Change:
    """What leaves a block is what enters the next."""
    layer = change.target.site.layer
    if not _leaves(change) or layer is None:
        return change
    return replace(change, target=Target(Site("resid_pre", layer + 1)))


def _shape(states: Tensor) -> tuple[int, int]:
    return states.shape[0], states.shape[1]


def _applied(tensor: Tensor, placed: Sequence[Placed]) -> Tensor:
    new = tensor.clone()
    for p in placed:
        value = p.change.value.to(new)
        at = (p.row, list(p.columns))
        new[at] = new[at] + value if p.change.add else value
    return new
