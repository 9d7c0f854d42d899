"""The main job: prove a signal, score pairs, run the instruments; evidence by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd
import xarray as xr

from reward_lens.data import Pairs, as_pairs
from reward_lens.errors import AnatomyError, CapabilityError, DataError, NumericsError
from reward_lens.evidence import Evidence, Units
from reward_lens.instruments import (
    attribution,
    lens,
    preference,
    source_attribution,
    token_curves,
)
from reward_lens.signals import Capability, ClassifierRM, ConformanceReport, run_conformance
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation

SAMPLE = 300
SHOWN = 12
#: Longest side of a pair whose text is shown, in tokens: the page stays under 500 kB.
SHOWN_TOKENS = 300


class Reporter(Protocol):
    """What the audit tells whoever watches."""

    def stage(self, name: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Begin a stage of ``total`` forwards; the context is told how many each batch finished."""


class Silent:
    """Tells nobody anything."""

    def stage(self, name: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Begin a stage."""
        return nullcontext(lambda done: None)


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes
    ----------
    conformance : ConformanceReport
    evidence : dict of str to Evidence
        By name, in the order they were measured.
    pairs : Pairs
        Those that were scored.
    shown : Pairs
        Those whose texts and tokens are shown.
    left_out : dict of str to str
        Pair id -> why it was not scored.
    missing : dict of str to str
        Instrument -> why it failed.
    not_offered : dict of str to str
        Instrument -> what this trunk or head lacks for it.
    notes : tuple of str
        What instruments warned of.
    """

    conformance: ConformanceReport
    evidence: dict[str, Evidence]
    pairs: Pairs
    shown: Pairs
    left_out: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    not_offered: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Evidence:
        return self.evidence[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.evidence)

    @property
    def passed(self) -> bool:
        """Whether conformance held and every instrument that was asked for ran."""
        return self.conformance.passed and not self.missing


def audit(
    signal: ClassifierRM,
    pairs: Any,
    *,
    sample: int = SAMPLE,
    seed: int = 0,
    parts: Mapping[str, Sequence[str]] | None = None,
    truncate: str = "error",
    readout: str | None = None,
    batch_tokens: int = BATCH_TOKENS,
    reporter: Reporter | None = None,
) -> Audit:
    """Audit a reward model on preference pairs.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    sample : int
        Scores are taken on all pairs; lens and attribution on a seeded, subset-stratified sample of
        this size.
    parts : mapping of str to sequence of ids, optional
        Groups (train and test, say) whose accuracies are reported apart.
    truncate : {"error", "left", "right"}
        Under ``"error"``, pairs with a side longer than the model reads are left out and named.
    readout : str, optional
        ``composite`` for a gated head (its native score), else ``reward``, by default.

    Returns
    -------
    Audit

    Raises
    ------
    DataError
        If no pair remains, or a part names an id that is not among the pairs.
    """
    told = reporter or Silent()
    every = as_pairs(pairs)
    if parts is not None:
        parts = {name: part.ids for name, part in every.split(parts).items()}
    chosen = readout or signal.default_readout
    signal.readout(chosen)  # an unknown one is refused before any work
    given, left_out = fitting_pairs(signal, every, truncate)
    with told.stage("conformance", 1) as done:
        conformance = run_conformance(signal)
        done(1)
    options: dict[str, Any] = {"readout": chosen, "truncate": truncate}
    options["batch_tokens"] = batch_tokens
    evidence = {"conformance": conformance_evidence(signal, conformance)}
    missing: dict[str, str] = {}
    notes: list[str] = []
    with told.stage("scores", 2 * len(given)) as done:
        scores = preference(signal, given, parts=parts, progress=done, **options)
        evidence["preference"] = scores
    some = given.sample(sample, seed)
    shown = _worth_showing(given, scores)
    jobs, not_offered = _jobs(signal, some, shown)
    for name, subset, run in jobs:
        with told.stage(name, 2 * len(subset)) as done:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                try:
                    evidence[name] = run(signal, subset, progress=done, **options)
                except CapabilityError as error:
                    not_offered[name] = str(error)
                except (AnatomyError, NumericsError) as error:
                    missing[name] = str(error)  # the rest of the audit stands without it
            notes.extend(f"{name}: {w.message}" for w in caught)
    if signal.meta.dtype != "float32":
        with told.stage("batch effect", 2 * len(some)) as done:
            evidence["batch_effect"] = batch_effect(signal, some, scores, **options)
            done(2 * len(some))
    return Audit(conformance, evidence, given, shown, left_out, missing, not_offered, tuple(notes))


Job = tuple[str, Pairs, Callable[..., Evidence]]


def _jobs(signal: ClassifierRM, some: Pairs, shown: Pairs) -> tuple[list[Job], dict[str, str]]:
    """The instruments that this signal's trunk and head allow, and why not the others."""
    anatomy = signal.trunk.anatomy
    reasons = "; ".join(dict.fromkeys(anatomy.missing.values())) or "nothing was verified"
    by_head = signal.meta.granularity == "head"
    averaged = anatomy.head.pool in ("mean", "late") or signal.meta.position == "mean"
    no_sources = "the head reads the mean over tokens" if averaged else ""
    wanted: list[tuple[Job, str]] = [
        (("lens", some, lens), "" if anatomy.blocks else reasons),
        (("attribution", some, attribution), "" if anatomy.adds_up else reasons),
        (("attribution_heads", some, _by_head), "" if by_head else reasons),
        (
            ("token_curves", shown, token_curves),
            "" if Capability.PREFIX_SCORES in signal.caps else "the trunk is not causal",
        ),
        (("source_attribution", shown, source_attribution), no_sources if by_head else reasons),
    ]
    return [job for job, why in wanted if not why], {j[0]: why for j, why in wanted if why}


def _by_head(signal: ClassifierRM, pairs: Pairs, **options: Any) -> Evidence:
    return attribution(signal, pairs, by="head", **options)


def fitting_pairs(
    signal: ClassifierRM, pairs: Pairs, truncate: str
) -> tuple[Pairs, dict[str, str]]:
    """Leave out pairs with a side longer than the model reads; say which and why.

    Raises
    ------
    DataError
        If none remains.
    """
    limit = signal.meta.max_length
    if truncate != "error" or limit is None:
        return pairs, {}
    # Cutting nothing here: a side that would be cut is what is looked for.
    encoded = signal.encoder.encode([*pairs.chosen, *pairs.rejected], truncate="right")
    n, left_out = len(pairs), {}
    for k, pair in enumerate(pairs):
        cuts = {"chosen": encoded[k].cut, "rejected": encoded[n + k].cut}
        long = [f"{side} has {limit + cut} tokens" for side, cut in cuts.items() if cut]
        if long:
            left_out[pair.id] = f"{' and '.join(long)}, the model reads {limit}"
    if len(left_out) == n:
        raise DataError(
            f"all {n} pairs are longer than the model reads ({limit} tokens); "
            f"truncate='left' or 'right' would cut them"
        )
    kept = [k for k, p in enumerate(pairs) if p.id not in left_out]
    return (pairs.select(kept) if left_out else pairs), left_out


def conformance_evidence(signal: ClassifierRM, report: ConformanceReport) -> Evidence:
    """The conformance table as evidence: value bool ``[check]``."""
    names = [c.name for c in report.checks]
    return observation(
        signal,
        "conformance",
        value=xr.DataArray(
            np.array([c.passed for c in report.checks]),
            dims=("check",),
            coords={"check": names},
            name="passed",
        ),
        data="built-in probes",
        readout=signal.readout(),
        position=None,
        units=Units.SHARE,
        parameters={},
        cost=0.0,
        tables={
            "checks": pd.DataFrame(
                {
                    "check": names,
                    "passed": [c.passed for c in report.checks],
                    "measured": [c.measured for c in report.checks],
                    "allowed": [c.allowed for c in report.checks],
                    "meaning": [c.meaning for c in report.checks],
                }
            )
        },
    )


def batch_effect(signal: ClassifierRM, pairs: Pairs, scores: Evidence, **options: Any) -> Evidence:
    """How much a score in half precision depends on what else is in the batch.

    Parameters
    ----------
    scores : Evidence
        Of :func:`~reward_lens.instruments.preference`, batched.

    Returns
    -------
    Evidence
        Value float64 ``[pair]``: margin in a batch minus margin alone. Table ``summary``: the
        median and largest size as shares of the median |margin|, and how many pairs change sign.
    """
    alone = preference(signal, pairs, **{**options, "batch_tokens": 1})
    batched = scores.value.sel(pair=pairs.ids, side="margin").values.astype(float)
    single = alone.value.sel(side="margin").values.astype(float)
    gap, scale = batched - single, float(np.median(np.abs(single)))
    summary = {
        "median_share": [float(np.median(np.abs(gap))) / scale if scale else np.nan],
        "largest_share": [float(np.abs(gap).max()) / scale if scale else np.nan],
        "sign_changes": [int((np.sign(batched) != np.sign(single)).sum())],
        "could_flip": [int((np.abs(single) <= np.abs(gap).max()).sum())],
        "pairs": [len(pairs)],
    }
    return observation(
        signal,
        "batch_effect",
        value=xr.DataArray(gap, dims=("pair",), coords={"pair": pairs.ids}, name="batch_effect"),
        data=pairs.fingerprint,
        readout=signal.readout(options["readout"]),
        position=None,
        parameters=options,
        cost=float(2 * len(pairs)),
        parents=(scores.id, alone.id),
        tables={"summary": pd.DataFrame(summary)},
    )


def _worth_showing(pairs: Pairs, scores: Evidence) -> Pairs:
    """The pairs with the highest, the lowest and the smallest margins; a third each.

    Of those short enough to be read on a page (the shortest if none is); all where they are few.
    """
    table = scores.tables["scores"]
    longest = table[["n_tokens_chosen", "n_tokens_rejected"]].max(axis=1).to_numpy()
    (fit,) = np.nonzero(longest <= max(SHOWN_TOKENS, int(longest.min())))
    margins = scores.value.sel(side="margin").values[fit]
    order = fit[np.argsort(margins, kind="stable")]
    close = fit[np.argsort(np.abs(margins), kind="stable")]
    third = SHOWN // 3
    few = len(fit) <= SHOWN
    wanted = order[::-1] if few else [*order[::-1][:third], *order[:third], *close[:third]]
    return pairs.select(dict.fromkeys(int(k) for k in wanted))
