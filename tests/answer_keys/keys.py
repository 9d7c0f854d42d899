"""The table instrument × answer key: what each reads, within which tolerance, where it must fail.

Run as a script this prints the table as markdown.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from reward_lens.instruments.gradient_patching import attribution_patching
from reward_lens.instruments.patching_grid import patch_grid
from reward_lens.instruments.paths import path_effects
from reward_lens.instruments.write_attribution import attribution
from reward_lens.organisms import ANSWER_KEYS

#: In reward units, for doses of 1: what float32 leaves of a value, and what the engine may add.
TOLERANCE = 1e-5
NONE = float("nan")  # no value on paper


def mistakes(found, expected, names, tolerance):
    """What is wrong, by name: largest difference over pairs.

    Parameters
    ----------
    found, expected : ndarray, [pair, name]
        Where the expected value is NaN there is none on paper. A NaN that was found is wrong.
    """
    known = ~np.isnan(expected)
    gap = np.where(known, np.abs(found - np.nan_to_num(expected)), 0.0)
    gap = np.where(np.isnan(gap), np.inf, gap).max(0)
    return {name: float(g) for name, g in zip(names, gap, strict=True) if g > tolerance}


FORMS = {"rule": {}, "null": {"dose": 0.0}, "not tied": {"tied": False}}


@functools.cache
def made(name, form="rule"):
    """An answer key of four pairs; made once."""
    return ANSWER_KEYS[name](n=4, **FORMS[form])


@functools.cache
def measured(instrument, key, **options):
    """An instrument's evidence on a key; measured once."""
    return instrument(key.signal, key.pairs, **options)


Found = tuple[list[str], np.ndarray]  # names, and values [pair, name]


def _by(instrument, key, dim, chosen, **options) -> Found:
    """Components and heads, one after the other."""
    names, values = [], []
    for by in ("component", "head"):
        part = measured(instrument, key, by=by, **options).value.sel(chosen)
        keep = [n for n in map(str, part[dim].values)
                if _HEAD.fullmatch(n) or (by == "component" and _WRITE.fullmatch(n))]  # fmt: skip
        names += keep
        values.append(part.transpose("pair", dim).sel({dim: keep}).values)
    return names, np.concatenate(values, axis=1)


_HEAD, _WRITE = re.compile(r"L\d+\.H\d+"), re.compile(r"embed|L\d+\.(attn|mlp)_out")


def _attribution(key) -> Found:
    return _by(attribution, key, "write", {"side": "margin"})


def _patching(direction, **options):
    chosen = {"quantity": "effect", "direction": direction}
    return lambda key: _by(patch_grid, key, "component", chosen, **options)


def _gradients(direction, **options):
    chosen = {"quantity": "estimate", "direction": direction}
    return lambda key: _by(attribution_patching, key, "component", chosen, sample=0, **options)


def _direct_paths(direction):
    def run(key) -> Found:
        layers = range(key.signal.meta.n_layers)
        names = ["embed", *(f"L{k}.{w}_out" for k in layers for w in ("attn", "mlp"))]
        names = tuple(dict.fromkeys([*names, *key.planted, "L0.H0", "L1.H3"]))
        ev = measured(path_effects, key, senders=names, receivers="readout")
        part = ev.value.sel(quantity="effect", direction=direction, receiver="readout")
        return list(names), part.transpose("pair", "sender").values

    return run


@dataclass(frozen=True)
class Instrument:
    """One way to run an instrument, and the reading of an answer key that it must give."""

    label: str
    reading: str
    run: Callable[..., Found]
    suffix: str = ""  # " -> readout" where the reading is of paths


INSTRUMENTS = [
    Instrument("attribution", "attribution", _attribution),
    Instrument("patch_grid noise", "noise", _patching("noise")),
    Instrument("patch_grid denoise", "denoise", _patching("denoise")),
    Instrument("patch_grid zero", "zero", _patching("ablation", ablation="zero")),
    Instrument("attribution_patching noise", "gradient noise", _gradients("noise")),
    Instrument("attribution_patching denoise", "gradient denoise", _gradients("denoise")),
    Instrument("path_effects noise", "noise path", _direct_paths("noise"), " -> readout"),
    Instrument("path_effects denoise", "denoise path", _direct_paths("denoise"), " -> readout"),
]
#: The same at all tokens, where the table would only repeat what is above.
EVERYWHERE = [
    Instrument(f"{name}, all tokens", f"{reading} everywhere", run)
    for name, reading, run in (
        ("patch_grid noise", "noise", _patching("noise", positions="all")),
        ("patch_grid denoise", "denoise", _patching("denoise", positions="all")),
        ("attribution_patching noise", "gradient noise", _gradients("noise", positions="all")),
        ("attribution_patching denoise", "gradient denoise",
         _gradients("denoise", positions="all")),
    )
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One component of one key, for the first pair and a dose of 1, written out by hand.

    Attributes
    ----------
    does : float
        What the component does to the margin as it was built: for one that feeds others all that
        comes of it; for one that is repaired what it writes itself.
    reads : tuple of float
        What each of INSTRUMENTS gives, in their order.
    fails : str
        One letter for each: ``x`` where it is supposed to miss what the component does.
    """

    key: str
    component: str
    does: float
    reads: tuple[float, ...]
    fails: str

    def reading(self, label: str) -> float:
        return self.reads[[i.label for i in INSTRUMENTS].index(label)]


def _same(key, component, does):
    return Row(key, component, does, (does,) * 8, "........")


# The first pair: "good" (0.5) against "poor" (0.125), and "please" against "today".
_Q = 0.375
_EMBED = _Q + 0.375 * 1.5 + 2.125 * 1.5 / 8  # linear: itself, into the MLPs, into the mean
TABLE = [
    Row("linear", "embed", _EMBED,
        (_Q, _EMBED, _EMBED, NONE, _EMBED, _EMBED, _Q, _Q), "x.....xx"),
    _same("linear", "L0.H2", 1.0 * 2.5 / 8),
    _same("linear", "L1.mlp_out", -0.375 * 1.5),
    Row("neuron", "embed", _Q + 1,
        (_Q, _Q + 1, _Q + 1, NONE, _Q + 2, _Q, _Q, _Q), "x...xxxx"),
    _same("neuron", "L1.mlp_out", 1.0),
    _same("head", "embed", _Q),
    _same("head", "L1.H2", 1.0),
    _same("spread", "L0.H1", 0.25),
    _same("spread", "L2.H2", 0.25),
    _same("spread", "L0.attn_out", 0.5),
    Row("two hops", "L0.H1", 1.0, (0, 1, 1, 1, 2, 0, 0, 0), "x...xxxx"),
    _same("two hops", "L2.mlp_out", 1.0),
    Row("saturated softmax", "L0.mlp_out", 1.0, (0, 1, 1, 1, 0, 0, 0, 0), "x...xxxx"),
    _same("saturated softmax", "L1.H2", 1.0),
    Row("self-repair", "L0.H1", 1.0, (1, 0.25, 0.25, 0.25, 1, -0.5, 1, 1), ".xxx.x.."),
    _same("self-repair", "L2.mlp_out", -0.75),
]  # fmt: skip
# Ablating the embedding takes away what holds the norms still.
TABLE = [
    replace(r, reads=(*r.reads[:3], NONE, *r.reads[4:])) if r.component == "embed" else r
    for r in TABLE
]

#: Key, sender, receiver -> noise and denoise at the read token, for the first pair.
PATHS = {
    ("linear", "embed", "L0.mlp_in"): (0.75 * 1.5, 0.75 * 1.5),
    ("linear", "embed", "L1.H0.v"): (0.25 * 1.5 / 8, 0.25 * 1.5 / 8),
    ("linear", "L0.mlp_out", "L1.mlp_in"): (0, 0),
    ("neuron", "embed", "L1.mlp_in"): (1, 1),
    ("two hops", "L0.H1", "L2.mlp_in"): (1, 1),
    ("two hops", "L0.H1", "L1.attn_in"): (0, 0),
    ("two hops", "L0.H1", "readout"): (0, 0),
    ("two hops", "L2.mlp_out", "readout"): (1, 1),
    ("saturated softmax", "L0.mlp_out", "L1.H2.q"): (1, 1),
    ("saturated softmax", "L0.mlp_out", "L1.H2.k"): (0, 0),
    ("saturated softmax", "L0.mlp_out", "L1.H2.v"): (0, 0),
    ("saturated softmax", "L0.mlp_out", "readout"): (0, 0),
    ("self-repair", "L0.H1", "readout"): (1, 1),
    ("self-repair", "L0.H1", "L2.mlp_in"): (-0.75, -0.75),
}


def as_markdown() -> str:
    """The table: ``✗`` stands where an instrument is supposed to miss what a component does."""
    labels = [i.label for i in INSTRUMENTS]
    lines = [
        "| key | component | does | " + " | ".join(labels) + " |",
        "|" + "---|" * (len(labels) + 3),
    ]
    for row in TABLE:
        cells = [
            "–" if np.isnan(v) else f"{v:.4g}{' ✗' if f == 'x' else ''}"
            for v, f in zip(row.reads, row.fails, strict=True)
        ]
        lines.append(f"| {row.key} | `{row.component}` | {row.does:.4g} | {' | '.join(cells)} |")
    lines += ["", "| key | sender | receiver | noise | denoise |", "|---|---|---|---|---|"]
    for (key, sender, receiver), (noise, denoise) in PATHS.items():
        lines.append(f"| {key} | `{sender}` | `{receiver}` | {noise:.4g} | {denoise:.4g} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_markdown())  # noqa: T201
