"""What one block does to the stream, as a program of sums and norms found from numbers only.

The program runs from the stream that enters to the one that leaves: ``Sum`` adds module outputs
(each possibly scaled, per block or per channel), ``Norm`` passes the stream itself through a norm,
as post-norm blocks do. A pre-norm block is one sum of two writes; BERT's is sum, norm, sum, norm.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone.norms import probe_norm
from reward_lens.backbone.specimen import TOLERANCE, Specimen, Spot, relative_excess
from reward_lens.backbone.tracing import Call, tensors_in

_MAX_WRITES = 3
_MAX_SCALED = 2  # writes of one scaled sum
_MAX_NORMS = 4  # of the stream itself, in one block
#: How the terms of a sum are scaled.
FITS = ("one", "scalar", "channel")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SumPlan:
    """The stream plus some module outputs; ``fit`` says how all terms are scaled."""

    writes: tuple[Spot, ...]
    fit: str = "one"


@dataclass(frozen=True)
class NormPlan:
    """The stream passes through the norm of this name."""

    name: str
    entered: Spot
    left: Spot


Program = tuple[SumPlan | NormPlan, ...]


@dataclass(frozen=True)
class _NormCall:
    plan: NormPlan
    given: Tensor
    put_out: Tensor


class StreamSearch:
    """Search of one traced block call.

    Parameters
    ----------
    specimen : Specimen
    calls : list of Call
        Of one call of its block.
    among : sequence of str, optional
        Only outputs of modules whose names (relative to the block) end so are candidates.
    """

    def __init__(
        self, specimen: Specimen, calls: list[Call], among: Sequence[str] | None = None
    ) -> None:
        self.x = specimen.x
        self.calls = calls
        self.candidates = _candidates(calls, self.x, among)
        self.values = dict(self.candidates)
        self.norms = list(_norm_calls(calls, self.x))

    def explain(self, target: Tensor, norms_left: int = _MAX_NORMS) -> Program | None:
        """The program that makes ``target`` of the entering stream; ``None`` if none is found."""
        if torch.equal(target, self.x):
            return ()
        plain = self._sum(self.x, target, "one", _MAX_WRITES)
        if plain is not None:
            return (plain,)
        if norms_left == 0:
            return None
        for norm in self.norms:
            if torch.equal(norm.put_out, target):
                inner = self.explain(norm.given, norms_left - 1)
                if inner is not None:
                    return (*inner, norm.plan)
        for fit in FITS:
            found = self._carried(target, fit, norms_left)
            if found is not None:
                return found
        return None

    def _carried(self, target: Tensor, fit: str, norms_left: int) -> Program | None:
        """A sum whose stream is a norm's output, or the (scaled) entering stream itself."""
        if fit != "one":
            scaled = self._sum(self.x, target, fit, _MAX_SCALED)
            if scaled is not None:
                return (scaled,)
        for norm in self.norms:
            after = self._sum(norm.put_out, target, fit, _MAX_SCALED)
            if after is None:
                continue
            inner = self.explain(norm.given, norms_left - 1)
            if inner is not None:
                return (*inner, norm.plan, after)
        return None

    def _sum(self, base: Tensor, target: Tensor, fit: str, most: int) -> SumPlan | None:
        """The smallest set of candidates that makes ``target`` of ``base``; the best of equals."""
        others = [(s, v) for s, v in self.candidates if not torch.equal(v, base)]
        for subset in _promising(base, target, [v for _, v in others], fit, most):
            values = [others[i][1] for i in subset]
            if sum_error(base, target, values, fit) <= TOLERANCE:
                return SumPlan(tuple(others[i][0] for i in subset), fit)
        return None


def _candidates(
    calls: list[Call], x: Tensor, among: Sequence[str] | None
) -> list[tuple[Spot, Tensor]]:
    """Every distinct output inside the block that has the stream's size; the shallowest of equals.

    Two calls with equal outputs are one tensor passed on; the one entered first is outermost.
    """
    found: list[tuple[Spot, Tensor]] = []
    for call in calls[1:]:
        if among is not None and not any(_ends(call.name, name) for name in among):
            continue
        for path, tensor in tensors_in({"out": call.output}):
            if tensor.shape[-1] != x.shape[-1] or tensor.numel() != x.numel():
                continue
            value = tensor.reshape(x.shape)
            if not any(torch.equal(value, other) for _, other in found):
                found.append((Spot(call.name, call.nth, path), value))
    return found


def _ends(name: str, ending: str) -> bool:
    return name == ending or name.endswith(f".{ending}")


def _norm_calls(calls: list[Call], x: Tensor) -> Iterator[_NormCall]:
    """The calls that norm a tensor of the stream's size."""
    for call in calls[1:]:
        inputs = [(p, t) for p, t in call.inputs() if t.shape[-1] == x.shape[-1]]
        if len(inputs) != 1 or not isinstance(call.output, Tensor):
            continue
        path, given = inputs[0]
        if call.output.numel() != x.numel() or given.numel() != x.numel():
            continue
        if probe_norm(call.module, x.shape[-1], x.device) is None:
            continue
        plan = NormPlan(
            call.name, Spot(call.name, call.nth, path), Spot(call.name, call.nth, ("out",))
        )
        yield _NormCall(plan, given.reshape(x.shape), call.output.reshape(x.shape))


def _promising(
    base: Tensor, target: Tensor, values: list[Tensor], fit: str, most: int
) -> Iterator[tuple[int, ...]]:
    """Subsets that leave little unexplained, smallest first, best first; by inner products.

    What is left by a fit per channel cannot be told from whole-tensor products; all are tried.
    """
    sizes = range(1, min(most, len(values)) + 1)
    if fit == "channel":
        yield from (s for k in sizes for s in itertools.combinations(range(len(values)), k))
        return
    flat = torch.stack([t.double().flatten() for t in (target, base, *values)]).cpu().numpy()
    gram: Floats = flat @ flat.T
    for k in sizes:
        left = [
            (_unexplained(gram, subset, fit), subset)
            for subset in itertools.combinations(range(len(values)), k)
        ]
        scale = max(float(gram[0, 0]), float(gram[1, 1]))
        close = sorted(entry for entry in left if entry[0] <= 1e-7 * scale)
        yield from (subset for _, subset in close[:20])


def _unexplained(gram: Floats, subset: tuple[int, ...], fit: str) -> float:
    """Squared size of ``target − base − Σ values`` (or of the best scaled sum)."""
    terms = [1, *(i + 2 for i in subset)]
    if fit == "one":
        signs = np.array([1.0] + [-1.0] * len(terms))
        at = [0, *terms]
        return float(signs @ gram[np.ix_(at, at)] @ signs)
    inner, cross = gram[np.ix_(terms, terms)], gram[terms, 0]
    solution = np.linalg.lstsq(inner, cross, rcond=1e-12)[0]
    return float(gram[0, 0] - cross @ solution)


def fit_sum(base: Tensor, target: Tensor, values: list[Tensor], fit: str) -> list[Tensor | None]:
    """Coefficients of the stream and of each write: ``None`` for one, else float64 per channel.

    Returns
    -------
    list
        One entry for ``base``, then one per value: ``None``, or a Tensor ``[]`` or ``[width]``.
    """
    if fit == "one":
        return [None] * (1 + len(values))
    terms = torch.stack([t.double() for t in (base, *values)])
    if fit == "scalar":
        matrix, right = terms.flatten(1).T, target.double().flatten()[:, None]
        return list(torch.linalg.lstsq(matrix, right).solution[:, 0])
    width = base.shape[-1]
    matrix = terms.reshape(len(terms), -1, width).permute(2, 1, 0)  # [width, rows, terms]
    right = target.double().reshape(-1, width).T[..., None]
    solution = torch.linalg.lstsq(matrix, right).solution[..., 0]
    return list(solution.T)


def scaled(value: Tensor, coefficient: Tensor | None) -> Tensor:
    """A term of a sum, in float64."""
    return value.double() if coefficient is None else value.double() * coefficient


def sum_error(base: Tensor, target: Tensor, values: list[Tensor], fit: str) -> float:
    """How far the (fitted) sum misses the target, relative to what was added."""
    coefficients = fit_sum(base, target, values, fit)
    first, *parts = [scaled(t, c) for t, c in zip((base, *values), coefficients, strict=True)]
    return relative_excess(first, target, parts)
