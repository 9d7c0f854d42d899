"""Who a signal is, and under what circumstances it was measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
import xarray as xr

from reward_lens import __version__
from reward_lens.backbone.trunk import written
from reward_lens.evidence import (
    Evidence,
    GaugeStatus,
    Provenance,
    Subject,
    Tier,
    Units,
    canonical,
    fingerprint,
)

if TYPE_CHECKING:
    from reward_lens.signals.classifier import ClassifierRM
    from reward_lens.signals.readouts import Readout


_PACKAGES = ("torch", "transformers", "numpy")


def signal_fingerprint(
    signal: ClassifierRM, known: tuple[object, str] | None
) -> tuple[object, str]:
    """Hash weights, tokenizer, template and convention.

    Parameters
    ----------
    known : tuple, optional
        What an earlier call returned. It is returned again while no parameter was written to,
        which torch counts per tensor.

    Returns
    -------
    state, fingerprint : object, str
    """
    tensors = sorted(signal.trunk.model.state_dict().items())
    m = signal.meta
    convention = canonical({"architecture": m.architecture, "position": m.position, **m.chosen})
    state = (convention, tuple((n, t.data_ptr(), written(t)) for n, t in tensors))
    if known is not None and known[0] == state:
        return known
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(memoryview(raw.numpy()))
    return state, fingerprint(digest.hexdigest(), signal.encoder.fingerprint(), convention)


def signal_subject(
    signal: ClassifierRM,
    data: str,
    readout: Readout,
    position: str | None,
    notes: Mapping[str, Any],
) -> Subject:
    """What a measurement is about: who the signal is, and all that was chosen for it."""
    signal.trunk.refuse_rebuilt()
    m = signal.meta
    facts = {
        "architecture": m.architecture,
        "source": m.source,
        "template": m.template,
        "bos": m.bos,
        "position": position or m.position,
        **m.chosen,
        **notes,
    }
    if readout.note:
        facts["readout_note"] = readout.note
    return Subject(
        signal=signal.fingerprint,
        data=data,
        readout=readout.name,
        interventions=signal.interventions,
        notes=facts,
    )


@cache
def _versions() -> dict[str, str]:
    """Versions of what computes; looked up once, since that reads files."""
    return {"reward-lens": __version__, **{p: version(p) for p in _PACKAGES}}


def provenance(
    signal: ClassifierRM,
    parameters: Mapping[str, Any],
    *,
    cost: float,
    seeds: tuple[int, ...] = (),
    parents: tuple[str, ...] = (),
) -> Provenance:
    """Under what circumstances something was measured; ``cost`` in forwards of one item."""
    return Provenance(
        versions=_versions(),
        dtype=signal.meta.dtype,
        device=signal.meta.device,
        kernel=signal.trunk.kernel if hasattr(signal, "trunk") else signal.meta.kernel,
        seeds=seeds,
        parents=parents,
        cost_forwards=cost,
        parameters=dict(parameters),
    )


def observation(
    signal: ClassifierRM,
    instrument: str,
    value: xr.DataArray,
    *,
    data: str,
    readout: Readout,
    position: str | None,
    parameters: Mapping[str, Any],
    cost: float,
    tier: Tier = Tier.OBSERVATIONAL,
    gauge: GaugeStatus = GaugeStatus.INVARIANT,
    units: Units = Units.REWARD,
    interventions: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    parents: Sequence[Evidence] = (),
    **more: Any,
) -> Evidence:
    """Evidence of an instrument on a signal; observational and gauge-invariant unless said.

    Parameters
    ----------
    data : str
        Fingerprint of the items or pairs.
    interventions : tuple of str
        What was done to the trunk while it was measured, beside what was done to the signal itself.
    parents : sequence of Evidence
        What it was computed from; kept at hand, so that a store takes them along.
    more : dict
        ``uncertainty``, ``tables`` and ``quantity_units``, as
        :class:`~reward_lens.evidence.Evidence` takes them.
    """
    subject = signal.subject(data, readout, position)
    return Evidence(
        value=value,
        instrument=instrument,
        version="1",
        subject=replace(subject, interventions=(*subject.interventions, *interventions)),
        # Whatever is read off a signal that something is done to says what that does.
        tier=Tier.CAUSAL if signal.interventions and tier is Tier.OBSERVATIONAL else tier,
        gauge=gauge,
        units=units,
        provenance=provenance(
            signal, parameters, cost=cost, seeds=seeds, parents=tuple(p.id for p in parents)
        ),
        **more,
    ).with_parents(*parents)
