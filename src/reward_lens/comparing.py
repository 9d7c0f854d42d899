"""Two models side by side: what is measured, in what order, with progress; evidence by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from reward_lens.audit_calls import Call
from reward_lens.audit_checks import conformance_evidence
from reward_lens.audit_plan import STYLED
from reward_lens.auditing import fitting_pairs
from reward_lens.backbone.reading import RULES
from reward_lens.data import Pairs, as_pairs
from reward_lens.errors import CapabilityError, DataError, RewardLensError
from reward_lens.evidence import Evidence, EvidenceStore
from reward_lens.evidence.arguments import checked_count, checked_seed
from reward_lens.findings import Findings, checked_store
from reward_lens.instruments import bias_battery, style_accuracy
from reward_lens.instruments.bias_cases import chosen_edits
from reward_lens.instruments.comparison import compare, comparison_parts
from reward_lens.progress import Reporter, watched
from reward_lens.report.folders import followed
from reward_lens.signals import ClassifierRM, checked_signal, run_conformance
from reward_lens.signals.classifier import BATCH_TOKENS

if TYPE_CHECKING:
    from reward_lens.page_files import PageFiles

#: What a page says that it was made by, where no command did.
COMMAND = "reward_lens.comparing.compare_models(...).write(...)"
#: What the two are called in names of evidence and of options.
LETTERS = ("a", "b")
_RENDERED = (
    "some pairs are rendered text or ids, which do not say where the response begins: edits need a "
    "prompt and a response"
)


@dataclass(frozen=True, repr=False, kw_only=True)
class Comparison(Findings):
    """What a comparison of two models found.

    Evidence is called ``compare``, ``angle``, and of each model ``scores``, ``lens``,
    ``conformance``, ``bias_battery``, ``style_accuracy`` with ``_a`` or ``_b`` behind.

    Attributes
    ----------
    names : (str, str)
        What the two are called.
    facts : (dict, dict)
        What is known of each, in words.
    """

    names: tuple[str, str]
    facts: tuple[dict[str, str], dict[str, str]]

    @property
    def failed_checks(self) -> dict[str, list[str]]:
        """Conformance checks that do not hold, by model; a model that was not checked has none."""
        found = {}
        for letter in LETTERS:
            if (checked := self.evidence.get(f"conformance_{letter}")) is not None:
                checks = checked.tables["checks"]
                found[letter] = [str(c) for c in checks["check"][~checks["passed"].astype(bool)]]
        return found

    def _of(self) -> str:
        return f"Comparison of {' and '.join(self.names)}"

    def write(self, report: str | PathLike[str], *, command: str | None = None) -> PageFiles:
        """Write the page of the two models, every number behind it, and every pair.

        As :meth:`reward_lens.auditing.Audit.write` does.
        """
        from reward_lens.page_files import write_comparison

        return write_comparison(self, report, command=command or COMMAND)


def compare_models(
    a: ClassifierRM,
    b: ClassifierRM,
    pairs: Any,
    *,
    names: tuple[str, str] | None = None,
    readout: tuple[str | None, str | None] = (None, None),
    biases: int = 0,
    conformance: bool = True,
    seed: int = 0,
    depth: bool = True,
    clones: str = "join",
    examples: int = 10,
    truncate: str = "error",
    store: EvidenceStore | None = None,
    batch_tokens: int = BATCH_TOKENS,
    reporter: Reporter | None = None,
) -> Comparison:
    """Set two models side by side: loading, agreement, depth, and what each is biased to.

    Parameters
    ----------
    a, b : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    names : (str, str), optional
        What the two are called; by default the end of where they were loaded from.
    readout : (str or None, str or None)
        Of each; its own score by default.
    biases : int
        Pairs whose responses are edited, with both models; style is controlled on three times as
        many. 0 leaves both out.
    conformance : bool
        Run all checks on both.
    seed : int
        Of the samples and edits.
    depth, clones, examples
        As :func:`~reward_lens.compare` takes them.
    truncate : {"error", "left", "right"}
        Under ``"error"``, pairs with a side longer than either model reads are left out and named.
    store : EvidenceStore, optional
        What is measured is appended to it. What was measured on edits before is not measured again.
    reporter : Reporter, optional
        Told of every stage.

    Returns
    -------
    Comparison

    Raises
    ------
    DataError
        If no pair remains, ``biases`` or ``seed`` is no whole number from 0, the store is none, or
        the names do not tell the two apart.
    CapabilityError, TokenizeError, NumericsError
        As :func:`~reward_lens.compare` does.
    """
    for signal in (a, b):
        checked_signal(signal)
    checked_store(store)
    if names is not None:
        names = _checked_names(names)
    biases, seed = checked_count("biases", biases, 0), checked_seed(seed)
    given, left_out = as_pairs(pairs), dict[str, str]()
    for signal in (a, b):
        given, more = fitting_pairs(signal, given, truncate)
        left_out |= more
    chosen = tuple(
        s.readout(r or s.default_readout).name for s, r in zip((a, b), readout, strict=True)
    )
    desk = _Desk(reporter or watched(), store)
    if conformance:
        for letter, signal in zip(LETTERS, (a, b), strict=True):
            desk.check(letter, signal)
    options: dict[str, Any] = {"truncate": truncate, "batch_tokens": batch_tokens}
    with desk.told.stage("compare", (8 if depth else 4) * len(given)) as done:
        parts = comparison_parts(
            a, b, given, readout=(chosen[0], chosen[1]), depth=depth, clones=clones, progress=done,
            **options,
        )  # fmt: skip
    found = compare(
        a, b, given, readout=(chosen[0], chosen[1]), examples=examples, parts=parts, **options
    )
    for letter, scores in zip(LETTERS, parts.scores, strict=True):
        desk.keep(f"scores_{letter}", scores)
    desk.keep("angle", parts.angle)
    for letter, lens, why in zip(LETTERS, parts.depths, parts.missing, strict=True):
        if lens is not None:
            desk.keep(f"lens_{letter}", lens)
        elif depth:
            desk.not_offered[f"lens_{letter}"] = why
    desk.keep("compare", found)
    if biases:
        for letter, signal, r in zip(LETTERS, (a, b), chosen, strict=True):
            desk.edit(letter, signal, parts.pairs, biases, {"readout": r, "seed": seed, **options})
    return Comparison(
        names=names or _called(a, b),
        facts=(_facts(a, chosen[0]), _facts(b, chosen[1])),
        evidence=desk.evidence,
        pairs=parts.pairs,
        left_out=left_out,
        missing=desk.missing,
        not_offered=desk.not_offered,
        notes=(*_model_notes(a, b), *desk.notes),
        resumed=tuple(desk.resumed),
    )


@dataclass
class _Desk:
    """Where instruments are run, and what they gave."""

    told: Reporter
    store: EvidenceStore | None
    evidence: dict[str, Evidence] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    not_offered: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)

    def keep(self, name: str, found: Evidence) -> None:
        """Keep it under a name, in the store too."""
        if self.store is not None:
            self.store.append_all([found])
        self.evidence[name] = found

    def check(self, letter: str, signal: ClassifierRM) -> None:
        """Run conformance."""
        with self.told.stage(f"conformance {letter}", 1) as done:
            report = run_conformance(signal)
            done(1)
        self.keep(f"conformance_{letter}", conformance_evidence(signal, report))

    def edit(
        self,
        letter: str,
        signal: ClassifierRM,
        pairs: Pairs,
        count: int,
        options: Mapping[str, Any],
    ) -> None:
        """Measure what is measured on edited responses; why not is kept where it is not."""
        battery = pairs.sample(count, options["seed"])
        styled = pairs.sample(STYLED * count, options["seed"])
        rendered = any(i.messages is None for i in (*styled.chosen, *styled.rejected))

        def battery_call() -> Call:
            edits, templated = chosen_edits(signal, None)
            labels = [*(e.label for e in edits), *templated]
            return Call(bias_battery, {**options, "max_responses": None},
                        recorded={"edits": labels})  # fmt: skip

        self._measure(f"bias_battery_{letter}", signal, battery, battery_call, rendered)
        self._measure(
            f"style_accuracy_{letter}", signal, styled, lambda: Call(style_accuracy, options),
            rendered,
        )  # fmt: skip

    def _measure(
        self,
        name: str,
        signal: ClassifierRM,
        pairs: Pairs,
        call_of: Callable[[], Call],
        rendered: bool,
    ) -> None:
        if rendered:
            self.not_offered[name] = _RENDERED
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                self.keep(name, self._run(name, signal, pairs, call_of()))
            except CapabilityError as error:
                self.not_offered[name] = str(error)
            except RewardLensError as error:
                self.missing[name] = str(error)  # the rest of the comparison stands without it
        self.notes += [f"{name}: {w.message}" for w in caught]

    def _run(self, name: str, signal: ClassifierRM, pairs: Pairs, call: Call) -> Evidence:
        if self.store is not None:
            known = call.in_store(self.store, signal, pairs)
            if known is not None:
                self.resumed.append(name)
                return known
        with self.told.stage(name.replace("_", " "), 2 * len(pairs)) as done:
            return call.instrument(signal, pairs, progress=done, **call.options)


def _checked_names(names: Any) -> tuple[str, str]:
    """Two names that tell two models apart."""
    both = () if isinstance(names, str) else tuple(names)
    if len(both) != 2 or not all(isinstance(n, str) and n for n in both) or both[0] == both[1]:
        raise DataError(f"names={names!r}: give two different names, of a and of b")
    return both[0], both[1]


def _called(a: ClassifierRM, b: ClassifierRM) -> tuple[str, str]:
    """The ends of where the two were loaded from, as long as it takes to tell them apart."""
    one, other = (followed(s.meta.source).parts or (s.meta.source,) for s in (a, b))
    if one == other:
        return one[-1], other[-1]
    size = 1
    while one[-size:] == other[-size:]:
        size += 1
    return "/".join(one[-size:]), "/".join(other[-size:])


def _model_notes(a: ClassifierRM, b: ClassifierRM) -> list[str]:
    """What must be known of either, said once where it is said of both."""
    one, other = a.meta.notes, b.meta.notes
    both = [n for n in one if n in other]
    return [
        *both,
        *(f"Model {letter}: {n}" for letter, notes in zip(LETTERS, (one, other), strict=True)
          for n in notes if n not in both),
    ]  # fmt: skip


def _facts(signal: ClassifierRM, readout: str) -> dict[str, str]:
    """What is known of a model, in words."""
    m = signal.meta
    note = str(getattr(signal.readout(readout), "note", ""))
    return {
        "loaded from": m.source,
        "architecture": m.architecture,
        "layers": str(m.n_layers),
        "width": str(m.width),
        "computed in": f"{m.dtype} on {m.device}, {m.kernel} attention",
        "text form": "question and answer as a text pair" if m.template == "pair" else m.template,
        "longest item": "not limited" if m.max_length is None else f"{m.max_length} tokens",
        "head": m.head,
        "read at": RULES[m.reads if m.position == "native" else m.position],
        "readout": f"{readout} ({note})" if note else readout,
        "changed by": "; ".join(map(str, signal.interventions)) or "nothing",
        "signal": signal.fingerprint,
    }
