"""One instrument by name as a call that a store may have from an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reward_lens.audit_calls import Call
from reward_lens.audit_plan import scoring
from reward_lens.data import Pairs
from reward_lens.data.choices import Choices
from reward_lens.evidence import Evidence
from reward_lens.evidence.arguments import checked_count
from reward_lens.instruments.bias_cases import chosen_edits
from reward_lens.instruments.patch_targets import grid_targets
from reward_lens.instruments.paths import TOP
from reward_lens.instruments.token_alignment import as_position
from reward_lens.signals import ClassifierRM

#: What is measured anew each time: not all that was asked of it is on record.
NOT_KEPT = ("concept_dose_response", "objective_geometry")
_TWO_SIDED = ("patch_grid", "path_effects", "compare_views")


def call_of(
    signal: ClassifierRM, instrument: Callable[..., Evidence], options: Mapping[str, Any]
) -> Call:
    """The call of an instrument with some options.

    Parameters
    ----------
    signal : ClassifierRM
    instrument : callable
        One of :mod:`reward_lens.instruments` that takes a signal and items.
    options : mapping
        By name; the instrument's own defaults for the others.
    """
    name, given = instrument.__name__, dict(options)
    if name == "preference":
        return scoring(given.pop("parts", None), given)
    recorded: dict[str, Any] = {}
    if "positions" in given and name not in NOT_KEPT:
        recorded["positions"] = str(as_position(given["positions"]))
    if isinstance(given.get("layers"), int):
        recorded["layers"] = [given["layers"]]
    more: dict[str, Any] = {}
    if name == "path_effects":
        more = _paths(signal, given, recorded)
    elif name == "compare_views":
        more = {"idle": ("attribution", "grid")}
        recorded["components"] = _components(signal, given)
    elif name == "bias_battery":
        edits, templated = chosen_edits(signal, given.get("edits"))
        recorded["edits"] = [*(e.label for e in edits), *templated]
    elif name == "best_of_n":
        more = {"idle": ("choices",)}
    elif name == "patch_grid":
        if given.get("by") == "layer_position":
            recorded["site"] = given.get("site") or "resid_pre"
        if given.get("components") is not None:
            recorded["components"] = _components(signal, given)
    # What stands for an ablated activation is on record by its hash alone.
    hidden = given.get("ablation") in ("mean", "resample")
    return Call(
        instrument,
        given,
        recorded,
        exchanges=_exchanges(name, given),
        kept=name not in NOT_KEPT and not hidden,
        **more,
    )


def data_of(call: Call, items: Pairs | Choices) -> Pairs | Choices:
    """What a call measures on: of some instruments, a sample of what they are given.

    Parameters
    ----------
    call : Call
    items : Pairs or Choices
    """
    asked = call.asked()
    if isinstance(items, Pairs):
        for name, each in (("max_pairs", 1), ("max_responses", 2)):
            if asked.get(name) is not None:
                most = checked_count(name, asked[name], each) // each
                return items.sample(most, asked["seed"])
    return items


def _exchanges(name: str, given: Mapping[str, Any]) -> int:
    """How many interventions an instrument adds."""
    if name == "attribution_patching":
        return 1
    if name not in _TWO_SIDED:
        return 0
    return 2 if given.get("direction", "both") == "both" and not given.get("ablation") else 1


def _paths(
    signal: ClassifierRM, given: Mapping[str, Any], recorded: dict[str, Any]
) -> dict[str, Any]:
    """Senders that are not named are the largest of a grid that the evidence rests on."""
    for name in ("senders", "receivers"):
        if isinstance(given.get(name), str):
            recorded[name] = [given[name]]
    if given.get("senders") is not None:
        return {"idle": ("top",)}
    top = checked_count("top", given.get("top", TOP), 1)

    def fits(evidence: Evidence) -> bool:
        most = min(top, len(grid_targets(signal.trunk.anatomy, "component")))
        own = bool(evidence.provenance.parents)
        return own and len(evidence.provenance.parameters["senders"]) == most

    return {"idle": ("top", "senders"), "fits": fits}


def _components(signal: ClassifierRM, given: Mapping[str, Any]) -> list[str]:
    targets = grid_targets(
        signal.trunk.anatomy,
        given.get("by", "component"),
        site=given.get("site") or "resid_pre",
        layers=given.get("layers"),
        components=given.get("components"),
    )
    return [str(t) for t in targets]
