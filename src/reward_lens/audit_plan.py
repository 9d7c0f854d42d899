"""Which instruments an audit runs on a signal, on how many pairs, and why not the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reward_lens.audit_calls import Call
from reward_lens.audit_checks import batch_effect
from reward_lens.backbone import TREE, engine_of
from reward_lens.data import Item, Pairs
from reward_lens.errors import CapabilityError
from reward_lens.evidence import Evidence
from reward_lens.evidence.benchmark_rules import REWARDBENCH_SECTIONS
from reward_lens.instruments import (
    attribution,
    attribution_patching,
    bias_battery,
    compare_views,
    concept_dose_response,
    lens,
    margin_distribution,
    patch_grid,
    path_effects,
    preference,
    reliability_curve,
    section_accuracy,
    source_attribution,
    style_accuracy,
    token_map,
    worst_errors,
)
from reward_lens.instruments.bias_cases import chosen_edits
from reward_lens.instruments.pair_scores import recorded_parts
from reward_lens.instruments.patch_targets import grid_targets, largest_effects
from reward_lens.instruments.path_graph import all_ends
from reward_lens.instruments.paths import TOP
from reward_lens.instruments.token_maps import why_lacking
from reward_lens.signals import ClassifierRM

#: Pairs for the causal instruments; paths and gradients are followed on half of them.
CAUSAL_SAMPLE = 64
#: Pairs of these on which the estimates by gradient are held against exact effects.
EXACT_SAMPLE = 16
#: Pairs whose responses are edited by the bias battery, about seventy forwards a pair; style is
#: controlled on so many times more, at eight forwards a pair. And errors that are kept with texts.
BIASES, STYLED, ERRORS = 32, 3, 10
_ONE_LINEAGE = "one lineage says nothing of how probable an outcome is"
_RENDERED = (
    "some pairs are rendered text or ids, which do not say where the response begins: edits need a "
    "prompt and a response"
)
_NO_UNIT = "the median |margin| of its pairs is 0, so that there is no unit for a bias"
#: What a causal instrument may cost, in forwards, where every patch is a whole forward.
_FORWARDS = 600
#: With fewer pairs there is nothing to say of a mean.
_FEWEST = 8
_DIRECTIONS = 2
#: What an audit makes scorecards of.
CALIBRATED = ("lens", "attribution", "patch_grid", "path_effects")
_PATCHING = ("patch_grid", "path_effects")
#: The methods of a token map that cost no forward per token or step, and the one that costs a
#: forward for every token of a response; of these it gets so many.
_CHEAP, _CAUSAL = ("prefix", "gradient"), "leave_one_out"
_LEFT_OUT = 400

#: How an instrument is called, given what was measured so far and the options of the audit.
Prepare = Callable[[Mapping[str, Evidence], dict[str, Any]], Call]


@dataclass(frozen=True)
class Job:
    """One instrument of an audit.

    Attributes
    ----------
    name : str
    pairs : Pairs
    prepare : callable
        ``prepare(found, options) -> Call``; ``found`` is the evidence so far, by name.
    needs : tuple of str
        Evidence without which it cannot run.
    lacks : str
        What the trunk or head lacks for it; empty where it can run.
    note : str
        What a reader must know of it.
    """

    name: str
    pairs: Pairs
    prepare: Prepare
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
    biases : int
        Pairs whose responses the bias battery edits; 0 leaves out what is measured on edits.
    scored : Pairs, optional
        All that are scored; those of the sample by default.
    truncate : {"error", "left", "right"}
        What is done to a text that is longer than the model reads.
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
    biases: int = BIASES
    scored: Pairs | None = None
    truncate: str = "error"

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
        half_precision = self.signal.meta.dtype != "float32"
        return [
            *self._reports(),
            *(self._edited() if self.biases else []),
            Job("lens", self.some, _plain(lens), lacks="" if anatomy.blocks else reasons),
            Job("attribution", self.some, _plain(attribution), lacks=no_writes),
            Job("attribution_heads", self.some, _plain(attribution, by="head"), lacks=no_heads),
            *self._causal(no_writes, no_heads),
            Job("token_map", self.shown, _gradients(token_map, methods=methods), lacks=no_tokens),
            self._left_out(),
            Job("source_attribution", self.shown, _plain(source_attribution), lacks=no_sources),
            *([Job("batch_effect", self.some, _batch_effect)] if half_precision else []),
        ]

    def _reports(self) -> list[Job]:
        """What the scores alone say, without a forward."""
        given = self.some if self.scored is None else self.scored
        jobs = [
            Job("margin_distribution", given, _report(margin_distribution)),
            Job("reliability_curve", given, _report(reliability_curve),
                lacks=_ONE_LINEAGE if len(set(given.lineages)) < 2 else ""),
            Job("worst_errors", given, _report(worst_errors, pairs=given, count=ERRORS)),
        ]  # fmt: skip
        # A part of a section is not what the benchmark calls by that name.
        subsets = set(given.subsets)
        if any(subsets.issuperset(s) for s in REWARDBENCH_SECTIONS.values()):
            jobs.append(Job("section_accuracy", given, _report(section_accuracy)))
        return jobs

    def _edited(self) -> list[Job]:
        """What is measured on edited responses."""
        rendered = any(i.messages is None for i in (*self.some.chosen, *self.some.rejected))
        lacks = _RENDERED if rendered else ""
        battery = self.some.sample(self.biases, self.seed)
        styled = self.some.sample(STYLED * self.biases, self.seed)

        def bias_call(found: Mapping[str, Evidence], options: dict[str, Any]) -> Call:
            margins = found["preference"].value.sel(side="margin", pair=battery.ids)
            if not np.median(np.abs(margins)) > 0:
                raise CapabilityError(_NO_UNIT)
            edits, templated = chosen_edits(self.signal, None)
            labels = [*(e.label for e in edits), *templated]
            return Call(bias_battery, {**options, "max_responses": None, "seed": self.seed},
                        recorded={"edits": labels})  # fmt: skip

        return [
            Job("bias_battery", battery, bias_call, lacks=lacks),
            Job("style_accuracy", styled, _plain(style_accuracy, seed=self.seed), lacks=lacks),
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
                _gradients(attribution_patching, exchanges=1, positions=self.positions,
                           seed=self.seed, sample=EXACT_SAMPLE if self.fast else _FEWEST),
                lacks=grid.lacks),
        ]  # fmt: skip
        if self.concept is not None:
            # With whole forwards an earlier layer would cost one for every dose and item.
            layer = self.signal.meta.n_layers // 2 if self.fast else None
            jobs.append(Job("concept_dose_response", grid.pairs, self._doses(layer)))
        return jobs

    def _doses(self, layer: int | None) -> Prepare:
        """How the reward answers to the concept, which is on record only once it is fitted."""

        def prepare(found: object, options: dict[str, Any]) -> Call:
            more = {"concept": self.concept, "layer": layer, "seed": self.seed}
            return Call(concept_dose_response, {**options, **more}, kept=False)

        return prepare

    def _left_out(self) -> Job:
        """Every token of a response left out in turn, on the first shown pairs that it can pay."""
        name, prepare = "token_map_causal", _plain(token_map, methods=[_CAUSAL])
        lengths = [sum(map(self._response, (p.chosen, p.rejected))) for p in self.shown]
        kept, used = [], 0
        for k, length in enumerate(lengths):
            if used + length <= _LEFT_OUT:
                kept.append(k)
                used += length
        why = "every token of a response that is left out is a forward of its own"
        if not kept:
            short = f"{why}, and the shortest shown pair has {min(lengths)}; {_LEFT_OUT} are spent"
            return Job(name, self.shown, prepare, lacks=short)
        few = len(kept) < len(lengths)
        note = f"{name}: on {len(kept)} of {len(lengths)} shown pairs, since {why}" if few else ""
        return Job(name, self.shown.select(kept), prepare, note=note)

    def _response(self, item: Item) -> int:
        """How many tokens of an item can be left out."""
        aligned = self.signal.encoder.align(item, self.truncate)
        start, stop = aligned.response or (0, len(aligned.tokens))
        return stop - start

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
            return Job(name, self.some, _plain(patch_grid), lacks=lacks)
        patches = _DIRECTIONS * len(grid_targets(self.signal.trunk.anatomy, by))
        pairs, why, note = self._affordable(name, self.some, patches)
        prepare = _plain(patch_grid, exchanges=_DIRECTIONS, by=by, positions=self.positions)
        return Job(name, pairs, prepare, lacks=why, note=note)

    def _paths(self, half: Pairs, lacks: str) -> Job:
        name, needs = "path_effects", ("patch_grid",)
        if lacks:
            return Job(name, half, _plain(path_effects), lacks=lacks)
        runs = _DIRECTIONS * TOP * (1 + len(all_ends(self.signal.trunk.anatomy)))
        pairs, why, note = self._affordable(name, half, runs)

        def prepare(found: Mapping[str, Evidence], options: dict[str, Any]) -> Call:
            senders = largest_effects(found["patch_grid"], TOP)
            more = {"senders": senders, "positions": self.positions}
            return Call(path_effects, {**options, **more}, idle=("top",), exchanges=_DIRECTIONS)

        return Job(name, pairs, prepare, needs, why, note)

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


def scoring(parts: Mapping[str, Any] | None, options: dict[str, Any]) -> Call:
    """The scores of all pairs."""
    return Call(preference, {**options, "parts": parts}, recorded={"parts": recorded_parts(parts)})


def _plain(instrument: Callable[..., Evidence], exchanges: int = 0, **more: Any) -> Prepare:
    """An instrument that looks at nothing measured before."""

    def prepare(found: object, options: dict[str, Any]) -> Call:
        return Call(instrument, {**options, **more}, exchanges=exchanges)

    return prepare


def _gradients(instrument: Callable[..., Evidence], exchanges: int = 0, **more: Any) -> Prepare:
    """The same where a backward pass keeps every layer: a quarter of the tokens at a time."""

    def prepare(found: object, options: dict[str, Any]) -> Call:
        batch_tokens = max(1, options["batch_tokens"] // 4)
        given = {**options, **more, "batch_tokens": batch_tokens}
        return Call(instrument, given, exchanges=exchanges)

    return prepare


def _report(instrument: Callable[..., Evidence], **more: Any) -> Prepare:
    """What is read off the scores."""

    def prepare(found: Mapping[str, Evidence], options: dict[str, Any]) -> Call:
        preferred = found["preference"]

        def run(signal: object, pairs: object, progress: object) -> Evidence:
            return instrument(preferred, **more)

        return Call(run, {}, free=True)

    return prepare


def _views(attribution_name: str, grid_name: str, **more: Any) -> Prepare:
    """Compare two views that were measured before; it runs no forward."""

    def prepare(found: Mapping[str, Evidence], options: dict[str, Any]) -> Call:
        both = {"attribution": found[attribution_name], "grid": found[grid_name]}
        return Call(compare_views, {**options, **both, **more}, free=True)

    return prepare


def _batch_effect(found: Mapping[str, Evidence], options: dict[str, Any]) -> Call:
    return Call(batch_effect, {**options, "scores": found["preference"]})
