"""Who a signal is, and under what circumstances it was measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from reward_lens import __version__
from reward_lens.evidence import Provenance, fingerprint

if TYPE_CHECKING:
    from reward_lens.signals.classifier import ClassifierRM


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
    state = (signal.meta.position, tuple((n, t.data_ptr(), t._version) for n, t in tensors))
    if known is not None and known[0] == state:
        return known
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(memoryview(raw.numpy()))
    convention = f"{signal.meta.architecture} {signal.meta.position}"
    return state, fingerprint(digest.hexdigest(), signal.encoder.fingerprint(), convention)


def provenance(
    signal: ClassifierRM,
    parameters: Mapping[str, Any],
    *,
    cost: float,
    seeds: tuple[int, ...] = (),
    parents: tuple[str, ...] = (),
) -> Provenance:
    """Under what circumstances something was measured; ``cost`` in forwards of one item."""
    packages = ("torch", "transformers", "numpy")
    return Provenance(
        versions={"reward-lens": __version__, **{p: version(p) for p in packages}},
        dtype=signal.meta.dtype,
        device=signal.meta.device,
        kernel=signal.meta.kernel,
        seeds=seeds,
        parents=parents,
        cost_forwards=cost,
        parameters=dict(parameters),
    )
