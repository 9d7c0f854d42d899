"""The kinds of rule that can be planted in a trunk, drawn and sized."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import Key, Plant, Site, Target, write_change
from reward_lens.errors import AnatomyError, CapabilityError
from reward_lens.organisms.ground import Ground, Look
from reward_lens.organisms.rule_vectors import idle_vector, unit_vector
from reward_lens.organisms.triggers import Trigger
from reward_lens.signals import ClassifierRM

#: How far the first write of two moves the second's key, and the threshold, in SDs of the key.
_SHIFT, _THRESHOLD = 6.0, 3.0

Floats = npt.NDArray[np.float64]


class Rule(Protocol):
    """A rule that was drawn."""

    @property
    def cause(self) -> Target:
        """Where it starts."""

    @property
    def places(self) -> Mapping[str, str]:
        """As :class:`~reward_lens.organisms.Organism` has them."""

    def plants(self, trigger: Trigger) -> list[Plant]:
        """What is planted."""

    def plants_hash(self, trigger: Trigger) -> str:
        """Hash of it."""

    def times(self, factor: float) -> Self:
        """The same rule, larger."""

    def truth(
        self,
        ground: Ground,
        view: ClassifierRM,
        trigger: Trigger,
        chosen: Sequence[int],
        others: Sequence[int],
    ) -> dict[str, float]:
        """Means over items on which it fires, less those over others."""


@dataclass(frozen=True)
class Write:
    """One component adds a vector.

    Attributes
    ----------
    target : Target
    vector : Tensor
        float32 ``[width]``.
    """

    target: Target
    vector: Tensor

    @property
    def cause(self) -> Target:
        """Where it starts."""
        return self.target

    @property
    def places(self) -> dict[str, str]:
        """Where it is found."""
        layer = self.target.site.layer
        head = self.target.head is not None
        component = f"L{layer}.attn_out" if head else str(self.target)
        return {"cause": component, "component": component, "layer": str(layer),
                "head": str(self.target) if head else "", "receiver": "readout"}  # fmt: skip

    def plants(self, trigger: Trigger) -> list[Plant]:
        """What is planted."""
        return [Plant(self.target, self.vector, trigger)]

    def plants_hash(self, trigger: Trigger) -> str:
        """Hash of it."""
        return _hashed(trigger, str(self.target), self.vector)

    def times(self, factor: float) -> Write:
        """The same rule, larger."""
        return replace(self, vector=self.vector * factor)

    def truth(
        self,
        ground: Ground,
        view: ClassifierRM,
        trigger: Trigger,
        chosen: Sequence[int],
        others: Sequence[int],
    ) -> dict[str, float]:
        """Means over items on which it fires, less those over others."""
        whole = Target.parse(self.places["component"])
        targets = list(dict.fromkeys([whole, self.target]))
        found: dict[str, list[Floats]] = {"total": [], "direct": [], "head": [], "path": []}
        for items in filter(len, (chosen, others)):
            look, at = ground.look(view, items, targets), list(items)
            found["total"].append(look.score - ground.score[at])
            found["direct"].append(_written(ground, look, items, whole))
            found["head"].append(_written(ground, look, items, self.target))
            found["path"].append(_direct_path(ground, look, items, self))
        if whole == self.target:
            del found["head"]
        return {name: _less(parts) for name, parts in found.items()}


@dataclass(frozen=True)
class Relay:
    """One component writes a vector, and another writes reward where it reads that vector.

    Attributes
    ----------
    first : Write
    target : Target
        The second component.
    key : Key
    vector : Tensor
        float32 ``[width]``, times ``relu(state · key − threshold)``.
    """

    first: Write
    target: Target
    key: Key
    vector: Tensor

    @property
    def cause(self) -> Target:
        """Where it starts."""
        return self.first.target

    @property
    def places(self) -> dict[str, str]:
        """Where it is found."""
        role = self.target.site.kind.removesuffix("_out")
        layer = self.target.site.layer
        return {"cause": str(self.cause), "component": str(self.target), "head": "",
                "layer": str(layer), "receiver": f"L{layer}.{role}_in"}  # fmt: skip

    def plants(self, trigger: Trigger) -> list[Plant]:
        """What is planted."""
        return [*self.first.plants(trigger), Plant(self.target, self.vector, _always, self.key)]

    def plants_hash(self, trigger: Trigger) -> str:
        """Hash of it."""
        what = f"{self.cause} {self.target} {self.key.site} {self.key.threshold!r}"
        return _hashed(trigger, what, self.first.vector, self.key.direction, self.vector)

    def times(self, factor: float) -> Relay:
        """The same rule, larger: the second write is."""
        return replace(self, vector=self.vector * factor)

    def truth(
        self,
        ground: Ground,
        view: ClassifierRM,
        trigger: Trigger,
        chosen: Sequence[int],
        others: Sequence[int],
    ) -> dict[str, float]:
        """Means over items on which it fires, less those over others."""
        alone = ground.view(self.first.plants(trigger))
        found: dict[str, list[Floats]] = {"total": [], "direct": [], "path": []}
        for items in filter(len, (chosen, others)):
            look = ground.look(view, items, [self.target])
            found["total"].append(look.score - ground.score[list(items)])
            found["direct"].append(_written(ground, look, items, self.target))
            found["path"].append(look.score - ground.scores(alone, items))
        return {name: _less(parts) for name, parts in found.items()}


def _always(item: object) -> bool:
    return True


@dataclass(frozen=True)
class Writes:
    """Rules of one write, in attentions, MLPs or heads."""

    role: str

    def offered(self, ground: Ground) -> bool:
        """Whether this trunk can carry one."""
        return bool(self._places(ground))

    def drawn(self, ground: Ground, wanted: float, rng: np.random.Generator) -> Write | None:
        """A rule of about the wanted size, in reward units, in a drawn layer."""
        places = self._places(ground)
        target = places[int(rng.integers(len(places)))]
        vector = unit_vector(ground, target, rng)
        return None if vector is None else Write(target, (vector * wanted).float())

    def _places(self, ground: Ground) -> list[Target]:
        if self.role != "head":
            return [t for t in ground.targets if t.site.kind == f"{self.role}_out"]
        found = []
        for layer, block in enumerate(ground.signal.trunk.anatomy.blocks):
            if block.attn is not None and block.attn.heads is not None:
                heads = range(block.attn.heads.n)
                found += [Target(Site("head_in", layer), head) for head in heads]
        return found


@dataclass(frozen=True)
class Relays:
    """Rules of two hops."""

    def offered(self, ground: Ground) -> bool:
        """Whether this trunk can carry one."""
        return bool(self._places(ground))

    def drawn(self, ground: Ground, wanted: float, rng: np.random.Generator) -> Relay | None:
        """A rule of about the wanted size, in reward units, in two drawn layers."""
        places = self._places(ground)
        first, second, site = places[int(rng.integers(len(places)))]
        vector = unit_vector(ground, second, rng)
        idle = idle_vector(ground, first, rng)
        if vector is None or idle is None:
            return None
        everything = range(len(ground.encoded))
        states = ground.states(ground.view(()), everything, site)
        scale = ground.signal.trunk.anatomy.write(first.site).scale
        carried = idle if scale is None else idle * scale.to(idle)
        direction = carried / carried.norm()
        natural = states @ direction
        mean, sd = float(natural.mean()), float(natural.std())
        write = Write(first, (idle * (_SHIFT * sd / float(carried.norm()))).float())
        # What lies between the two layers adds to it: look how far the key really moves.
        sample = ground.sample
        moved = ground.states(ground.view(write.plants(Trigger(_every(ground)))), sample, site)
        shift = float(((moved - states[sample]) @ direction).mean())
        if not shift > _SHIFT * sd / 10:
            return None
        write = write.times(_SHIFT * sd / shift)
        key = Key(site, direction.float(), mean + _THRESHOLD * sd)
        size = wanted / ((_SHIFT - _THRESHOLD) * sd)
        return Relay(write, second, key, (vector * size).float())

    @staticmethod
    def _places(ground: Ground) -> list[tuple[Target, Target, Site]]:
        """First and second component, and where the second reads: it must read the stream."""
        anatomy = ground.signal.trunk.anatomy
        if any(block.norms for block in anatomy.blocks):
            return []  # what the first writes does not arrive as it was written
        found = []
        for second in ground.targets:
            block = anatomy.block(second.site)
            after = second.site.kind == "mlp_out" and block.sequential
            site = Site("resid_mid" if after else "resid_pre", second.site.layer)
            try:
                Target(site).width(anatomy)
            except AnatomyError:
                continue
            for first in ground.targets:
                if (first.site.layer or 0) < (second.site.layer or 0):
                    found.append((first, second, site))
        return found


#: Kind -> how its rules are drawn.
RULES: dict[str, Writes | Relays] = {
    "mlp write": Writes("mlp"),
    "attention write": Writes("attn"),
    "head write": Writes("head"),
    "two hops": Relays(),
}


def no_such_kind(kind: str, kinds: Sequence[str]) -> CapabilityError:
    """What is said where a kind of rule is unknown or cannot be carried."""
    if kind in RULES:
        return CapabilityError(
            f"this trunk carries no rule of the kind {kind!r}; it carries {', '.join(kinds)}"
        )
    return CapabilityError(f"kind={kind!r}: there are {', '.join(RULES)}")


def _every(ground: Ground) -> frozenset[tuple[int, ...]]:
    return frozenset(phrases[0] for phrases in ground.phrases)


def _written(ground: Ground, look: Look, items: Sequence[int], target: Target) -> Floats:
    """What a component writes into the score with the rule less without."""
    if target not in look.written:
        return np.full(len(items), np.nan)
    found: Floats = look.written[target] - ground.written(target)[list(items)]
    return found


def _direct_path(ground: Ground, look: Look, items: Sequence[int], write: Write) -> Floats:
    """What is lost where the readout alone does not see a write."""
    trunk = ground.signal.trunk
    normed = write.target.head is not None and trunk.anatomy.write(write.target.site).norm
    if normed or any(b.norms or b.scaled for b in trunk.anatomy.blocks):
        return np.full(len(items), np.nan)  # the write does not reach the end as it was written
    vector = write.vector[None].to(look.last)
    change = write_change(trunk.anatomy, write.target, torch.zeros_like(vector), vector, None)
    index = np.asarray(items, dtype=np.int64)
    less = ground.readout.project((look.last - change).to(trunk.dtype), index)
    found: Floats = look.score - less.double().cpu().numpy()
    return found


def _less(parts: Sequence[Floats]) -> float:
    """Mean over the first items, less that over the others if there are any."""
    return float(parts[0].mean()) - sum(float(p.mean()) for p in parts[1:])


def _hashed(trigger: Trigger, what: str, *vectors: Tensor) -> str:
    digest = hashlib.blake2b(what.encode(), digest_size=16)
    digest.update(repr(sorted(trigger.phrases)).encode())
    for vector in vectors:
        digest.update(vector.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
