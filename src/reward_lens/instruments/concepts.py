"""Concepts: a direction in the stream that tells two sets of texts apart, and how well it does."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reward_lens.backbone import Site
from reward_lens.errors import CapabilityError, DataError, NumericsError
from reward_lens.evidence import Interval, fingerprint
from reward_lens.evidence.arguments import checked_seed
from reward_lens.evidence.intervals import accuracy as share_right
from reward_lens.instruments.labelled import Labelled, as_labelled
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS

METHODS = ("mean_difference", "logistic")
_FOLDS = 5
_LEAST = 2  # labelled items a class needs
_NOTHING = 1e-6  # two means closer than this share of the states' length coincide

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
#: Unit direction ``[width]`` and the threshold on it above which an item counts as positive.
Rule = tuple[Floats, float]


@dataclass(frozen=True, eq=False)
class Concept:
    """A direction in the residual stream.

    Attributes
    ----------
    direction : ndarray of float64, [width]
        Of unit length, pointing from the negative to the positive set.
    step : float
        What dose 1 is, in the units of the stream: how far apart the two sets' means lie along the
        direction; for a direction that was handed over, its own length.
    site : str
        Where it was fitted.
    method : str
        ``"mean_difference"``, ``"logistic"`` or ``"given"``.
    n_positive, n_negative : int
        Labelled items; 0 for a direction that was handed over, as is all that follows NaN.
    step_held_out : float
        The step on items that the direction was not fitted on: smaller, since noise in the means
        lengthens their difference.
    spread : float
        Standard deviation along the direction inside the sets.
    accuracy : Interval, optional
        Cross-validated share of items on the right side, clustered by lineage.
    auc : float
        Cross-validated area under the ROC curve: how often a positive item lies further along than
        a negative one.
    note : str
        Why there is no cross-validation, where there is none.
    fingerprint : str
        Hash of the labelled items, or of the direction that was handed over.
    """

    direction: Floats = field(repr=False)
    step: float
    site: str
    method: str
    fingerprint: str
    n_positive: int = 0
    n_negative: int = 0
    step_held_out: float = math.nan
    spread: float = math.nan
    accuracy: Interval | None = None
    auc: float = math.nan
    note: str = ""

    @property
    def vector(self) -> Floats:
        """What dose 1 adds: float64 ``[width]``."""
        return self.step * self.direction


def fit_concept(
    signal: ClassifierRM,
    concept: Any,
    site: str | Site,
    *,
    method: str = "mean_difference",
    seed: int = 0,
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
) -> Concept:
    """Fit the direction that tells two sets of items apart at a site.

    Parameters
    ----------
    signal : ClassifierRM
    concept : labelled items, pairs, or ndarray or Tensor of shape [width]
        ``(positives, negatives)``, two lists of items (or a mapping with these two keys); a list of
        ``(item, label)``; rows with a column ``label`` (1 or 0); or pairs, whose chosen sides are
        the positive items. An array is a ready direction: dose 1 adds it as it is.
    site : str or Site
        Where the state of each item's read token is taken.
    method : {"mean_difference", "logistic"}
        The difference of the two sets' means; or the normal of a logistic regression on
        standardised channels (scikit-learn's default penalty).
    seed : int
        Of the cross-validation's folds.
    position : {"native", "last"}, optional
        Which token of the labelled items is read.

    Returns
    -------
    Concept

    Raises
    ------
    DataError
        If there are fewer than two items of a class, a given direction has another shape, or the
        seed is no whole number from 0.
    NumericsError
        If the sets do not differ at the site, or a direction is not finite or zero.
    AnatomyError
        If the model does not have the site.

    Notes
    -----
    Cross-validation keeps a lineage in one fold (both sides of a pair, all responses to a prompt),
    in up to five folds stratified by label; the area under the curve is taken over the pooled
    held-out items, each measured from its own fold's threshold in steps of its own fold.
    """
    require(signal, Capability.ACTIVATIONS, "fit_concept")
    seed = checked_seed(seed)
    where = Site.parse(site)
    if isinstance(concept, (np.ndarray, torch.Tensor)):
        return _given(concept, signal.meta.width, where)
    if method not in METHODS:
        raise CapabilityError(f"method={method!r}: choose one of {', '.join(METHODS)}")
    labelled = as_labelled(concept)
    labelled.refuse_fewer_than(_LEAST)
    states = read_states(signal, labelled, where, position, truncate, batch_tokens)
    fit = _FITS[method]
    direction, _ = fit(states, labelled.positive, str(where))
    along = states @ direction
    found = Concept(
        direction,
        _gap(along, labelled.positive),
        str(where),
        method,
        labelled.fingerprint,
        n_positive=int(labelled.positive.sum()),
        n_negative=int((~labelled.positive).sum()),
        spread=_spread(along, labelled.positive),
    )
    return _cross_validated(found, states, labelled, fit, seed)


def read_states(
    signal: ClassifierRM,
    labelled: Labelled,
    site: Site,
    position: str | None,
    truncate: str,
    batch_tokens: int,
) -> Floats:
    """State of each item's read token at a site (of a head that reads a mean, the mean state).

    Returns
    -------
    ndarray of float64, [item, width]
    """
    encoded = signal.encode(labelled.items, truncate)
    read = signal.read_index(encoded, position)
    states = np.empty((len(encoded), signal.meta.width))
    for seen in signal.sweep(encoded, [site], read, batch_tokens=batch_tokens):
        states[seen.index] = seen.mean(seen.sites[site].double()).cpu().numpy()
    return states


def _given(direction: Any, width: int, site: Site) -> Concept:
    """Take a direction that was handed over."""
    tensor = torch.as_tensor(direction)
    if tensor.shape != (width,):
        raise DataError(
            f"the direction has shape {list(tensor.shape)}; the stream at {site} has {width} "
            f"channels: give one vector [{width}]"
        )
    vector = tensor.detach().to("cpu", torch.float64).numpy().copy()
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or length == 0:
        raise NumericsError("the direction is zero, NaN or infinite, so it points nowhere")
    return Concept(
        vector / length, length, str(site), "given", fingerprint(vector.tobytes()),
        note="a direction that was handed over",
    )  # fmt: skip


def mean_difference(states: Floats, positive: Bools, where: str = "") -> Rule:
    """Fit the direction between two sets' means, and the midpoint on it.

    Parameters
    ----------
    states : ndarray of float64, [item, width]
    positive : ndarray of bool, [item]
    where : str
        Named in the error.

    Raises
    ------
    NumericsError
        If the means coincide.
    """
    above, below = states[positive].mean(0), states[~positive].mean(0)
    length = float(np.linalg.norm(above - below))
    if length <= _NOTHING * float(np.linalg.norm(states, axis=1).mean()):
        raise NumericsError(
            f"the two sets have the same mean state at {where or 'the site'}, so no direction "
            f"tells them apart; are they the same texts, or the same up to the token that is read?"
        )
    unit = (above - below) / length
    return unit, float(unit @ (above + below)) / 2


def logistic(states: Floats, positive: Bools, where: str = "") -> Rule:
    """Fit the normal of a logistic regression on standardised channels, in the stream's units.

    Parameters and errors are those of :func:`mean_difference`.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    mean_difference(states, positive, where)  # refuses sets that are the same
    middle, scale = states.mean(0), states.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    model = LogisticRegression(max_iter=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            model.fit((states - middle) / scale, positive)
        except ConvergenceWarning as error:
            raise NumericsError(
                f"the logistic regression at {where or 'the site'} did not converge ({error}); "
                f"method='mean_difference' always does"
            ) from error
    normal: Floats = model.coef_[0] / scale
    length = float(np.linalg.norm(normal))
    unit = normal / length
    return unit, float(unit @ middle - model.intercept_[0] / length)


_FITS: Mapping[str, Callable[[Floats, Bools, str], Rule]] = {
    "mean_difference": mean_difference,
    "logistic": logistic,
}


def _gap(along: Floats, positive: Bools) -> float:
    return float(along[positive].mean() - along[~positive].mean())


def _spread(along: Floats, positive: Bools) -> float:
    """Pooled standard deviation inside the two sets."""
    rest = [part - part.mean() for part in (along[positive], along[~positive])]
    return math.sqrt(sum(float(r @ r) for r in rest) / (len(along) - 2)) if len(along) > 2 else 0.0


def _cross_validated(
    found: Concept,
    states: Floats,
    labelled: Labelled,
    fit: Callable[[Floats, Bools, str], Rule],
    seed: int,
) -> Concept:
    """Add accuracy, area and step on items that each direction was not fitted on."""
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedGroupKFold

    positive, lineages = labelled.positive, labelled.lineages
    folds = min(_FOLDS, *(len(set(lineages[c])) for c in (positive, ~positive)))
    if folds < 2:
        reason = "the items of one label are all of one lineage, so none of it can be held out"
        return replace(found, note=reason)
    beyond, distance = np.full(len(states), np.nan), np.full(len(states), np.nan)
    split = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    for train, test in split.split(states, positive, lineages):
        if positive[train].all() or not positive[train].any():
            return replace(found, note="too few lineages: a fold leaves items of one label only")
        unit, threshold = fit(states[train], positive[train], found.site)
        distance[test] = states[test] @ unit - threshold
        beyond[test] = distance[test] / abs(_gap(states[train] @ unit, positive[train]))
    return replace(
        found,
        accuracy=share_right("concept.accuracy", np.where(positive, beyond, -beyond), lineages)[0],
        auc=float(roc_auc_score(positive, beyond)),
        step_held_out=_gap(distance, positive),
    )
