"""Calibration: instruments are run on organisms of the user's own model, which makes scorecards."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reward_lens.data import Pairs, as_pairs
from reward_lens.errors import CapabilityError, NumericsError, RewardLensError
from reward_lens.evidence import Evidence, EvidenceStore
from reward_lens.evidence.arguments import checked_count, checked_seed
from reward_lens.organisms.calibration_cards import Calibration, Seen, card_of
from reward_lens.organisms.calibration_draws import (
    DOSES,
    FIXED_ON,
    FIXING,
    NULLS,
    ORGANISMS,
    Design,
    Draw,
    fresh_nulls,
)
from reward_lens.organisms.instrument_specs import Instrument, Spec, named_specs
from reward_lens.organisms.planting import Organism, Planter
from reward_lens.signals import ClassifierRM, checked_signal
from reward_lens.signals.classifier import BATCH_TOKENS

#: Told how many organisms are finished, and how many there are.
Told = Callable[[int, int], None]

INSTRUMENTS = ("lens", "attribution", "patch_grid", "path_effects")
MAX_PAIRS = 64
_ATTEMPTS = 3


def calibrate(
    signal: ClassifierRM,
    pairs: Any,
    instruments: Sequence[str] = INSTRUMENTS,
    *,
    store: EvidenceStore | None = None,
    doses: Sequence[float] = DOSES,
    organisms: int = ORGANISMS,
    nulls: int = NULLS,
    fixing: int = FIXING,
    max_pairs: int = MAX_PAIRS,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    functions: Mapping[str, Instrument] | None = None,
    readout: str | None = None,
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    seed: int = 0,
    progress: Told | None = None,
) -> Calibration:
    """Find out what instruments can see on a model: plant rules in it and look for them.

    Rules of several kinds and sizes are planted by hooks, so that no weight is touched, on pairs
    whose sides are drawn at random, so that the model's own preference averages out. Of each
    instrument it is then known which rules it finds, how often it takes chance for a rule, and
    whether its intervals hold what was planted: that is its scorecard. Readings of the same
    instrument with the same options on this model, on as many pairs or more, are calibrated where
    they reach the dose that the card finds.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
        Texts to plant rules on. The cards speak of measurements on this many pairs, up to ten times
        as many: with more the noise is smaller, so that they err on the safe side.
    instruments : sequence of str
        Of ``lens``, ``attribution``, ``attribution_heads``, ``patch_grid``, ``patch_grid_heads``,
        ``path_effects``, ``attribution_patching``. ``path_effects`` follows the components with
        the largest effects in the patch grid, as it does by default and in an audit.
    store : EvidenceStore, optional
        What is measured on an organism is appended at once, the cards at the end. A calibration
        that was interrupted goes on where it stopped: what is in the store for the same organism
        and options is not measured again. Without a store, see :meth:`Calibration.append_to`.
    doses : sequence of float
        Sizes of the rules, in SDs of the margin of the pairs.
    organisms : int
        Rules at each dose, spread over the kinds that the instrument is tested on; 20 at least, or
        the card does not pass.
    nulls, fixing : int
        Organisms without a preference, spread likewise; and of the kind that the threshold is fixed
        on, see :func:`~reward_lens.organisms.calibration_draws.threshold_of`.
    max_pairs : int
        A seeded sample of this size is taken of more.
    options : mapping, optional
        Instrument -> its options, which become part of what the card speaks of.
    functions : mapping, optional
        Instrument -> what is run in its place, ``f(signal, pairs, **options) -> Evidence``.
    readout : str, optional
        The checkpoint's own score by default.
    position : {"native", "last", "first"}, optional
    seed : int
    progress : callable, optional
        Told how many organisms are finished, and how many there are.

    Returns
    -------
    Calibration

    Raises
    ------
    CapabilityError
        If an instrument cannot be calibrated, the signal's trunk carries no rules, or only one kind
        of them.
    DataError
        If the pairs' margins do not vary, too few pairs differ, or a count or the seed is no whole
        number.
    """
    checked_signal(signal)
    seed, max_pairs = checked_seed(seed), checked_count("max_pairs", max_pairs, 1)
    course = Course(
        signal=signal,
        pairs=as_pairs(pairs).sample(max_pairs, seed),
        specs=_specs(instruments, functions),
        design=Design(doses, organisms, nulls, fixing),
        options=options or {},
        readout=readout or signal.default_readout,
        position=position,
        truncate=truncate,
        batch_tokens=batch_tokens,
        seed=seed,
    )
    return course.run(store, progress)


def _specs(names: Sequence[str], functions: Mapping[str, Instrument] | None) -> tuple[Spec, ...]:
    given = functions or {}
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise CapabilityError(f"functions names {unknown[0]!r}, which is not among the instruments")
    found = named_specs((names,) if isinstance(names, str) else tuple(names))
    return tuple(
        replace(spec, instrument=given[spec.name]) if spec.name in given else spec for spec in found
    )


@dataclass
class Course:
    """What a calibration is asked to do, and how it goes about it.

    Attributes
    ----------
    pairs : Pairs
        Those that rules are planted on, as given.
    specs : tuple of Spec
    """

    signal: ClassifierRM
    pairs: Pairs
    specs: tuple[Spec, ...]
    design: Design
    options: Mapping[str, Mapping[str, Any]]
    readout: str
    position: str | None
    truncate: str
    batch_tokens: int
    seed: int
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: How often a kind of rule of a size could not be planted.
    failures: dict[tuple[str, float], int] = field(default_factory=dict)
    #: The first evidence of each instrument, which tells what later ones will be of.
    first: dict[str, Evidence] = field(default_factory=dict)

    def run(self, store: EvidenceStore | None, progress: Told | None) -> Calibration:
        """Run every instrument on every organism, and make the cards."""
        with self.planter() as planter:
            self._note_left_out(planter)
            fixed_on, wanted = self._draws(planter.kinds)
            seen = self._measured(planter, wanted, store, progress)
            cards = {
                spec.name: card_of(spec, seen[spec.name], fixed_on, planter.margin_sd)
                for spec in self.specs
                if spec.name not in self.skipped and seen[spec.name]
            }
        if store is not None:
            store.append_all(cards.values())
        evidence = {e.id: e for found in seen.values() for s in found for e in (s.evidence,)}
        return Calibration(
            cards=cards,
            skipped=dict(self.skipped),
            seconds=dict(self.seconds),
            notes=tuple(self.notes),
            evidences=() if store is not None else tuple(evidence.values()),
            course=self,
        )

    def planter(self) -> Planter:
        """A planter on the pairs."""
        return Planter(self.signal, self.pairs, readout=self.readout, position=self.position,
                       truncate=self.truncate, batch_tokens=self.batch_tokens,
                       seed=self.seed)  # fmt: skip

    def nulls(self, planter: Planter, count: int) -> dict[Draw, list[Spec]]:
        """Nulls that were not looked at before, and the instruments that are run on each."""
        _, wanted = self._draws(planter.kinds)
        kinds: dict[str, list[str]] = {}
        for draw, specs in wanted.items():
            for spec in specs:
                if draw.dose > 0 and draw.kind not in kinds.setdefault(spec.name, []):
                    kinds[spec.name].append(draw.kind)
        found: dict[Draw, list[Spec]] = {}
        for spec in self.specs:
            for draw in fresh_nulls(kinds.get(spec.name, []), count) if spec.name in kinds else []:
                found.setdefault(draw, []).append(spec)
        return found

    def _note_left_out(self, planter: Planter) -> None:
        if planter.left_out:
            self.notes.append(
                f"{len(planter.left_out)} of {len(self.pairs)} pairs carry no rule, since a side "
                f"is the other side or a part of another text: {', '.join(planter.left_out[:5])}"
                f"{' and more' if len(planter.left_out) > 5 else ''}"
            )

    def _draws(self, kinds: Sequence[str]) -> tuple[str, dict[Draw, list[Spec]]]:
        """The kind that thresholds are fixed on; and every organism with what is run on it."""
        fixed_on = _fixed_on(kinds)
        others = [k for k in kinds if k != fixed_on]
        if not others:
            raise CapabilityError(
                f"this trunk carries rules of one kind only ({fixed_on}): the threshold is fixed "
                f"on one kind and tested on others, and here are no others"
            )
        found: dict[Draw, list[Spec]] = {}
        for spec in self.specs:
            tested = [k for k in others if k == "head write"] if spec.site == "head" else others
            if not tested:
                self.skipped[spec.name] = "this trunk carries no rule in a head"
                continue
            for draw in (*self.design.fixed(fixed_on), *self.design.tested(tested)):
                found.setdefault(draw, []).append(spec)
        return fixed_on, dict(sorted(found.items()))

    def _measured(
        self,
        planter: Planter,
        wanted: Mapping[Draw, Sequence[Spec]],
        store: EvidenceStore | None,
        progress: Told | None,
    ) -> dict[str, list[Seen]]:
        """What every instrument gave on every organism, by instrument."""
        seen: dict[str, list[Seen]] = {spec.name: [] for spec in self.specs}
        for done, (_, specs, organism) in enumerate(self.organisms(planter, wanted), 1):
            if organism is not None:
                found = self.measure(organism, specs, store)
                if store is not None:
                    store.append_all(found.values())
                for name, evidence in found.items():
                    seen[name].append(Seen.of(organism, evidence))
            if progress is not None:
                progress(done, len(wanted))
        return seen

    def organisms(
        self, planter: Planter, wanted: Mapping[Draw, Sequence[Spec]]
    ) -> Iterator[tuple[Draw, Sequence[Spec], Organism | None]]:
        """Every organism; ``None`` where no rule of that size could be planted."""
        for draw, specs in wanted.items():
            since = time.perf_counter()
            organism = self._planted(planter, draw)
            self._spent("planting", since)
            yield draw, specs, organism

    def _planted(self, planter: Planter, draw: Draw) -> Organism | None:
        """The organism of a draw; of another kind where this trunk carries none of its own."""
        kinds = planter.kinds
        at = kinds.index(draw.kind)
        turned = [*kinds[at:], *kinds[:at]]
        # The kind that the threshold is fixed on stands for no other, and none for it.
        fixed_on = _fixed_on(kinds)
        others = [] if draw.kind == fixed_on else [k for k in turned[1:] if k != fixed_on]
        for attempt, kind in enumerate([draw.kind] * _ATTEMPTS + others):
            failures = self.failures.get((kind, draw.dose), 0)
            if failures == _ATTEMPTS:
                continue
            seed = draw.seed(self.seed, attempt)
            try:
                if draw.dose > 0:
                    return planter.organism(kind, draw.dose, seed)
                return planter.null(kind, seed)
            except NumericsError as error:
                self.failures[kind, draw.dose] = failures + 1
                if failures + 1 == _ATTEMPTS:
                    self.notes.append(f"{kind}: {error}; other kinds stand in for it")
        return None

    def measure(
        self, organism: Organism, specs: Sequence[Spec], store: EvidenceStore | None = None
    ) -> dict[str, Evidence]:
        """Run instruments on one organism, or take from the store what was measured before."""
        found: dict[str, Evidence] = {}
        for spec in specs:
            if spec.name in self.skipped:
                continue
            if organism.dose > 0 and not spec.place(organism.places):
                continue  # a rule of another kind stands in, of which it has no row
            since = time.perf_counter()
            known = None if store is None else self._stored(spec, organism, found, store)
            try:
                found[spec.name] = known or self._run(spec, organism, found)
            except RewardLensError as error:
                self.skipped[spec.name] = str(error)  # the other instruments stand without it
                continue
            self.first.setdefault(spec.name, found[spec.name])
            self._spent(spec.name, since)
        return found

    def _run(self, spec: Spec, organism: Organism, found: Mapping[str, Evidence]) -> Evidence:
        asked = {"readout": self.readout, "position": self.position, "truncate": self.truncate,
                 "batch_tokens": self.batch_tokens, **self.options.get(spec.name, {})}  # fmt: skip
        with warnings.catch_warnings():
            # What an instrument warns of on the model itself it says again there.
            warnings.simplefilter("ignore", UserWarning)
            return spec.run(organism.signal, organism.pairs, found, **asked)

    def _stored(
        self, spec: Spec, organism: Organism, found: Mapping[str, Evidence], store: EvidenceStore
    ) -> Evidence | None:
        """The same measurement from an earlier run, if the same code made it."""
        like = self.first.get(spec.name)
        if like is None:
            return None
        data, planted = organism.pairs.fingerprint, organism.signal.interventions
        rest = like.subject.interventions[len(planted) :]
        subject = replace(like.subject, data=data, interventions=(*planted, *rest))
        loose = {"senders"} if spec.follows_grid else set()
        for e in store.find(instrument=like.instrument, signal=subject.signal, data=data,
                            readout=subject.readout):  # fmt: skip
            if (
                e.subject == subject
                and _circumstances(e, loose) == _circumstances(like, loose)
                and bool(e.provenance.parents) == bool(like.provenance.parents)
            ):
                return e
        return None

    def _spent(self, name: str, since: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - since


def _fixed_on(kinds: Sequence[str]) -> str:
    """The kind of rule that thresholds are fixed on."""
    return FIXED_ON if FIXED_ON in kinds else kinds[0]


def _circumstances(e: Evidence, loose: set[str]) -> tuple[Any, ...]:
    p = e.provenance
    parameters = {k: v for k, v in p.parameters.items() if k not in loose}
    return e.version, dict(p.versions), p.dtype, p.device, p.kernel, parameters
