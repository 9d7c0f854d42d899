"""Path effects: how much of the margin goes from one component to another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.data import Pairs, as_pairs
from reward_lens.errors import CapabilityError
from reward_lens.evidence import Evidence, Tier, Units
from reward_lens.evidence.arguments import checked_count
from reward_lens.instruments.effects import effect_rows, margin_shares
from reward_lens.instruments.patch_targets import largest_effects
from reward_lens.instruments.patching_grid import QUANTITIES, patch_grid
from reward_lens.instruments.path_graph import (
    all_ends,
    parse_end,
    parse_sender,
    refuse_impossible,
    refuse_normed_stream,
)
from reward_lens.instruments.path_runs import PathPlan, PathRuns
from reward_lens.instruments.sides import Sides
from reward_lens.instruments.token_alignment import Where, as_position, patched_tokens
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation
from reward_lens.signals.intervening import refuse_replaced_stream

#: Senders that are followed where none are named: those with the largest effects of their own.
TOP = 6
DIRECTIONS = ("noise", "denoise")
NORMS = ("applied", "frozen")
_JOINT = "joint"

Floats = npt.NDArray[np.float64]


def path_effects(
    signal: ClassifierRM,
    pairs: Any,
    *,
    senders: Sequence[str] | str | None = None,
    receivers: Sequence[str] | str | None = None,
    positions: Where = "final",
    direction: str = "both",
    joint: bool = False,
    norm: str = "applied",
    top: int = TOP,
    executor: str | None = None,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Follow a component's part of the margin to what reads it.

    The sender's activation is exchanged between the sides of a pair as in
    :func:`~reward_lens.patch_grid`, but only one receiver sees it: its input gets the change of the
    stream that the exchange makes, and nothing else does. The receiver and everything after it are
    recomputed; all other components are handed what they have in the clean run until they are
    reached. For the readout as receiver nothing is recomputed: that is the direct path.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    senders : sequence of str, optional
        ``embed``, ``L3.attn_out``, ``L3.mlp_out``, ``L3.H2``. By default the ``top`` components
        with the largest mean |effect| of their own (embed, attention and MLP writes).
    receivers : sequence of str, optional
        ``L5.attn_in`` and ``L5.mlp_in`` (what the sublayer reads), ``L5.H3`` (what one head reads)
        or ``L5.H3.q``, ``.k``, ``.v`` alone, ``L5.resid_pre`` (``_mid``, ``_post``: the stream
        itself from there on), ``readout``. By default every sublayer and the readout.
    positions : {"final", "aligned", "all"}, int, (start, stop) or Position
        Tokens at which the sender is exchanged; see :func:`~reward_lens.patch_grid`.
    direction : {"both", "noise", "denoise"}
        Signs as in :func:`~reward_lens.patch_grid`.
    joint : bool
        All receivers in one run, each seeing what the earlier ones make of it; with the default
        (all that come after the sender, and the readout) that is the sender's own effect. Where the
        stream itself is a receiver, what reads it later gets the change from it, and not twice.
    norm : {"applied", "frozen"}
        For the readout as receiver: the final norm is applied to the changed stream, or held at its
        value in the clean run, so that the effect is the projection of the sender's change.
    top : int
        How many senders, where none are named.
    executor : str, optional
        ``"full forward"`` for whole forwards.

    Returns
    -------
    Evidence
        Value float64 ``[quantity, direction, pair, sender, receiver]``: ``effect`` in reward units
        and ``share`` of the margin; NaN where a default receiver does not come after the sender, or
        a pair has no such tokens.
        Table ``paths``: mean effect per path with a cluster-t interval; ``nodes``: the same of each
        sender's own effect, along all paths; ``engine``: what ran. Paths need not add up to the
        node: components act together.

    Raises
    ------
    AnatomyError
        If a name does not exist, or a named receiver does not come after a named sender.
    CapabilityError
        If the stream is normed or scaled inside blocks, or an option is unknown.
    DataError
        If a pair does not have the tokens, or ``top`` is no whole number from 1.

    Notes
    -----
    A head behind a post-norm sends what the norm makes of its change. Goldowsky-Dill and
    co-authors (2023), arXiv 2304.05969, define path patching; here the receiver's input is changed
    in the stream it reads, before its norm.
    """
    require(signal, Capability.ACTIVATIONS, "path_effects")
    refuse_replaced_stream(signal, "path_effects")
    anatomy = signal.trunk.anatomy
    refuse_normed_stream(anatomy)
    directions = _directions(direction, norm)
    given = as_pairs(pairs)
    sides = Sides.of(signal, given, position, truncate)
    tokens = patched_tokens(sides, positions)
    options: dict[str, Any] = {"readout": readout, "position": position, "truncate": truncate,
                               "batch_tokens": batch_tokens, "executor": executor}  # fmt: skip
    parents: tuple[Evidence, ...] = ()
    cost = 0.0
    if senders is None:
        top = checked_count("top", top, 1)
        grid = patch_grid(signal, given, positions=positions, direction=direction, **options)
        parents, cost = (grid,), grid.provenance.cost_forwards
        named = largest_effects(grid, top)
    else:
        named = [senders] if isinstance(senders, str) else list(senders)
    plan = _plan(signal, named, receivers, joint=joint, norm=norm, directions=directions)
    chosen = signal.bound(readout, sides.encoded, batch_tokens)
    found = PathRuns(signal, sides, tokens, plan, chosen)
    found.run(as_position(positions).kind != "final", executor, batch_tokens, progress)
    effects = found.effects
    value = effects[..., 1:]
    return observation(
        signal,
        "path_effects",
        value=xr.DataArray(
            np.stack([value, margin_shares(value, found.scores)]),
            dims=("quantity", "direction", "pair", "sender", "receiver"),
            coords={
                "quantity": list(QUANTITIES),
                "direction": list(directions),
                "sender": [str(s) for s in plan.senders],
                "receiver": plan.names,
                **sides.pair_coords(),
            },
            name="path_effect",
        ),
        data=given.fingerprint,
        readout=chosen,
        position=position,
        tier=Tier.CAUSAL,
        units=Units.REWARD,
        quantity_units=QUANTITIES,
        interventions=tuple(
            f"{d}: sender exchanged at {as_position(positions)}, seen by "
            f"{_seen_by(plan, receivers)}" for d in directions
        ),
        parents=parents,
        parameters={
            "senders": named,
            "receivers": None if receivers is None else [e.name for e in plan.ends],
            "positions": str(as_position(positions)),
            "direction": direction,
            "joint": joint,
            "norm": norm,
            **{k: v for k, v in options.items() if k != "position"},
        },
        cost=cost + found.forwards,
        tables={
            **_tables(plan, given, effects, found.scores),
            "engine": pd.DataFrame(
                [{"executor": e, "groups": k, "forwards_of_all": found.forwards}
                 for e, k in sorted(found.executors.items()) or [("none", 0)]]
            ),
        },
    )  # fmt: skip


def _tables(
    plan: PathPlan, pairs: Pairs, effects: Floats, scores: Floats
) -> dict[str, pd.DataFrame]:
    """Mean effects per path, and per sender along all its paths."""
    sent = [{"direction": d, "sender": str(s)} for d in plan.directions for s in plan.senders]
    to = [{**label, "receiver": name} for label in sent for name in plan.names]
    rows = effects.transpose(0, 2, 3, 1)  # [direction, sender, node and receivers, pair]
    paths, nodes = rows[:, :, 1:].reshape(len(to), -1), rows[:, :, 0].reshape(len(sent), -1)
    # A receiver that does not come after a sender is no path.
    there = np.array([not np.isnan(p).all() for p in paths])
    to = [label for label, real in zip(to, there, strict=True) if real]
    table = partial(effect_rows, margins=scores[0] - scores[1], lineages=pairs.lineages)
    return {"paths": table(to, paths[there]), "nodes": table(sent, nodes)}


def _directions(direction: str, norm: str) -> tuple[str, ...]:
    if norm not in NORMS:
        raise CapabilityError(f"norm={norm!r}: choose 'applied' or 'frozen'")
    if direction not in (*DIRECTIONS, "both"):
        raise CapabilityError(f"direction={direction!r}: choose 'both', 'noise' or 'denoise'")
    return DIRECTIONS if direction == "both" else (direction,)


def _seen_by(plan: PathPlan, receivers: Sequence[str] | str | None) -> str:
    if not plan.joint:
        return "one receiver"
    if receivers is None:
        return "every receiver after it, together"
    return f"{', '.join(e.name for e in plan.ends)}, together"


def _plan(
    signal: ClassifierRM,
    senders: Sequence[str],
    receivers: Sequence[str] | str | None,
    *,
    joint: bool,
    norm: str,
    directions: tuple[str, ...],
) -> PathPlan:
    anatomy = signal.trunk.anatomy
    sent = [parse_sender(name, anatomy) for name in senders]
    if not sent:
        raise CapabilityError("path_effects: senders is empty; name at least one")
    if receivers is None:
        ends = all_ends(anatomy)
    else:
        names = [receivers] if isinstance(receivers, str) else list(receivers)
        ends = [parse_end(name, anatomy) for name in names]
        refuse_impossible(anatomy, sent, ends)
    if not ends:
        raise CapabilityError("path_effects: receivers is empty; name at least one")
    if joint and norm == "frozen":
        raise CapabilityError("norm='frozen' is of the direct path alone; leave joint out")
    names = [_JOINT] if joint else [e.name for e in ends]
    return PathPlan(sent, ends, names, joint, norm == "frozen", directions)
