"""Which instruments an audit runs on a signal, on how many pairs, and why not the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reward_lens.backbone import TREE, engine_of
from reward_lens.data import Pairs
from reward_lens.evidence import Evidence
from reward_lens.instruments import (
    attribution,
    attribution_patching,
    compare_views,
    concept_dose_response,
    lens,
    patch_grid,
    path_effects,
    source_attribution,
    token_map,
)
from reward_lens.instruments.patch_targets import grid_targets
from reward_lens.instruments.path_graph import all_ends
from reward_lens.instruments.paths import TOP
from reward_lens.instruments.token_maps import why_lacking
from reward_lens.organisms.instrument_specs import largest_effects
from reward_lens.signals import ClassifierRM

#: Pairs for the causal instruments; paths and gradients are followed on half of them.
CAUSAL_SAMPLE = 64
#: Pairs of these on which the estimates by gradient are held against exact effects.
EXACT_SAMPLE = 16
#: What a causal instrument may cost, in forwards, where every patch is a whole forward.
_FORWARDS = 600
#: With fewer pairs there is nothing to say of a mean.
_FEWEST = 8
_DIRECTIONS = 2
#: What an audit makes scorecards of.
CALIBRATED = ("lens", "attribution", "patch_grid", "path_effects")
_PATCHING = ("patch_grid", "path_effects")
#: The methods of a token map that cost no forward per token or step.
_CHEAP = ("prefix", "gradient")

#: Runs an instrument on a signal and pairs, given what was measured so far.
Run = Callable[..., Evidence]


@dataclass(frozen=True)
class Job:
    """One instrument of an audit.

    Attributes
    ----------
    name : str
    pairs : Pairs
    run : callable
        ``run(signal, pairs, found, **options)``; ``found`` is the evidence so far, by name.
    needs : tuple of str
        Evidence without which it cannot run.
    lacks : str
        What the trunk or head lacks for it; empty where it can run.
    note : str
        What a reader must know of it.
    """

    name: str
    pairs: Pairs
    run: Run
    needs: tuple[str, ...] = ()
    lacks: str = ""
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """What is asked of an audit, and what the signal allows.

    Attributes
    ----------
    some, shown : Pairs
        The sample, and the pairs whose tokens are shown.
    causal_sample : int, optional
        Asked for; by default :data:`CAUSAL_SAMPLE`, or what whole forwards allow.
    seed : int
    concept : object, optional
        As :func:`~reward_lens.concept_dose_response` takes it.
    calibrated : bool
        What is found is judged by scorecards, which are made on as many pairs as are patched: paths
        are followed on all of them, since of half of them a card would not speak.
    """

    signal: ClassifierRM
    some: Pairs
    shown: Pairs
    causal_sample: int | None
    seed: int
    concept: Any = None
    calibrated: bool = False

    def jobs(self) -> list[Job]:
        """Every instrument, in the order they run; those that cannot say why."""
        anatomy = self.signal.trunk.anatomy
        reasons = "; ".join(dict.fromkeys(anatomy.missing.values())) or "nothing was verified"
        by_head = self.signal.meta.granularity == "head"
        no_writes = "" if anatomy.adds_up else reasons
        no_heads = "" if by_head else reasons
        no_sources = "the head reads the mean over tokens" if self.averaged else no_heads
        lacking = {m: why_lacking(self.signal, m) for m in _CHEAP}
        methods = [m for m, why in lacking.items() if not why]
        no_tokens = "" if methods else "; ".join(lacking.values())
        return [
            Job("lens", self.some, _plain(lens), lacks="" if anatomy.blocks else reasons),
            Job("attribution", self.some, _plain(attribution), lacks=no_writes),
            Job("attribution_heads", self.some, _plain(attribution, by="head"), lacks=no_heads),
            *self._causal(no_writes, no_heads),
            Job("token_map", self.shown, _gradients(token_map, methods=methods), lacks=no_tokens),
            Job("source_attribution", self.shown, _plain(source_attribution), lacks=no_sources),
        ]

    def calibration(self) -> tuple[tuple[str, ...], Pairs]:
        """The instruments that scorecards are made of, and the pairs to make them on.

        Those that cost tokens; where a patch is a whole forward, those that patch nothing.
        """
        jobs = {job.name: job for job in self.jobs() if not job.lacks}
        wanted = [n for n in CALIBRATED if n in jobs and (self.fast or n not in _PATCHING)]
        asked = CAUSAL_SAMPLE if self.causal_sample is None else self.causal_sample
        return tuple(wanted), self.some.sample(asked, self.seed)

    def _causal(self, no_writes: str, no_heads: str) -> list[Job]:
        """The instruments that change the trunk's activations."""
        grid = self._grid("patch_grid", "component", no_writes)
        heads = self._grid("patch_grid_heads", "head", no_heads)
        half = grid.pairs.sample(max(1, len(grid.pairs) // 2), self.seed)
        jobs = [
            grid,
            heads,
            Job("compare_views", self.some, _views("attribution", "patch_grid"),
                needs=("attribution", "patch_grid"), lacks=grid.lacks),
            Job("compare_views_heads", self.some,
                _views("attribution_heads", "patch_grid_heads", by="head"),
                needs=("attribution_heads", "patch_grid_heads"), lacks=heads.lacks),
            self._paths(grid.pairs if self.calibrated else half, grid.lacks),
            Job("attribution_patching", half,
                _gradients(attribution_patching, positions=self.positions, seed=self.seed,
                           sample=EXACT_SAMPLE if self.fast else _FEWEST),
                lacks=grid.lacks),
        ]  # fmt: skip
        if self.concept is not None:
            # With whole forwards an earlier layer would cost one for every dose and item.
            layer = self.signal.meta.n_layers // 2 if self.fast else None
            jobs.append(Job("concept_dose_response", grid.pairs,
                            _plain(concept_dose_response, concept=self.concept, layer=layer,
                                   seed=self.seed)))  # fmt: skip
        return jobs

    @property
    def averaged(self) -> bool:
        """Whether the head reads the mean over tokens, so that there is no final one."""
        pool = self.signal.trunk.anatomy.head.pool
        return pool in ("mean", "late") or self.signal.meta.position == "mean"

    @property
    def positions(self) -> str:
        """The tokens that are patched."""
        return "aligned" if self.averaged else "final"

    @property
    def fast(self) -> bool:
        """Whether a patch at the read token costs a token, not a forward."""
        trunk = self.signal.trunk
        known = bool(trunk.anatomy.blocks) and not self.averaged
        return known and engine_of(trunk).offers(TREE)

    def _grid(self, name: str, by: str, lacks: str) -> Job:
        if lacks:
            return Job(name, self.some, patch_grid, lacks=lacks)
        patches = _DIRECTIONS * len(grid_targets(self.signal.trunk.anatomy, by))
        pairs, why, note = self._affordable(name, self.some, patches)
        run = _plain(patch_grid, by=by, positions=self.positions)
        return Job(name, pairs, run, lacks=why, note=note)

    def _paths(self, half: Pairs, lacks: str) -> Job:
        name, needs = "path_effects", ("patch_grid",)
        if lacks:
            return Job(name, half, path_effects, lacks=lacks)
        runs = _DIRECTIONS * TOP * (1 + len(all_ends(self.signal.trunk.anatomy)))
        pairs, why, note = self._affordable(name, half, runs)

        def run(signal: ClassifierRM, pairs: Pairs, found: Mapping[str, Evidence],
                **options: Any) -> Evidence:  # fmt: skip
            senders = largest_effects(found["patch_grid"], TOP)
            return path_effects(signal, pairs, senders=senders, positions=self.positions, **options)

        return Job(name, pairs, run, needs, why, note)

    def _affordable(self, name: str, pairs: Pairs, runs: int) -> tuple[Pairs, str, str]:
        """The pairs for an instrument that needs so many runs a pair; or why none; and a note."""
        asked = CAUSAL_SAMPLE if self.causal_sample is None else self.causal_sample
        if self.causal_sample is not None or self.fast:
            return pairs.sample(asked, self.seed), "", ""
        slow = engine_of(self.signal.trunk).missing.get(TREE, "the head reads the mean over tokens")
        size = min(asked, len(pairs), _FORWARDS // runs)
        why = f"every patch is a whole forward here ({slow}) and a pair takes {runs}"
        if size < min(_FEWEST, len(pairs)):
            return pairs, f"{why}; name a causal_sample, and it runs all the same", ""
        note = f"{name}: on {size} pairs, since {why}" if size < min(asked, len(pairs)) else ""
        return pairs.sample(size, self.seed), "", note


def _plain(instrument: Callable[..., Evidence], **more: Any) -> Run:
    """An instrument that looks at nothing measured before."""

    def run(signal: ClassifierRM, pairs: Pairs, found: object, **options: Any) -> Evidence:
        return instrument(signal, pairs, **more, **options)

    return run


def _gradients(instrument: Callable[..., Evidence], **more: Any) -> Run:
    """The same where a backward pass keeps every layer: a quarter of the tokens at a time."""

    def run(signal: ClassifierRM, pairs: Pairs, found: object, **options: Any) -> Evidence:
        batch_tokens = max(1, options.pop("batch_tokens") // 4)
        return instrument(signal, pairs, batch_tokens=batch_tokens, **more, **options)

    return run


def _views(attribution_name: str, grid_name: str, **more: Any) -> Run:
    """Compare two views that were measured before."""

    def run(
        signal: ClassifierRM, pairs: Pairs, found: Mapping[str, Evidence], **options: Any
    ) -> Evidence:
        return compare_views(
            signal,
            pairs,
            attribution=found[attribution_name],
            grid=found[grid_name],
            **more,
            **options,
        )

    return run
