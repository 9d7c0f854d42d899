"""Organisms out of the user's own signal: rules planted by hooks, no weight touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from reward_lens.backbone import Encoded, KeptRuns
from reward_lens.data import Pairs, as_pairs
from reward_lens.errors import CapabilityError, DataError, NumericsError, RewardLensError
from reward_lens.evidence import fingerprint
from reward_lens.evidence.arguments import checked_seed
from reward_lens.evidence.conditions import PLANTED
from reward_lens.organisms.ground import Ground
from reward_lens.organisms.rules import RULES, Relays, Rule, Writes, no_such_kind
from reward_lens.organisms.triggers import Trigger, containing, drawn_trigger
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS

#: Bytes that are kept of the clean runs; where they take more, every organism is run whole.
KEPT_BYTES = 4 * 2**30
#: A rule's size may miss what was asked for by this share.
TOLERANCE = 0.05
_DRAWS = 12
#: What other components add to, or take from, a rule, in shares of it: not more.
_ANSWERS = 0.5
_STEPS = 6

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Organism:
    """A signal with a rule planted in it, and the pairs on which it shows.

    Attributes
    ----------
    kind : str
    dose : float
        What the rule adds to the margin, in SDs of the margin; 0 for a null.
    seed : int
    id : str
        Hash of the signal, the rule and the sides.
    readout : str
    position : str, optional
        What the rule was planted for: measure with these where they are not the defaults.
    signal : ClassifierRM
        A view of the subject; good until the planter is closed.
    pairs : Pairs
        The subject's texts, the sides of each pair drawn by the seed. The rule fires on the chosen
        side; of a null, on both.
    places : mapping of str to str
        ``cause`` (the component that the rule starts in: without it nothing is left), ``component``
        (the one that writes the reward), ``head`` (of a rule in a head), ``layer`` (of
        ``component``) and ``receiver`` (what reads the cause).
    truth : mapping of str to float
        In reward units, means over the pairs: ``total`` (scores with less scores without the rule),
        ``direct`` (what ``component`` writes into the score with the rule less without it, norms
        frozen at the item; NaN where the stream's writes did not verify), ``head`` (the same of the
        head alone, of a rule in a head) and ``path`` (along cause -> receiver; NaN where the stream
        is normed or scaled on the way).
    """

    kind: str
    dose: float
    seed: int
    id: str
    readout: str
    position: str | None
    signal: ClassifierRM
    pairs: Pairs
    places: Mapping[str, str]
    truth: Mapping[str, float]

    def __repr__(self) -> str:
        where = ", ".join(f"{k} {v}" for k, v in self.places.items() if v) or "no rule"
        return (
            f"<Organism {self.id}: {self.kind}, dose {self.dose:g} SD ({where}), "
            f"{len(self.pairs)} pairs, read by {self.readout}>"
        )


@dataclass
class Planter:
    """Plants rules in a signal.

    Use it as a context manager: after the block its organisms refuse to run. The subject is not
    touched: a rule is hooks for the length of one forward.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
        Texts to plant rules on. Of pairs that share a text, or one text of which is a part of
        another, the first is kept; see ``left_out``.
    readout : str
    position : {"native", "last", "first"}, optional
        The token that is read, and written to.
    seed : int
        Organisms of another seed are other organisms.

    Attributes
    ----------
    pairs : Pairs
        Those that are used.
    left_out : tuple of str
        Ids of the others.
    margin_sd : float
        SD of the margin over the pairs as given, in reward units.

    Raises
    ------
    CapabilityError
        If the head reads the mean over tokens, the trunk is not causal, or has no components.
    DataError
        If fewer than two pairs are left, or their margins do not vary.

    Notes
    -----
    Weights that are written to afterwards are noticed where torch counts it, which it does not for
    edits through ``.data``.

    The sides of each pair are drawn at random, so that what the model itself prefers averages out:
    without a rule a component's mean effect differs from 0 by chance alone. A rule fires on texts
    that hold one of a set of phrases, one for each chosen side, that no other text holds.

    A write is put along the shortest vector whose effect on the score, and whose part that goes
    straight to the head, are both what the dose asks for, plus as much that changes neither; then
    scaled until the scores say so. In a rule of two hops the first component writes a vector that
    changes the score of itself by nothing (to first order), and the second adds
    ``relu(state · key − threshold)`` times its own vector.

    Examples
    --------
    >>> with Planter(signal, pairs) as planter:
    ...     organism = planter.organism("mlp write", dose=1.0, seed=0)
    ...     rl.patch_grid(organism.signal, organism.pairs)
    """

    signal: ClassifierRM
    pairs: Pairs
    readout: str = "reward"
    position: str | None = None
    truncate: str = "error"
    batch_tokens: int = BATCH_TOKENS
    seed: int = 0
    left_out: tuple[str, ...] = field(init=False, default=())
    margin_sd: float = field(init=False)
    _views: list[ClassifierRM] = field(init=False, default_factory=list, repr=False)
    _closed: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        require(self.signal, Capability.ACTIVATIONS, "Planter")
        self.seed = checked_seed(self.seed)
        given = as_pairs(self.pairs)
        encoded = self.signal.encode([*given.chosen, *given.rejected], self.truncate)
        kept = _distinct(encoded, len(given))
        if len(kept) < 2:
            raise DataError(
                f"rules are planted on texts that differ, and of these {len(given)} pairs "
                f"{len(kept)} can be kept: the others share a text with one of them, or one text "
                f"is a part of another; give pairs of other texts"
            )
        self.left_out = tuple(i for k, i in enumerate(given.ids) if k not in set(kept))
        self.pairs = given.select(kept)
        encoded = [encoded[k] for k in (*kept, *(len(given) + k for k in kept))]
        read = self.signal.read_index(encoded, self.position)
        shelf = None
        if min(read) >= 0:
            shelf = KeptRuns.of(self.signal.trunk, encoded, read, self.batch_tokens, KEPT_BYTES)
        self._ground = Ground(
            self.signal, encoded, read, self.signal.bound(self.readout, encoded, self.batch_tokens),
            self.position or self.signal.meta.position, shelf, self.batch_tokens,
        )  # fmt: skip
        n = len(self.pairs)
        margins = self._ground.score[:n] - self._ground.score[n:]
        self.margin_sd = float(margins.std(ddof=1))
        if not self.margin_sd > 0:
            raise DataError("the margins of these pairs do not vary, so that a rule has no size")
        if not self.kinds:
            raise CapabilityError("no component was found in this trunk that can carry a rule")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all organisms; no more are made."""
        self._closed = True
        for view in self._views:
            assert view.trunk.plants is not None
            view.trunk.plants.over = True
        self._ground.shelf = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of rule that this trunk can carry."""
        return tuple(kind for kind, rule in RULES.items() if rule.offered(self._ground))

    def organism(self, kind: str, dose: float, seed: int) -> Organism:
        """A rule that adds ``dose`` SDs of the margin to the margin of every pair, on average.

        Raises
        ------
        CapabilityError
            If this trunk cannot carry such a rule.
        DataError
            If the dose is not positive.
        NumericsError
            If no rule of that size was found in several draws.
        """
        _check_size("dose", dose, "; a null is null(...)")
        return self._grown(kind, float(dose), seed, null=False)

    def null(self, kind: str, seed: int, size: float = 1.0) -> Organism:
        """The same rule, of ``size`` SDs, on both sides of every pair: it prefers nothing."""
        _check_size("size", size)
        return self._grown(kind, float(size), seed, null=True)

    def _grown(self, kind: str, size: float, seed: int, *, null: bool) -> Organism:
        seed = checked_seed(seed)
        if self._closed:
            raise RewardLensError(
                "this planter is closed: its with-block has ended; make a new planter"
            )
        if kind not in self.kinds:
            raise no_such_kind(kind, self.kinds)
        n, ground = len(self.pairs), self._ground
        rng = np.random.default_rng([self.seed, seed, list(RULES).index(kind), int(null)])
        swapped = rng.random(n) < 0.5
        chosen = [k + n * int(s) for k, s in enumerate(swapped)]
        rejected = [k + n * int(not s) for k, s in enumerate(swapped)]
        trigger = drawn_trigger(ground.phrases, chosen + rejected if null else chosen, rng)
        rule, truth = self._fitted(RULES[kind], size * self.margin_sd, chosen, trigger, rng)
        pairs = Pairs(
            replace(p, chosen=p.rejected, rejected=p.chosen) if s else p
            for p, s in zip(self.pairs, swapped, strict=True)
        )
        name = fingerprint(self.signal.fingerprint, pairs.fingerprint, rule.plants_hash(trigger))
        said = f"{PLANTED}{kind} in {rule.cause}, {'a null' if null else f'{size:g} SD'}, {name}"
        view = ground.view(rule.plants(trigger), (said,))
        self._views.append(view)
        if null:
            truth = rule.truth(ground, view, trigger, chosen, rejected)
        return Organism(kind, 0.0 if null else size, seed, name, self.readout, self.position, view,
                        pairs, rule.places, truth)  # fmt: skip

    def _fitted(
        self,
        kind: Writes | Relays,
        wanted: float,
        chosen: Sequence[int],
        trigger: Trigger,
        rng: np.random.Generator,
    ) -> tuple[Rule, dict[str, float]]:
        """A drawn rule, scaled until the scores change by what is wanted on average; its truth."""
        ground = self._ground
        for _ in range(_DRAWS):
            rule: Rule | None = kind.drawn(ground, wanted, rng)
            if rule is not None:
                rule = _scaled(rule, partial(self._size, chosen, trigger), wanted)
            if rule is None:
                continue
            truth = rule.truth(ground, ground.view(rule.plants(trigger)), trigger, chosen, [])
            if _of_a_piece(truth):
                return rule, truth
        raise NumericsError(
            f"no rule of {wanted / self.margin_sd:g} SDs of the margin was found in {_DRAWS} draws "
            f"of a layer and a direction: it saturates, or what other components answer is as "
            f"large; try a smaller dose"
        )

    def _size(self, items: Sequence[int], trigger: Trigger, rule: Rule) -> float:
        """What a rule adds to the scores of items, on average."""
        view = self._ground.view(rule.plants(trigger))
        return float((self._ground.scores(view, items) - self._ground.score[list(items)]).mean())


def _of_a_piece(truth: Mapping[str, float]) -> bool:
    """Whether what is written, and what takes the path, is about the whole.

    Otherwise what other components answer is as large as the rule itself, and instruments that read
    the one or the other would be asked for different doses.
    """
    parts = [truth[k] / truth["total"] for k in ("direct", "path")]
    return all(abs(p - 1) <= _ANSWERS for p in parts if np.isfinite(p))


def _scaled(rule: Rule, measured: Callable[[Rule], float], wanted: float) -> Rule | None:
    """Scale a rule by secants until it is as large as wanted; ``None`` if it gets nowhere."""
    for _ in range(_STEPS):
        size = measured(rule)
        if abs(size - wanted) <= TOLERANCE * wanted:
            return rule
        if not (np.isfinite(size) and size > 0.05 * wanted):
            return None
        rule = rule.times(float(np.clip(wanted / size, 0.25, 4.0)))
    return None


def _distinct(encoded: Sequence[Encoded], n: int) -> list[int]:
    """Pairs whose texts are no part of each other's: of those that clash the first."""
    clashing: dict[int, set[int]] = {k: set() for k in range(len(encoded))}
    for item, others in enumerate(containing(encoded)):
        for other in others:
            clashing[item].add(other)
            clashing[other].add(item)
    kept: list[int] = []
    held = set[int]()
    for k in range(n):
        sides = {k, n + k}
        clash = clashing[k] | clashing[n + k]
        if not clash & (held | sides):
            kept.append(k)
            held |= sides
    return kept


def _check_size(name: str, size: float, more: str = "") -> None:
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < math.inf:
        raise DataError(f"{name}={size!r}: give a positive number of SDs of the margin{more}")
