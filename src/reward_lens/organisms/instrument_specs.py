"""How each instrument that can be calibrated is run on an organism, and where its rule should show.

One row of a table per instrument; what an instrument does it says itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reward_lens.data import Pairs
from reward_lens.errors import CapabilityError
from reward_lens.evidence import Evidence, Reading
from reward_lens.instruments import (
    attribution,
    attribution_patching,
    lens,
    patch_grid,
    path_effects,
)
from reward_lens.instruments.patch_targets import largest_effects
from reward_lens.instruments.paths import TOP
from reward_lens.signals import ClassifierRM

Instrument = Callable[..., Evidence]

_GRID = Reading("components", ("direction", "component"), site="component")


@dataclass(frozen=True)
class Spec:
    """One instrument, run in one way.

    Attributes
    ----------
    name : str
        As an audit calls it.
    instrument : callable
        ``instrument(signal, pairs, **options) -> Evidence``.
    reading : Reading
    label : str
        Of the row in which a rule should be found, to be filled in with the places of an organism
        (see :class:`~reward_lens.organisms.Organism`) and ``depth``, the one after its layer.
    site : str, optional
        Which of the places that row is of.
    truth : str, optional
        Which of the organism's truths the row's interval should hold.
    fixed : mapping
        Options that make it this way of running the instrument.
    follows_grid : bool
        Follow the components that the organism's patch grid shows as the largest, where it was run.
    """

    name: str
    instrument: Instrument
    reading: Reading
    label: str
    site: str | None = None
    truth: str | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    follows_grid: bool = False

    def run(
        self,
        signal: ClassifierRM,
        pairs: Pairs,
        found: Mapping[str, Evidence],
        **options: Any,
    ) -> Evidence:
        """Run it as a user or an audit does.

        Parameters
        ----------
        found : mapping of str to Evidence
            What was measured on the same signal before, by name.
        """
        more = dict(self.fixed)
        if self.follows_grid and "patch_grid" in found and "senders" not in options:
            more["senders"] = largest_effects(found["patch_grid"], TOP)
        return self.instrument(signal, pairs, **more, **options)

    def place(self, places: Mapping[str, str]) -> str:
        """Label of the row in which a rule should be found; nothing if it has no such place."""
        if self.site is not None and not places[self.site]:
            return ""
        return self.label.format(**places, depth=int(places["layer"]) + 1)


#: Every instrument that can be calibrated, in the order in which they run.
SPECS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec(
            "lens",
            lens,
            Reading("curve", ("depth",), effect="mean_margin", where={"reading": "frozen"},
                    step="depth"),
            "{depth}",
        ),
        Spec("attribution", attribution, Reading("writes", ("write",), site="write"),
             "{component}", "component", "direct"),
        Spec("attribution_heads", attribution, Reading("writes", ("write",), site="write"),
             "{head}", "head", "head", {"by": "head"}),
        Spec("patch_grid", patch_grid, _GRID, "noise {cause}", "cause", "total"),
        Spec("patch_grid_heads", patch_grid, _GRID, "noise {head}", "head", "total",
             {"by": "head"}),
        Spec(
            "path_effects",
            path_effects,
            Reading("paths", ("direction", "sender", "receiver"), site="sender"),
            "noise {cause} {receiver}",
            "cause",
            "path",
            follows_grid=True,
        ),
        Spec("attribution_patching", attribution_patching, _GRID, "noise {cause}", "cause",
             "total"),
    )
}  # fmt: skip


def named_specs(names: tuple[str, ...]) -> list[Spec]:
    """Specs by name, in the order in which they run.

    Raises
    ------
    CapabilityError
        If one cannot be calibrated, or none is named; says which can.
    """
    wrong = [name for name in names if name not in SPECS]
    if wrong or not names:
        raise CapabilityError(
            f"{repr(wrong[0]) if wrong else 'no instrument'}: what can be calibrated is "
            f"{', '.join(SPECS)}"
        )
    return [spec for name, spec in SPECS.items() if name in names]
