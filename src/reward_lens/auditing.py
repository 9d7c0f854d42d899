"""The main job: prove a signal, score pairs, run the instruments; evidence by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from reward_lens.audit_calls import Call
from reward_lens.audit_checks import conformance_evidence
from reward_lens.audit_plan import BIASES, Job, Plan, scoring
from reward_lens.data import Pairs, as_pairs
from reward_lens.errors import CapabilityError, DataError, RewardLensError, TokenizeError
from reward_lens.evidence import Evidence, EvidenceStore
from reward_lens.evidence.arguments import checked_count
from reward_lens.evidence.pictures import clip
from reward_lens.findings import Findings, checked_store
from reward_lens.instruments import Concept
from reward_lens.instruments.labelled import as_labelled
from reward_lens.organisms.calibration import calibrate as make_scorecards
from reward_lens.organisms.calibration_cards import Calibration
from reward_lens.progress import Reporter, Silent, watched
from reward_lens.signals import (
    ClassifierRM,
    ConformanceReport,
    SignalMeta,
    checked_signal,
    run_conformance,
)
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.lengths import too_long

if TYPE_CHECKING:
    from reward_lens.page_files import PageFiles

#: What a page says that it was made by, where no command did.
COMMAND = "reward_lens.audit(...).write(...)"
SAMPLE = 300
_NAME = 100
SHOWN = 50
#: Longest side of a pair whose tokens are shown, and all of them together: a token with four maps
#: takes 25 bytes before it is packed, and a page has room for 250 kB of them.
SHOWN_TOKENS, SHOWN_IN_ALL = 200, 8000


@dataclass(frozen=True, repr=False, kw_only=True)
class Audit(Findings):
    """What an audit found.

    Attributes
    ----------
    conformance : ConformanceReport
    shown : Pairs
        Those whose tokens are mapped.
    meta : SignalMeta
        What is known of the signal.
    calibration : Calibration, optional
        Scorecards that were made before.
    """

    conformance: ConformanceReport
    shown: Pairs
    meta: SignalMeta
    calibration: Calibration | None = None

    @property
    def failed_checks(self) -> dict[str, list[str]]:
        """Conformance checks that do not hold, by model."""
        return {"the model": self.conformance.failed}

    def _of(self) -> str:
        return f"Audit of {clip(self.conformance.signal, _NAME)}"

    def write(
        self,
        report: str | PathLike[str],
        *,
        title: str | None = None,
        notes: Sequence[str] | str = (),
        command: str | None = None,
    ) -> PageFiles:
        """Write the page, every number behind it, and every pair that was scored.

        What was there under these names is replaced; each file appears whole or not at all.

        Parameters
        ----------
        report : path
            ``X.html``; ``X.evidence.jsonl`` and ``X.pairs.jsonl`` are written beside it.
        title : str, optional
            What the model is called; by default the end of where it was loaded from.
        notes : str or sequence of str
            What a reader must know first.
        command : str, optional
            What the page says that it was made by.

        Returns
        -------
        PageFiles
            Where they are: ``report``, ``evidence``, ``scored_pairs``.

        Raises
        ------
        DataError
            If no browser would open a page of that name, it cannot be written, or pairs stand
            beside it that no page wrote.
        """
        from reward_lens.page_files import write_audit

        return write_audit(self, report, title=title, notes=notes, command=command or COMMAND)


def audit(
    signal: ClassifierRM,
    pairs: Any,
    *,
    sample: int = SAMPLE,
    causal_sample: int | None = None,
    biases: int = BIASES,
    seed: int = 0,
    parts: Mapping[str, Sequence[str]] | None = None,
    concept: Any = None,
    truncate: str = "error",
    readout: str | None = None,
    store: EvidenceStore | None = None,
    calibrate: bool = False,
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
    causal_sample : int, optional
        Pairs of that sample on which activations are patched; paths and gradients on half of them.
        64 by default, and fewer (said in the notes) on a trunk where every patch is a whole
        forward; with a number given here it is taken whatever that costs.
    biases : int
        Pairs of that sample whose responses are edited, to see what is rewarded beside what is
        said; some seventy forwards a pair. 0 leaves out what is measured on edits.
    seed : int
        Of the samples.
    parts : mapping of str to sequence of ids, optional
        Groups (train and test, say) whose accuracies are reported apart.
    concept : optional
        What the dose-response is to be measured of, as
        :func:`~reward_lens.concept_dose_response` takes it; left out without one.
    truncate : {"error", "left", "right"}
        Under ``"error"``, pairs with a side longer than the model reads are left out and named.
    readout : str, optional
        ``composite`` for a gated head (its native score), else ``reward``, by default.
    store : EvidenceStore, optional
        What is measured is appended to it at once, and what is there already is not measured again:
        the same instrument of the same signal, pairs and options, by the same versions on the same
        machine. So an audit that was interrupted goes on where it stopped. Every reading has the
        rung that the store's records support, as long as it is open. Paths are followed on all
        pairs that are patched then, since scorecards are made on as many.
    calibrate : bool
        First make scorecards of the instruments on this model, on the pairs that are patched; see
        :func:`~reward_lens.calibrate`. They need a store.
    reporter : Reporter, optional
        Told of every stage; bars in a terminal and lines in a notebook by default.

    Returns
    -------
    Audit

    Raises
    ------
    DataError
        If the signal is none (a path, say), no pair remains, a sample is no whole number from 1, a
        part names an id that is not among the pairs, the concept cannot be read, or there is no
        store to calibrate into.
    TokenizeError
        If an item of the concept is too long.
    """
    checked_signal(signal)
    if not isinstance(signal, ClassifierRM):
        raise DataError(f"{type(signal).__name__} is no classifier: an audit follows its head")
    told = reporter or watched()
    every = as_pairs(pairs)
    if parts is not None:
        parts = {name: part.ids for name, part in every.split(parts).items()}
    chosen = readout or signal.default_readout
    signal.readout(chosen)  # an unknown one is refused before any work
    sample, biases = checked_count("sample", sample, 1), checked_count("biases", biases, 0)
    batch_tokens = checked_count("batch_tokens", batch_tokens, 1)
    if causal_sample is not None:
        causal_sample = checked_count("causal_sample", causal_sample, 1)
    checked_store(store)
    if calibrate and store is None:
        raise DataError("calibrate=True keeps its scorecards in an evidence store: give a store")
    concept = _read_concept(signal, concept, truncate)
    given, left_out = fitting_pairs(signal, every, truncate)
    some = given.sample(sample, seed)
    with told.stage("conformance", 1) as done:
        conformance = run_conformance(signal)
        done(1)
    options: dict[str, Any] = {"readout": chosen, "truncate": truncate}
    options["batch_tokens"] = batch_tokens
    evidence = {"conformance": conformance_evidence(signal, conformance)}
    desk = _Desk(signal, told, store)
    scores = desk.measure("preference", scoring(parts, options), given)
    evidence["preference"] = scores
    found = Audit(conformance=conformance, evidence=evidence, pairs=given, meta=signal.meta,
                  shown=_worth_showing(given, scores), left_out=left_out)  # fmt: skip
    notes: list[str] = []
    plan = Plan(signal, some, found.shown, causal_sample, seed, concept, store is not None, biases,
                given, truncate)  # fmt: skip
    if calibrate:
        found = replace(found, calibration=_calibrated(signal, plan, store, told, notes, options))
    for job in plan.jobs():
        notes += _run(job, desk, found, options)
    if store is not None:
        store.append_all(evidence.values())
    if desk.resumed:
        notes.append(
            f"Taken from the store, where an earlier run put it: {', '.join(desk.resumed)}. What "
            f"instruments warned of then is not said again."
        )
    return replace(found, notes=tuple(notes), resumed=tuple(desk.resumed))


@dataclass
class _Desk:
    """Where instruments are run, or taken from the store what an earlier run left there."""

    signal: ClassifierRM
    told: Reporter
    store: EvidenceStore | None
    resumed: list[str] = field(default_factory=list)

    def measure(self, name: str, call: Call, pairs: Pairs) -> Evidence:
        """Evidence of a call; appended to the store as soon as it is there."""
        if self.store is not None:
            known = call.in_store(self.store, self.signal, pairs)
            if known is not None:
                self.resumed.append(name)
                return known
        told = Silent() if call.free else self.told
        with told.stage(name, 2 * len(pairs)) as done:
            found = call.instrument(self.signal, pairs, progress=done, **call.options)
        if self.store is not None:
            self.store.append(found)
        return found


def _calibrated(
    signal: ClassifierRM,
    plan: Plan,
    store: EvidenceStore | None,
    told: Reporter,
    notes: list[str],
    options: dict[str, Any],
) -> Calibration | None:
    """Scorecards of the plan's instruments, or a note that says why there are none."""
    names, pairs = plan.calibration()
    with ExitStack() as stack:
        bar: list[Callable[[int], None]] = []

        def progress(done: int, total: int) -> None:
            if not bar:
                bar.append(stack.enter_context(told.stage("calibration", total)))
            bar[0](1)

        try:
            found = make_scorecards(signal, pairs, names, store=store, seed=plan.seed,
                                    max_pairs=len(pairs), progress=progress,
                                    **options)  # fmt: skip
        except RewardLensError as error:
            notes.append(f"no scorecards were made: {error}")
            return None
    failed = {name: "; ".join(c.failures) for name, c in found.cards.items() if not c.passed}
    notes += [f"{name} FAILED its scorecard on this model: {why}" for name, why in failed.items()]
    notes += [f"{name} has no scorecard: {why}" for name, why in found.skipped.items()]
    notes += found.notes
    return found


def _run(job: Job, desk: _Desk, found: Audit, options: dict[str, Any]) -> list[str]:
    """Run one instrument and keep what it gave, or why it gave nothing; returns notes."""
    if job.lacks:
        found.not_offered[job.name] = job.lacks
        return []
    unmet = [name for name in job.needs if name not in found.evidence]
    if unmet:
        failed = any(name in found.missing for name in unmet)
        why = f"it takes {' and '.join(unmet)}, which did not run"
        (found.missing if failed else found.not_offered)[job.name] = why
        return []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            call = job.prepare(found.evidence, options)
            found.evidence[job.name] = desk.measure(job.name, call, job.pairs)
        except CapabilityError as error:
            found.not_offered[job.name] = str(error)
        except RewardLensError as error:
            found.missing[job.name] = str(error)  # the rest of the audit stands without it
    return [*([job.note] if job.note else []), *(f"{job.name}: {w.message}" for w in caught)]


def _read_concept(signal: ClassifierRM, concept: Any, truncate: str) -> Any:
    """A concept that can be fitted, before any work; ready directions stay as they are."""
    if concept is None or isinstance(concept, Concept) or hasattr(concept, "shape"):
        return concept
    labelled = as_labelled(concept)
    labelled.refuse_fewer_than(2)
    try:
        signal.encode(labelled.items, truncate)
    except TokenizeError as error:
        raise TokenizeError(f"the concept: {error}") from error
    return labelled


def fitting_pairs(
    signal: ClassifierRM, pairs: Pairs, truncate: str
) -> tuple[Pairs, dict[str, str]]:
    """Leave out pairs with a side longer than the model reads; say which and why.

    Raises
    ------
    DataError
        If none remains.
    """
    limit, n = signal.meta.max_length, len(pairs)
    long = too_long(signal, [*pairs.chosen, *pairs.rejected], truncate)
    left_out: dict[str, str] = {}
    for k, pair in enumerate(pairs):
        both = (("chosen", k), ("rejected", n + k))
        said = [f"{side} has {long[i]} tokens" for side, i in both if i in long]
        if said:
            left_out[pair.id] = f"{' and '.join(said)}, the model reads {limit}"
    if left_out and len(left_out) == n:
        raise DataError(
            f"{'the one pair is' if n == 1 else f'all {n} pairs are'} longer than the model reads "
            f"({limit} tokens); "
            f"truncate='left' or 'right' would cut them"
        )
    kept = [k for k, p in enumerate(pairs) if p.id not in left_out]
    return (pairs.select(kept) if left_out else pairs), left_out


def _worth_showing(pairs: Pairs, scores: Evidence) -> Pairs:
    """The pairs with the highest, the lowest and the smallest margins, one of each in turn.

    Of many pairs, those short enough to be read token by token (the shortest if none is), while
    there is room for their tokens.
    """
    table = scores.tables["scores"]
    lengths = table[["n_tokens_chosen", "n_tokens_rejected"]]
    longest, both = lengths.max(axis=1).to_numpy(), lengths.sum(axis=1).to_numpy()
    short = longest <= max(SHOWN_TOKENS, int(longest.min()))
    (fit,) = np.nonzero(short | (len(pairs) <= SHOWN))
    margins = scores.value.sel(side="margin").values[fit]
    order = fit[np.argsort(margins, kind="stable")]
    close = fit[np.argsort(np.abs(margins), kind="stable")]
    taken: dict[int, None] = {}
    used = 0
    for k in np.stack([order[::-1], order, close], axis=1).ravel().tolist():
        room = not taken or used + both[k] <= SHOWN_IN_ALL
        if k not in taken and len(taken) < SHOWN and room:
            taken[k] = None
            used += int(both[k])
    return pairs.select(taken)
