"""Conformance: numeric proof that a loaded signal behaves as its checkpoint does.

The judge is the model's own forward on one unpadded text at a time. Every check states what it
measured, what it allows, and what a failure means for whoever uses the scores; the checks
themselves are in :mod:`.checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reward_lens.signals import checks
from reward_lens.signals.checks import Check, ConformanceReport, Probed
from reward_lens.signals.classifier import ClassifierRM

#: Texts of different lengths, short enough for most models, with characters of several bytes.
PROBES: tuple[tuple[str, str], ...] = (
    ("Name a colour.", "Blue."),
    ("Why is the sky blue?", "Air scatters short wavelengths more than long ones."),
    ("Say hello in French.", "« Bonjour ! » — that is, hello. 🙂"),
    ("Is 7 prime?", "Yes: it has no divisor but 1 and itself, as trial of 2 and 3 shows."),
    ("List two fruits.", "1. Apple\n2. Pear"),
)

_QUICK = (checks.head_native, checks.batch_alone, checks.hooked_plain, checks.completeness)
_ALL = (
    checks.tokenizer_fits,
    checks.checkpoint_keys,
    checks.template_round_trip,
    checks.determinism,
    checks.batch_alone,
    checks.padding_side,
    checks.head_native,
    checks.composite_native,
    checks.read_position,
    checks.prefix_curve,
    checks.completeness,
    checks.hooked_plain,
    checks.finite,
    checks.four_threads,
)


def quickcheck(signal: ClassifierRM) -> ConformanceReport:
    """The four checks that :func:`~reward_lens.wrap_hf_model` runs before it hands a signal out."""
    return _run(signal, PROBES[:3], _QUICK)


def run_conformance(
    signal: ClassifierRM, probes: Sequence[tuple[str, str]] = PROBES
) -> ConformanceReport:
    """Run every check on a signal.

    Parameters
    ----------
    signal : ClassifierRM
    probes : sequence of (prompt, response)
        Texts to check on; at least two whose scores differ. Longer than the model's maximum, they
        are cut.

    Returns
    -------
    ConformanceReport
        Printable; ``passed``, ``failed``, ``raise_if_failed()``.
    """
    return _run(signal, probes, _ALL)


def _run(
    signal: ClassifierRM,
    probes: Sequence[tuple[str, str]],
    wanted: Sequence[Callable[[Probed], Check]],
) -> ConformanceReport:
    subject = Probed(signal, probes)
    name = f"{signal.meta.architecture} from {signal.meta.source}"
    return ConformanceReport(name, tuple(check(subject) for check in wanted))
