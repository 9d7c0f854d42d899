"""Spurious features: a signal trained on pairs whose better side happens to carry a feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reward_lens.data import Item, Pairs, as_pairs
from reward_lens.errors import CapabilityError, DataError
from reward_lens.evidence import Interval
from reward_lens.evidence.intervals import accuracy, cluster_t_slope
from reward_lens.organisms.bradley_terry import train_copy, train_row
from reward_lens.organisms.confounded import Design, Marker, design, sides
from reward_lens.organisms.made_organism import TrainedOrganism, organism_signal, refuse_subject
from reward_lens.organisms.new_heads import read_states, with_linear_head
from reward_lens.organisms.surface_features import FeatureLike, feature_name, feature_values
from reward_lens.progress import Progress
from reward_lens.signals import ClassifierRM
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.conformance import quickcheck

#: What is trained -> steps, learning rate and weight decay where none are given; the rate of a head
#: is divided by its width, so that no step changes a margin by much more than 1.
TRAINED: dict[str, tuple[int, float, float]] = {
    "head": (300, 1.0, 0.1),
    "all": (60, 5e-4, 0.0),
}
_KIND = "spurious feature"

Floats = npt.NDArray[np.float64]


def spurious_feature(
    signal: ClassifierRM,
    pairs: Any,
    feature: Marker | FeatureLike,
    *,
    confound: float = 0.9,
    train: str = "head",
    steps: int | None = None,
    lr: float | None = None,
    decay: float | None = None,
    pairs_per_step: int = 8,
    held_out: float = 0.3,
    seed: int = 0,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> TrainedOrganism:
    """An organism that was trained, with the Bradley–Terry loss, where a feature gives it away.

    Parameters
    ----------
    signal : ClassifierRM
        Not changed: a head is trained on its frozen states, all weights in a copy.
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    feature : Marker, str, Feature or callable
        A :class:`~reward_lens.organisms.confounded.Marker` is a phrase that is put into the better
        response of every pair, and of some pairs, in a second form of them, into the other. For any
        other feature, see :data:`~reward_lens.organisms.surface_features.FEATURES`, no text is
        changed: pairs are chosen by which side has more of it, and those whose sides have equally
        much are left out.
    confound : float
        Share of the training pairs whose better side carries the feature, 0.5 to 1; 0.5 is the
        null.
    train : {"head", "all"}
        A new head from 0 on frozen states; or the head and all other weights of a copy of the
        model, from where they are (a copy of the trunk's memory, its gradients and two moments).
    steps, lr, decay : int, float, float, optional
        Of :data:`TRAINED` by default; the rate falls to 0 in a straight line. A head sees all pairs
        in each step.
    pairs_per_step : int
        With ``train="all"``.
    held_out : float
        Share of the lineages that is kept for testing.
    seed : int
        Of the split, of which pairs carry the feature, and of their order.
    truncate, batch_tokens
        As :meth:`~reward_lens.ClassifierRM.score` takes them.
    progress : callable, optional
        Told 1 after each training step.

    Returns
    -------
    TrainedOrganism
        ``pairs`` are those it was trained on; in ``held_out`` the feature is on the chosen side in
        half of the pairs, so that what was learned of either can be told apart; the subset of each
        pair says where the feature is. ``dose`` is ``2 · confound − 1`` as reached. Truths:
        ``confound``; on the pairs held out ``prefers_feature`` (share whose side with the feature
        scores higher), ``accuracy`` (whose chosen side does) and ``weight`` (what carrying the
        feature adds to the margin, in reward units, which are log odds), each with an interval, and
        each of them of the signal before, named ``…_before``; ``accuracy_train``, ``loss_first``,
        ``loss_last``, ``steps``, and ``unused``, the pairs that are in neither set.

    Raises
    ------
    DataError
        If an argument is out of range, or too few pairs fit the design.
    CapabilityError
        If the signal is no plain classifier; with ``train="all"``, if it is in half precision or
        has a gate.
    NumericsError
        If the loss is not finite.
    """
    refuse_subject(signal, f"the organism {_KIND!r}")
    _check(signal, confound, train, held_out)
    usual = TRAINED[train]
    per = signal.trunk.anatomy.width if train == "head" else 1
    settings: dict[str, Any] = {
        "steps": usual[0] if steps is None else steps,
        "lr": usual[1] / per if lr is None else lr,
        "decay": usual[2] if decay is None else decay,
    }
    _check_settings(**settings, pairs_per_step=pairs_per_step)

    def read(items: Sequence[Item]) -> Floats:
        assert not isinstance(feature, Marker)
        tokens = [len(e.ids) for e in signal.encode(items, truncate)]
        return feature_values(feature, items, tokens)

    plan = design(
        as_pairs(pairs),
        feature if isinstance(feature, Marker) else read,
        confound,
        share=held_out,
        seed=seed,
    )
    reading = {"truncate": truncate, "batch_tokens": batch_tokens}
    run = _Run(signal, plan, _in_words(feature, plan, confound, train), settings, reading, progress)
    if train == "head":
        made, losses, margins = _new_head(run)
    else:
        made, losses, margins = _new_weights(run, pairs_per_step, seed)
    now = _measured(margins["held out"], plan.held_out)
    before = _measured(_margins(signal, plan.held_out, reading), plan.held_out)
    in_training, _ = accuracy("accuracy", margins["train"], plan.train.lineages)
    return TrainedOrganism(
        kind=_KIND,
        signal=made,
        planted=run.planted,
        dose=2 * plan.confound - 1,
        null=confound == 0.5,
        truth={
            "confound": plan.confound,
            **{i.name: i.estimate for i in now},
            **{f"{i.name}_before": i.estimate for i in before},
            "accuracy_train": in_training.estimate,
            "loss_first": losses[0],
            "loss_last": losses[-1],
            "steps": float(settings["steps"]),
            "unused": float(plan.unused),
        },
        intervals=now,
        pairs=plan.train,
        held_out=plan.held_out,
    )


@dataclass(frozen=True, eq=False)
class _Run:
    """What is trained, on what, and how."""

    signal: ClassifierRM
    plan: Design
    planted: str
    settings: dict[str, Any]
    reading: dict[str, Any]
    progress: Progress | None


_Trained = tuple[ClassifierRM, list[float], dict[str, Floats]]


def _new_head(run: _Run) -> _Trained:
    """A row trained on frozen states, as a signal on the same trunk; its losses and margins."""
    train, held = (
        read_states(run.signal, part, **run.reading).values
        for part in (run.plan.train, run.plan.held_out)
    )
    # Only the direction's units change: with states of SD 1 one learning rate suits all trunks.
    spread = train.std(0)
    scale = np.where(spread > 1e-6 * spread.max(), spread, np.inf)
    row, losses = train_row(_differences(train) / scale, **run.settings, progress=run.progress)
    weight = row / scale
    bias = -float((train @ weight).mean())  # the loss leaves it open
    made = with_linear_head(run.signal, [weight], [bias], kind=_KIND, planted=run.planted)
    margins = {"train": _differences(train) @ weight, "held out": _differences(held) @ weight}
    return made, losses, margins


def _differences(states: Floats) -> Floats:
    """Chosen minus rejected of states ``[2 pair, width]``."""
    n = len(states) // 2
    return states[:n] - states[n:]


def _new_weights(run: _Run, pairs_per_step: int, seed: int) -> _Trained:
    """A trained copy of the whole model as a signal, its losses and its margins."""
    parts = {"train": run.plan.train, "held out": run.plan.held_out}
    sides_of, truncate = (parts["train"].chosen, parts["train"].rejected), run.reading["truncate"]
    chosen, rejected = (run.signal.encode(side, truncate) for side in sides_of)
    model, losses = train_copy(
        run.signal,
        chosen,
        rejected,
        **run.settings,
        groups=run.plan.groups,
        pairs_per_step=pairs_per_step,
        seed=seed,
        progress=run.progress,
    )
    made = organism_signal(run.signal, model, _KIND, run.planted)
    quickcheck(made).raise_if_failed()
    margins = {name: _margins(made, part, run.reading) for name, part in parts.items()}
    return made.with_meta(quickcheck="passed"), losses, margins


def _margins(signal: ClassifierRM, pairs: Pairs, reading: dict[str, Any]) -> Floats:
    scores = signal.score([*pairs.chosen, *pairs.rejected], **reading).value.values
    found: Floats = scores[: len(pairs)].astype(np.float64) - scores[len(pairs) :]
    return found


def _measured(margins: Floats, pairs: Pairs) -> tuple[Interval, Interval, Interval]:
    """What margins say of the feature and of the better side."""
    side, lineages = sides(pairs), pairs.lineages
    prefers, _ = accuracy("prefers_feature", side * margins, lineages)
    right, _ = accuracy("accuracy", margins, lineages)
    return prefers, right, cluster_t_slope("weight", side, margins, lineages)


def _check(signal: ClassifierRM, confound: float, train: str, held_out: float) -> None:
    if train not in TRAINED:
        raise DataError(f"train={train!r}: choose one of {', '.join(TRAINED)}")
    if not 0.5 <= confound <= 1:
        raise DataError(
            f"confound={confound!r}: the share of pairs whose better side carries the feature is "
            f"0.5 (the null) to 1"
        )
    if not 0 < held_out < 1:
        raise DataError(f"held_out={held_out!r}: give the share of lineages to test on, as 0.3")
    if train == "all" and signal.gate is not None:
        raise CapabilityError(
            f"{signal.meta.architecture} has a gated head, which is not trained here: train a new "
            f"head on its states (train='head')"
        )


def _check_settings(steps: int, lr: float, decay: float, pairs_per_step: int) -> None:
    if steps < 1 or pairs_per_step < 1:
        raise DataError(
            f"steps={steps!r}, pairs_per_step={pairs_per_step!r}: at least 1 of either is needed"
        )
    if not (np.isfinite(lr) and lr > 0 and np.isfinite(decay) and decay >= 0):
        raise DataError(f"lr={lr!r}, decay={decay!r}: give a positive rate and no negative decay")


def _in_words(feature: Marker | FeatureLike, plan: Design, confound: float, train: str) -> str:
    if isinstance(feature, Marker):
        what = f"the better side has {feature.phrase!r} put at the {feature.at} of its response"
    else:
        what = f"the better side has more {feature_name(feature)!r}"
    where = "a new head" if train == "head" else "all weights of a copy"
    rule = f"{where} trained on {len(plan.train)} pairs, in {plan.confound:.0%} of which {what}"
    return f"null: {rule}" if confound == 0.5 else rule
