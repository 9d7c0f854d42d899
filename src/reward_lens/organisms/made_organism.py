"""What an organism made on a user's own trunk is: a signal, and what is true of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reward_lens.backbone import AnatomyNames, Trunk, registered_names
from reward_lens.data import Pairs
from reward_lens.errors import AnatomyError, CapabilityError, EvidenceError
from reward_lens.evidence import Interval
from reward_lens.signals import ClassifierRM


@dataclass(frozen=True, eq=False)
class TrainedOrganism:
    """A signal with a fitted or trained rule, and what is true of it.

    Attributes
    ----------
    kind : str
        ``"concept head"``, ``"objective mix"`` or ``"spurious feature"``.
    signal : ClassifierRM
        Scored, captured and measured like any other; its source and notes say that it is an
        organism, and its fingerprint is its own.
    planted : str
        The rule in words.
    dose : float
        How strongly it was planted, in the unit that the maker's page states; 0 for a null.
    null : bool
        Whether there is no rule to find.
    truth : mapping
        Name -> number.
    intervals : tuple of Interval
        Of what in ``truth`` was measured on a sample.
    pairs : Pairs, optional
        What it was made on, where that was pairs.
    held_out : Pairs, optional
        Pairs of other lineages, on which the rule can be told from what was to be learned.
    """

    kind: str
    signal: ClassifierRM
    planted: str
    dose: float
    null: bool
    truth: Mapping[str, float]
    intervals: tuple[Interval, ...] = field(default=(), repr=False)
    pairs: Pairs | None = field(default=None, repr=False)
    held_out: Pairs | None = field(default=None, repr=False)

    def interval(self, name: str) -> Interval:
        """The interval of a measured truth.

        Raises
        ------
        EvidenceError
            If there is none of that name.
        """
        found = {i.name: i for i in self.intervals}
        if name not in found:
            raise EvidenceError(f"no interval {name!r}; this organism has {', '.join(found)}")
        return found[name]


def refuse_subject(signal: ClassifierRM, what: str) -> None:
    """Raise unless a rule can be put on a signal's trunk.

    Raises
    ------
    CapabilityError
        If something is done to the signal in every forward, or it is no classifier.
    """
    if not isinstance(signal, ClassifierRM):
        raise CapabilityError(
            f"{what} needs the states of a classifier reward model, not a {type(signal).__name__}"
        )
    if signal.trunk.edited:
        raise CapabilityError(
            f"{what}: this signal is intervened on, and the interventions would end with their "
            f"block: make the organism of the plain signal"
        )


def organism_signal(
    signal: ClassifierRM, model: Any, kind: str, planted: str, **facts: Any
) -> ClassifierRM:
    """A model as a signal that reads items as another one does, marked as an organism of it.

    Parameters
    ----------
    model : nn.Module
        A sequence classifier in evaluation mode whose trunk is that of ``signal``, or a copy.
    kind, planted : str
    facts : dict
        Further changes to the signal's facts.

    Raises
    ------
    AnatomyError
        If the model's anatomy is not found, or fewer parts of it verify than did in ``signal``.
    """
    trunk = Trunk(model, _names_in(signal, model))
    trunk.alone_beyond = signal.trunk.alone_beyond
    if trunk.anatomy.granularity < signal.trunk.anatomy.granularity:
        raise AnatomyError(
            f"under the new head only {trunk.anatomy.granularity.name.lower()} verified of this "
            f"trunk ({signal.meta.granularity} before), so instruments would see less of the "
            f"organism than of the signal: {trunk.anatomy.missing}"
        )
    note = f"an organism, not a checkpoint: {planted}"
    meta = signal.meta.updated(
        source=f"{kind} on {signal.meta.source}",
        quickcheck="skipped",
        notes=(*signal.meta.notes, note),
    )
    return ClassifierRM(trunk, signal.encoder, meta.updated(**facts))


def _names_in(signal: ClassifierRM, model: Any) -> AnatomyNames | None:
    """What an installed package says about the trunk's parts, as they are called in ``model``."""
    subject = signal.trunk.model
    names = registered_names(str(getattr(subject.config, "model_type", "")))
    if names is None or type(model) is type(subject):
        return names
    old = dict(subject.named_modules())
    new = {id(module): name for name, module in model.named_modules()}

    def here(name: str | None) -> str | None:
        return new.get(id(old[name]), name) if name in old else name

    return replace(names, blocks=here(names.blocks), final_norm=here(names.final_norm))
