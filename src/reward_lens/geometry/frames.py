"""Frames: common coordinates for the states of two trunks, fitted on one reference corpus."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from reward_lens.errors import CapabilityError, DataError, EvidenceError
from reward_lens.evidence import Evidence, GaugeStatus, Units, canonical, fingerprint
from reward_lens.geometry.corpus import Corpus, corpus_of
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation

Floats = npt.NDArray[np.float64]

#: Lineages that a fitted dimension needs.
PER_DIMENSION = 10
_TENSORS, _FACTS = "frame.safetensors", "frame.json"
_ARRAYS = ("centre_a", "centre_b", "map_a", "map_b", "correlations")


@dataclass(frozen=True, eq=False)
class Frame:
    """Common coordinates of two trunks' states at one site each.

    A state ``x`` of the first trunk has the coordinates ``(x − centre_a) @ map_a``, one of the
    second ``(y − centre_b) @ map_b``: principal components, whitened with a shrunk covariance, and
    turned towards each other (their difference is smallest under a rotation: whitened Procrustes;
    single coordinates are canonical variates).

    Attributes
    ----------
    signals : (str, str)
        Fingerprints of the two signals.
    sites : (str, str)
    corpus : str
        Fingerprint of the items it was fitted on.
    lineages : tuple of str
        Of those items, so that a frame is never judged on what it was fitted on.
    centre_a, centre_b : ndarray of float64, [width]
    map_a, map_b : ndarray of float64, [width, dimension]
    correlations : ndarray of float64, [dimension]
        Canonical correlations on the corpus it was fitted on, which chance makes large; judge by
        those held out, see :func:`~reward_lens.geometry.state_alignment`.
    facts : mapping
        Shrinkage and share of variance that the components keep, of both.
    """

    signals: tuple[str, str]
    sites: tuple[str, str]
    corpus: str
    lineages: tuple[str, ...] = field(repr=False)
    centre_a: Floats = field(repr=False)
    centre_b: Floats = field(repr=False)
    map_a: Floats = field(repr=False)
    map_b: Floats = field(repr=False)
    correlations: Floats = field(repr=False)
    facts: Mapping[str, float]

    @property
    def dimensions(self) -> int:
        """Number of common coordinates."""
        return len(self.correlations)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything in it; what evidence names as its frame."""
        digest = hashlib.blake2b(digest_size=16)
        for name in _ARRAYS:
            digest.update(np.ascontiguousarray(getattr(self, name), dtype="<f8").tobytes())
        return "fr-" + fingerprint(canonical(self._said()), digest.hexdigest())

    def _said(self) -> dict[str, Any]:
        return {
            "signals": list(self.signals),
            "sites": list(self.sites),
            "corpus": self.corpus,
            "lineages": list(self.lineages),
            "facts": {k: float(v) for k, v in self.facts.items()},
        }

    def side(self, signal: ClassifierRM) -> str:
        """``"a"`` or ``"b"``: which of its two signals this is.

        Raises
        ------
        DataError
            If it is neither.
        """
        if signal.fingerprint not in self.signals:
            raise DataError(
                f"frame {self.fingerprint} was fitted on the signals {' and '.join(self.signals)}, "
                f"and this is {signal.fingerprint}; fit one on this signal"
            )
        return "ab"[self.signals.index(signal.fingerprint)]

    def coordinates(self, states: Floats, side: str) -> Floats:
        """States ``[n, width]`` of one side in common coordinates ``[n, dimension]``."""
        centre, matrix = (self.centre_a, self.map_a) if side == "a" else (self.centre_b, self.map_b)
        found: Floats = (states - centre) @ matrix
        return found

    def save(self, folder: str | Path) -> None:
        """Write ``frame.safetensors`` and ``frame.json`` into a folder, which is made."""
        from safetensors.numpy import save_file

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        arrays = {n: np.ascontiguousarray(getattr(self, n), dtype=np.float64) for n in _ARRAYS}
        save_file(arrays, target / _TENSORS)
        said = {"fingerprint": self.fingerprint, **self._said()}
        (target / _FACTS).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Frame:
        """Read what :meth:`save` wrote.

        Raises
        ------
        EvidenceError
            If a file is missing or malformed, or the content is not what the fingerprint says.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        source = Path(folder)
        try:
            arrays = load_file(source / _TENSORS)
            said = json.loads((source / _FACTS).read_text(encoding="utf-8"))
            frame = cls(
                signals=tuple(said["signals"]),
                sites=tuple(said["sites"]),
                corpus=said["corpus"],
                lineages=tuple(said["lineages"]),
                facts=said["facts"],
                **{n: arrays[n] for n in _ARRAYS},
            )
            expected = said["fingerprint"]
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise EvidenceError(f"{source} holds no frame: {error!r}") from error
        if frame.fingerprint != expected:
            raise EvidenceError(
                f"{source} says it is {expected}, its content is {frame.fingerprint}: it was "
                f"altered after it was fitted"
            )
        return frame


def fit_frame(
    a: ClassifierRM,
    b: ClassifierRM,
    corpus: Any,
    *,
    site: str | tuple[str, str] = "final_norm",
    dimensions: int | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
) -> Frame:
    """Fit common coordinates of two trunks on a reference corpus.

    Parameters
    ----------
    a, b : ClassifierRM
    corpus : Pairs or items, in any form that as_pairs or as_items takes
    site : str or (str, str)
        Where the states are taken, at each signal's own read token.
    dimensions : int, optional
        Principal components of each; by default as many as the corpus allows.
    truncate : {"error", "left", "right"}
    batch_tokens : int

    Returns
    -------
    Frame
        Its corpus must not be used again to judge it.

    Raises
    ------
    CapabilityError
        If a signal has no activations.
    DataError
        If there are fewer than ten lineages a dimension: then any two trunks come out aligned.
    AnatomyError
        If a trunk does not have the site.

    Notes
    -----
    Ledoit and Wolf's (2004) shrunk covariance is used for whitening, as scikit-learn computes it.
    It shrinks towards a sphere, which is one in these coordinates and none in others: what is made
    in a frame depends on the basis through it, and through which components are kept.
    """
    sites = _sites(site)
    for signal in (a, b):
        require(signal, Capability.ACTIVATIONS, "fit_frame")
    found = corpus_of(corpus)
    labels = tuple(dict.fromkeys(str(x) for x in found.lineages))
    widths = (a.meta.width, b.meta.width)
    size = _dimensions(dimensions, len(labels), min(widths))
    states = [
        read_states(s, found, at, truncate, batch_tokens)
        for s, at in zip((a, b), sites, strict=True)
    ]
    fitted = fit_maps(states[0], states[1], size)
    return Frame(
        signals=(a.fingerprint, b.fingerprint),
        sites=sites,
        corpus=found.fingerprint,
        lineages=labels,
        **fitted,
    )


def fit_maps(x: Floats, y: Floats, dimensions: int) -> dict[str, Any]:
    """Whitened Procrustes and canonical variates of two sets of states.

    Parameters
    ----------
    x, y : ndarray of float64, [n, width]
        Row for row of the same items; the widths may differ.
    dimensions : int

    Returns
    -------
    dict
        The fields of :class:`Frame` that are fitted.
    """
    sides = [_whitening(states, dimensions) for states in (x, y)]
    white = [(s - c) @ w for s, (c, w, _) in zip((x, y), sides, strict=True)]
    u, _, vt = np.linalg.svd(white[0].T @ white[1] / len(x))
    # The singular values are no correlations: the shrunk covariance is not that of these states.
    correlations = column_correlations(white[0] @ u, white[1] @ vt.T)
    return {
        "centre_a": sides[0][0],
        "centre_b": sides[1][0],
        "map_a": sides[0][1] @ u,
        "map_b": sides[1][1] @ vt.T,
        "correlations": correlations,
        "facts": {f"{k}_{s}": v for s, (_, _, f) in zip("ab", sides, strict=True)
                  for k, v in f.items()},
    }  # fmt: skip


def column_correlations(x: Floats, y: Floats) -> Floats:
    """Correlation of column with column, ``[dimension]``; NaN where one does not vary."""
    x, y = x - x.mean(0), y - y.mean(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = (x * y).sum(0) / np.sqrt((x * x).sum(0) * (y * y).sum(0))
    return found


def _whitening(states: Floats, dimensions: int) -> tuple[Floats, Floats, dict[str, float]]:
    """Centre ``[width]``, map to whitened principal components ``[width, dimension]``, facts."""
    from sklearn.covariance import ledoit_wolf

    centre = states.mean(0)
    covariance, shrinkage = ledoit_wolf(states)
    values, vectors = np.linalg.eigh(covariance)
    values, vectors = values[::-1][:dimensions], vectors[:, ::-1][:, :dimensions]
    if values[-1] <= 0:
        raise DataError(
            f"the states vary in fewer than {dimensions} directions: ask for fewer dimensions"
        )
    spread = states - centre
    kept = ((spread @ vectors) ** 2).sum() / (spread**2).sum()
    return centre, vectors / np.sqrt(values), {"shrinkage": float(shrinkage), "kept": float(kept)}


def read_states(
    signal: ClassifierRM, corpus: Corpus, site: str, truncate: str, batch_tokens: int
) -> Floats:
    """States of a corpus at the read token: float64 ``[item, width]``."""
    seen = signal.capture(corpus.items, [site], truncate=truncate, batch_tokens=batch_tokens)
    (tensor,) = seen.values()
    states: Floats = tensor.double().cpu().numpy().reshape(len(corpus.items), -1)
    return states


def frame_direction(signal: ClassifierRM, frame: Frame, readout: str = "reward") -> Evidence:
    """The readout's direction in a frame's coordinates, which two signals can be compared in.

    Parameters
    ----------
    signal : ClassifierRM
        One of the frame's two; its head must be linear.
    frame : Frame
        Fitted at ``final_norm``, where the direction acts.
    readout : str

    Returns
    -------
    Evidence
        Value float64 ``[dimension]`` of length 1, gauge ``COVARIANT``, units ``ANGLE``, with the
        frame named. The parameter ``length`` is its length before: the standard deviation of the
        part of the score that the frame's components carry.

    Raises
    ------
    CapabilityError
        If the readout is not linear, or the frame was fitted elsewhere.
    DataError
        If the frame is not of this signal.
    """
    require(signal, Capability.LINEAR_READOUT, "frame_direction")
    side = frame.side(signal)
    chosen = signal.readout(readout)
    site = frame.sites["ab".index(side)]
    if site != "final_norm" or chosen.kind != "linear":
        raise CapabilityError(
            f"frame_direction reads a linear readout after the final norm; the frame was fitted at "
            f"{site}, the readout {readout!r} is {chosen.kind}"
        )
    matrix = frame.map_a if side == "a" else frame.map_b
    # The score is w·x; with z = x @ map, the x of least length that gives z is z @ pinv(map).
    turned = np.linalg.pinv(matrix) @ chosen.direction.double().cpu().numpy()
    length = float(np.linalg.norm(turned))
    found = observation(
        signal,
        "frame_direction",
        xr.DataArray(
            turned / length if length else turned,
            dims=("dimension",),
            coords={"dimension": np.arange(frame.dimensions)},
            name="direction",
        ),
        data=frame.corpus,
        readout=chosen,
        position=None,
        parameters={"readout": readout, "frame": frame.fingerprint, "length": length},
        cost=0.0,
        gauge=GaugeStatus.COVARIANT,
        units=Units.ANGLE,
    )
    return replace(found, subject=replace(found.subject, frame=frame.fingerprint))


def _sites(site: str | tuple[str, str]) -> tuple[str, str]:
    return (site, site) if isinstance(site, str) else (str(site[0]), str(site[1]))


def _dimensions(asked: int | None, lineages: int, width: int) -> int:
    """The number of components, refused where the corpus is too small for it."""
    most = min(lineages // PER_DIMENSION, width)
    size = most if asked is None else int(asked)
    if not 1 <= size <= width or size > most:
        raise DataError(
            f"dimensions={asked}: with {lineages} lineages and states of width {width} a frame has "
            f"1 to {most} dimensions ({PER_DIMENSION} lineages each); with fewer lineages any two "
            f"trunks come out aligned. Give more data, or ask for fewer dimensions"
        )
    return size
