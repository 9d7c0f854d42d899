"""Another head on a signal's own trunk: the states it reads, a direction fitted to them, a signal.

The trunk's modules are shared with the signal, so that a head costs no memory beyond its row and
nothing of the signal is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from reward_lens.backbone import Site
from reward_lens.backbone.headed import HeadedModel
from reward_lens.data import Item, Pairs, as_items
from reward_lens.errors import DataError, NumericsError
from reward_lens.organisms.made_organism import organism_signal, refuse_subject
from reward_lens.progress import Progress
from reward_lens.signals import ClassifierRM
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.conformance import quickcheck

_NORMED = Site("final_norm")
#: Lineages that a head is fitted on at least; with fewer, held-out parts say nothing.
LEAST_LINEAGES = 10
_FOLDS = 5
_PENALTIES = 10.0 ** np.arange(-4, 6)  # of standardised states

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ReadStates:
    """What a signal's head reads of items; made once, it serves any number of organisms.

    Attributes
    ----------
    items : tuple of Item
    values : ndarray of float64, [item, width]
        After the final norm, at the token that is read (or their mean, where the head reads that).
    tokens : ndarray of int64, [item]
        Ids of each item.
    of : str
        Fingerprint of the signal.
    pairs : Pairs, optional
        Where the items are the chosen sides and then the rejected sides of pairs.
    """

    items: tuple[Item, ...] = field(repr=False)
    values: Floats = field(repr=False)
    tokens: npt.NDArray[np.int64] = field(repr=False)
    of: str
    pairs: Pairs | None = None

    @property
    def lineages(self) -> npt.NDArray[np.object_]:
        """Lineage of every item; of pairs, that of the pair."""
        if self.pairs is not None:
            return np.concatenate([self.pairs.lineages, self.pairs.lineages])
        return np.array([x.lineage for x in self.items], dtype=object)


def read_states(
    signal: ClassifierRM,
    items: Iterable[Any] | Pairs | ReadStates,
    *,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> ReadStates:
    """Run items once and keep what the head reads.

    Parameters
    ----------
    signal : ClassifierRM
    items : items, Pairs or ReadStates
        Of pairs both sides; states that were read already are handed back.
    truncate, batch_tokens, progress
        As :meth:`~reward_lens.ClassifierRM.score` takes them.

    Returns
    -------
    ReadStates

    Raises
    ------
    CapabilityError
        If the signal is no plain classifier.
    DataError
        If the states are another signal's.
    """
    refuse_subject(signal, "an organism")
    if isinstance(items, ReadStates):
        if items.of != signal.fingerprint:
            raise DataError("these states were read by another signal: read them with this one")
        return items
    pairs = items if isinstance(items, Pairs) else None
    given = [*pairs.chosen, *pairs.rejected] if pairs is not None else as_items(items)
    encoded = signal.encode(given, truncate)
    values = np.empty((len(given), signal.trunk.anatomy.width))
    read = signal.read_index(encoded)
    seen = signal.sweep(encoded, [_NORMED], read, batch_tokens=batch_tokens, progress=progress)
    for part in seen:
        rows = part.sites[_NORMED].double()
        values[part.index] = (part.total(rows * part.weight[:, None])).cpu().numpy()
    tokens = np.array([len(e.ids) for e in encoded], dtype=np.int64)
    return ReadStates(tuple(given), values, tokens, signal.fingerprint, pairs)


@dataclass(frozen=True, eq=False)
class Direction:
    """A row and a bias; of the states it was made on, its readings have mean 0 and SD 1.

    Attributes
    ----------
    weight : ndarray of float64, [width]
    bias : float
    r2, r2_fit : float
        Share of what was fitted that the readings explain: of lineages that were left out, and of
        all that it was fitted to. NaN where nothing was fitted.
    held_out : ndarray of float64, [item], optional
        Readings of each item by a direction fitted without its lineage, on the same scale.
    penalty : float
        Of the ridge regression, on standardised states.
    """

    weight: Floats
    bias: float
    r2: float = np.nan
    r2_fit: float = np.nan
    held_out: Floats | None = field(default=None, repr=False)
    penalty: float = np.nan

    def read(self, states: Floats) -> Floats:
        """Readings ``[item]`` of states ``[item, width]``."""
        found: Floats = states @ self.weight + self.bias
        return found


def standardised(weight: Floats, states: ReadStates, what: str) -> tuple[Floats, float, float]:
    """Scale and shift a row so that its readings have mean 0 and SD 1.

    Returns
    -------
    weight, bias, scale
        ``scale`` is what the row was divided by.

    Raises
    ------
    NumericsError
        If its readings do not vary.
    """
    found = states.values @ weight
    scale = float(found.std())
    if not scale > 1e-9 * float(np.abs(found).max()):
        raise NumericsError(f"{what} reads the same off every item, so it has no scale")
    return weight / scale, -float(found.mean()) / scale, scale


def fit_direction(states: ReadStates, values: Floats, what: str) -> Direction:
    """Fit a row to a number of each item by ridge regression.

    The penalty is chosen by leave-one-out error; how well the row fits is judged on lineages that
    fit and choice never saw.

    Parameters
    ----------
    states : ReadStates
    values : ndarray of float64, [item]
    what : str
        Named in errors.

    Raises
    ------
    DataError
        If the number does not vary, or there are fewer than :data:`LEAST_LINEAGES` lineages.
    NumericsError
        If the fitted row reads the same off every item.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.metrics import r2_score
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if np.ptp(values) == 0:
        raise DataError(f"{what} is {values[0]:g} for every item, so no head can be fitted to it")
    groups = states.lineages
    if (n := len(set(groups))) < LEAST_LINEAGES:
        raise DataError(
            f"{what}: {n} lineages are too few to fit a head and judge it; give items of at least "
            f"{LEAST_LINEAGES}"
        )
    chain = make_pipeline(StandardScaler(), RidgeCV(alphas=_PENALTIES))
    # Of values of size 1, so that the penalties mean the same for every feature.
    centre, size = float(values.mean()), float(values.std())
    target = (values - centre) / size
    left_out = cross_val_predict(chain, states.values, target, groups=groups, cv=GroupKFold(_FOLDS))
    chain.fit(states.values, target)
    scaler, ridge = chain[0], chain[1]
    raw = ridge.coef_ / scaler.scale_
    weight, bias, scale = standardised(raw, states, f"the head fitted to {what}")
    mean = float((states.values @ raw).mean())
    shift = float(ridge.intercept_ - scaler.mean_ @ raw)
    return Direction(
        weight=weight,
        bias=bias,
        r2=float(r2_score(target, left_out)),
        r2_fit=float(r2_score(target, states.values @ raw + shift)),
        held_out=(left_out - shift - mean) / scale,
        penalty=float(ridge.alpha_),
    )


def random_direction(
    states: ReadStates, rng: np.random.Generator, apart_from: Direction | None = None
) -> Direction:
    """A random row, whose readings of the items are uncorrelated with those of another one."""
    weight: Floats = rng.standard_normal((states.values.shape[1],))
    if apart_from is not None:
        own, other = states.values @ weight, apart_from.read(states.values)
        slope = float((own - own.mean()) @ (other - other.mean()) / (other.var() * len(other)))
        weight = weight - slope * apart_from.weight
    scaled, bias, _ = standardised(weight, states, "a random head")
    return Direction(scaled, bias)


def with_linear_head(
    signal: ClassifierRM,
    weights: Sequence[Floats],
    biases: Sequence[float],
    *,
    kind: str,
    planted: str,
    labels: tuple[str, ...] = (),
) -> ClassifierRM:
    """A signal with other rows on the same trunk, which is shared and not copied.

    Parameters
    ----------
    weights : sequence of ndarray, [width]
        One for each row, of the state that the head reads after the final norm.
    biases : sequence of float
    kind, planted : str
        What it is and which rule it has, for its record.
    labels : tuple of str
        Names of the rows, if there are several.

    Returns
    -------
    ClassifierRM
        Higher is better whatever the sign of ``signal`` is; a gate is left behind.

    Raises
    ------
    CapabilityError
        If the signal is no plain classifier.
    ConformanceError
        If it does not read as its model does.
    """
    refuse_subject(signal, kind)
    trunk = signal.trunk
    # Without the usual random initialisation, which would draw from the caller's generator.
    head: nn.Linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]
        nn.Linear, trunk.anatomy.width, len(weights), device=trunk.device, dtype=torch.float32
    )
    with torch.no_grad():
        head.weight.copy_(torch.as_tensor(np.stack(weights)))
        head.bias.copy_(torch.as_tensor(np.asarray(biases, dtype=np.float64)))
    head.requires_grad_(False)
    # The mean of an affine head's outputs is its output for the mean.
    rule = "mean" if trunk.anatomy.head.pool == "late" else signal.meta.reads
    model = HeadedModel(trunk.base, head, rule=rule, pad_id=signal.encoder.pad_id)
    model.training = head.training = False  # not .eval(), which would reach into the trunk
    made = organism_signal(
        signal,
        model,
        kind,
        planted,
        head=kind,
        sign=1.0,
        reads=rule,
        n_rows=len(weights),
        labels=labels,
    )
    quickcheck(made).raise_if_failed()
    return made.with_meta(quickcheck="passed")
