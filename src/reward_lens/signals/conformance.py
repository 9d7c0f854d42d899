"""Conformance: numeric proof that a signal behaves as it must.

The judge of a loaded checkpoint is the model's own forward on one unpadded text at a time
(:mod:`.checks`); of a grader of another kind, what the protocol promises (:mod:`.grader_checks`).
Every check states what it measured, what it allows, and what a failure means for whoever uses the
scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike

from reward_lens.signals import checks
from reward_lens.signals.check_report import Check, ConformanceReport
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.grader_checks import check_grader
from reward_lens.signals.probed import Probed
from reward_lens.signals.protocol import RewardSignal, checked_signal

#: Texts of different lengths, short enough for most models, with characters of several bytes.
PROBES: tuple[tuple[str, str], ...] = (
    ("Name a colour.", "Blue."),
    ("Why is the sky blue?", "Air scatters short wavelengths more than long ones."),
    ("Say hello in French.", "« Bonjour ! » — that is, hello. 🙂"),
    ("Is 7 prime?", "Yes: it has no divisor but 1 and itself, as trial of 2 and 3 shows."),
    ("List two fruits.", "1. Apple\n2. Pear"),
)

_QUICK = (
    checks.head_native,
    checks.batch_alone,
    checks.hooked_plain,
    checks.completeness,
    checks.patch_engine,
)
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
    checks.patch_engine,
    checks.finite,
    checks.four_threads,
)


def quickcheck(signal: ClassifierRM) -> ConformanceReport:
    """The checks that :func:`~reward_lens.wrap_hf_model` runs before it hands a signal out."""
    return _run(signal, PROBES[:3], _QUICK)


def run_conformance(
    signal: RewardSignal, probes: Sequence[tuple[str, str]] = PROBES
) -> ConformanceReport:
    """Run every check on a signal, or on a grader of your own.

    Parameters
    ----------
    signal : RewardSignal
        A loaded or wrapped classifier is compared with its own model. Any other object is held to
        the protocol; whatever it lacks or raises is a failed check, and the others go on.
    probes : sequence of (prompt, response)
        Texts to check on; at least two whose scores differ. Longer than a classifier's maximum,
        they are cut; another grader gets them whole.

    Returns
    -------
    ConformanceReport
        Printable; ``passed``, ``failed``, ``raise_if_failed()``.

    Raises
    ------
    DataError
        If a probe is no text, there is only one for a grader of your own, or a path is given
        instead of what is there.
    """
    if isinstance(signal, (str, PathLike)):
        checked_signal(signal)  # no grader; it says how to load one
    if isinstance(signal, ClassifierRM):
        return _run(signal, probes, _ALL)
    return check_grader(signal, probes)


def _run(
    signal: ClassifierRM,
    probes: Sequence[tuple[str, str]],
    wanted: Sequence[Callable[[Probed], Check]],
) -> ConformanceReport:
    subject = Probed(signal, probes)
    name = f"{signal.meta.architecture} from {signal.meta.source}"
    return ConformanceReport(name, tuple(check(subject) for check in wanted))
