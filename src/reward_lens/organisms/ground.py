"""What is known of a signal before rules are planted in it: texts, scores, and what moves them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import (
    MEAN,
    Encoded,
    KeptRuns,
    Plant,
    Plants,
    Site,
    Target,
    freeze_stream,
    head_functional,
    stream_sites,
)
from reward_lens.errors import CapabilityError
from reward_lens.organisms.triggers import Phrase, own_phrases
from reward_lens.signals import ClassifierRM
from reward_lens.signals.gradient_sweep import gradient_sweep
from reward_lens.signals.readouts import Readout
from reward_lens.signals.sweeping import Swept

#: Items whose gradients are averaged.
SAMPLE = 16
_NORMED = Site("final_norm")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """One run of some items.

    Attributes
    ----------
    score : ndarray, [item]
    last : Tensor
        float64 ``[item, width]``: what leaves the last block.
    written : dict
        Target -> ndarray ``[item]``: what it writes into the score, norms frozen at the item; none
        where the stream's writes did not verify.
    """

    score: Floats
    last: Tensor
    written: dict[Target, Floats]


@dataclass
class Ground:
    """Texts of a signal, run clean once.

    Attributes
    ----------
    signal : ClassifierRM
    encoded, read : list
        Both sides of all pairs, and the token that is read of each.
    readout : Readout
        Bound to them.
    reads : str
        Where the head reads.
    shelf : KeptRuns, optional
        Clean runs; without them every organism is run whole.
    score : ndarray, [item]
        Clean scores.
    """

    signal: ClassifierRM
    encoded: list[Encoded]
    read: list[int]
    readout: Readout
    reads: str
    shelf: KeptRuns | None
    batch_tokens: int
    score: Floats = field(init=False)

    def __post_init__(self) -> None:
        self._made = self.signal.trunk.versions()
        if any(r == MEAN for r in self.read):
            raise CapabilityError(
                "this head reads the mean over all tokens, so there is no one token to plant a "
                "rule at"
            )
        if not self.signal.trunk.anatomy.causal:
            raise CapabilityError(
                "rules are planted at the token that the head reads, and in this trunk the states "
                "of other tokens depend on it"
            )
        self.score = self.scores(self.view(()), range(len(self.encoded)))

    @cached_property
    def phrases(self) -> list[list[Phrase]]:
        """The phrases that each item has for its own."""
        return own_phrases(self.encoded)

    def view(
        self, plants: Sequence[Plant], said: tuple[str, ...] = (), *, kept: bool = True
    ) -> ClassifierRM:
        """The signal with plants in it; ``kept`` says whether from the runs that are kept."""
        trunk = self.signal.trunk
        trunk.refuse_written(self._made)
        planted = trunk.planted(
            Plants(trunk.anatomy, plants, self.reads), self.shelf if kept else None
        )
        return self.signal.changed(planted, said)

    def sweep(
        self, view: ClassifierRM, items: Sequence[int], sites: Sequence[Site]
    ) -> Iterator[Swept]:
        """Run some items; what is yielded speaks of them by their own numbers."""
        numbers = np.asarray(items, dtype=np.int64)
        found = view.sweep(
            [self.encoded[i] for i in items], sites, [self.read[i] for i in items],
            batch_tokens=self.batch_tokens,
        )  # fmt: skip
        for seen in found:
            yield replace(seen, index=numbers[seen.index])

    def scores(self, view: ClassifierRM, items: Sequence[int]) -> Floats:
        """Scores of some items, read in float32: float64 ``[item]`` in the order given."""
        found: dict[int, float] = {}
        for seen in self.sweep(view, items, [_NORMED]):
            values = self.readout.read(seen.sites[_NORMED], seen.index).double().cpu()
            found.update(zip(seen.index.tolist(), values.tolist(), strict=True))
        return np.array([found[i] for i in items])

    def states(self, view: ClassifierRM, items: Sequence[int], site: Site) -> Tensor:
        """States of some items at their read token: float64 ``[item, width]``."""
        found: dict[int, Tensor] = {}
        for seen in self.sweep(view, items, [site]):
            found.update(zip(seen.index.tolist(), seen.sites[site].double(), strict=True))
        return torch.stack([found[i] for i in items])

    @cached_property
    def sample(self) -> list[int]:
        """Items whose gradients are looked at: spread over all."""
        n = len(self.encoded)
        return sorted({int(k) for k in np.linspace(0, n - 1, min(SAMPLE, n))})

    @cached_property
    def targets(self) -> list[Target]:
        """Every write that can carry a rule: attention and MLP of each layer."""
        found = []
        for layer, block in enumerate(self.signal.trunk.anatomy.blocks):
            found += [Target(Site("attn_out", layer))] if block.attn is not None else []
            found += [Target(Site("mlp_out", layer))] if block.mlp is not None else []
        return found

    @cached_property
    def slopes(self) -> dict[Site, Tensor]:
        """Mean gradient of the score at the read token, by source: float64 ``[width]``."""
        anatomy = self.signal.trunk.anatomy
        sites = [t.source for t in self.targets]
        sites += [Site("head_in", k) for k, b in enumerate(anatomy.blocks)
                  if b.attn is not None and b.attn.heads is not None]  # fmt: skip
        total: dict[Site, Tensor] = {}
        for one in gradient_sweep(self.signal, self.encoded, self.sample, sites, self.readout,
                                  self.read, self.batch_tokens):  # fmt: skip
            for site, slope in one.slopes.items():
                row = slope[self.read[one.item]].double()
                total[site] = total[site] + row if site in total else row
        return {site: t / len(self.sample) for site, t in total.items()}

    def look(self, view: ClassifierRM, items: Sequence[int], targets: Sequence[Target]) -> Look:
        """Run some items once: scores, last states, and what components write into the score."""
        trunk, n = self.signal.trunk, len(items)
        row = {item: k for k, item in enumerate(items)}
        last = Site("resid_post", trunk.n_layers - 1)
        found = Look(np.empty(n), torch.empty(n, trunk.anatomy.width, dtype=torch.float64,
                                              device=trunk.device), {})  # fmt: skip
        sites = [last, _NORMED, *self._linear_sites(targets)]
        for seen in self.sweep(view, items, list(dict.fromkeys(sites))):
            rows = [row[i] for i in seen.index.tolist()]
            values = self.readout.read(seen.sites[_NORMED], seen.index)
            found.score[rows] = values.double().cpu().numpy()
            found.last[rows] = seen.sites[last].double()
            for target, functional in self._functionals(view, seen, targets).items():
                state = target.of(seen.sites[target.source], trunk.anatomy).double()
                written = found.written.setdefault(target, np.full(n, np.nan))
                written[rows] = (functional * state).sum(-1).cpu().numpy()
        return found

    def written(self, target: Target) -> Floats:
        """What a component writes into the score without plants; NaN where it is not known."""
        if target not in self._written:
            everything = range(len(self.encoded))
            found = self.look(self.view(()), everything, [target]).written.get(target)
            self._written[target] = np.full(len(everything), np.nan) if found is None else found
        return self._written[target]

    @cached_property
    def _written(self) -> dict[Target, Floats]:
        return {}

    def direct(self, target: Target) -> Tensor | None:
        """What a unit of a target's source adds to the score by itself, without plants.

        Norms are frozen at each item; mean over the sample, float64 ``[width]``. ``None`` where the
        stream's writes did not verify.
        """
        if target not in self._direct:
            rows = [self._functionals(self.signal, seen, [target])
                    for seen in self.sweep(self.view(()), self.sample,
                                           [*self._linear_sites([target]), _NORMED])]  # fmt: skip
            found = [r[target] for r in rows if target in r]
            self._direct[target] = torch.cat(found).mean(0) if found else None
        return self._direct[target]

    @cached_property
    def _direct(self) -> dict[Target, Tensor | None]:
        return {}

    def _linear_sites(self, targets: Sequence[Target]) -> list[Site]:
        """What :meth:`_functionals` needs to see; none where the writes did not verify."""
        anatomy = self.signal.trunk.anatomy
        if not anatomy.adds_up:
            return []
        heads = [Site("attn_raw", t.site.layer) for t in targets if t.head is not None]
        return [*stream_sites(anatomy), *heads, *(t.source for t in targets)]

    def _functionals(
        self, view: ClassifierRM, seen: Swept, targets: Sequence[Target]
    ) -> dict[Target, Tensor]:
        """What a unit of each target's source adds to the score: float64 ``[item, width]``."""
        anatomy = self.signal.trunk.anatomy
        if not anatomy.adds_up:
            return {}
        stream = freeze_stream(anatomy, seen.sites, view.linearize(self.readout, seen).u)
        found = {}
        for target in targets:
            write, layer = anatomy.write(target.site), target.site.layer
            kind = "attn_out" if target.head is not None else target.site.kind
            own = stream.writes[Site(kind, layer)]
            if target.head is not None:
                raw = seen.sites[Site("attn_raw", layer)]
                own = head_functional(write, own, raw)[0][:, target.head]
            elif write.scale is not None:
                own = own * write.scale
            found[target] = own
        return found
