"""The section of causes: what exchanging activations between the sides of a pair does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from markupsafe import Markup

from reward_lens.evidence import Evidence
from reward_lens.report import figures
from reward_lens.report.causal_figures import MOST_MARKS, View, paired_bars, square_map, views
from reward_lens.report.numbers import Numbers
from reward_lens.report.parts import (
    MEAN_INTERVALS,
    Cell,
    Figure,
    Part,
    Section,
    Table,
    labels,
    traced_rows,
)
from reward_lens.report.subset_rows import SubsetRows
from reward_lens.wording import counted

#: The rows of a table of agreement that speak of every pair.
ALL_PAIRS = "all pairs"
#: Components, heads or paths that a figure or table shows; the evidence file has all.
MOST = 24
#: Bars of a figure; the map beside it shows all components.
_BARS = 12
_TITLES = {"noise": "Noise: lost of the margin", "denoise": "Denoise: gained of it"}
_EFFECT = {"pairs": "d", "mean": ".3g", "low": ".3g", "high": ".3g", "mean_size": ".3g",
           "share_of_margin": ".1%"}  # fmt: skip
_EFFECT_HEAD = ["pairs", "mean (reward)", "low", "high", "mean size", "share of margin"]


def causes(evidence: Mapping[str, Evidence], number: Numbers) -> Section | None:
    """The section, with a part for every causal instrument there is evidence of."""
    makers = (_components, _heads, _views, _paths, _estimates, _doses)
    parts = [part for make in makers if (part := make(evidence, number)) is not None]
    if not parts:
        return None
    text: list[Cell] = []
    if "patch_grid" in evidence:
        where = evidence["patch_grid"].provenance.parameters["positions"]
        tokens = "the token that the head reads" if where == "final" else f"the {where} tokens"
        text = [
            f"The two sides of a pair exchange one activation at {tokens}, and the pair is scored "
            f"again. Noise: the chosen side takes the rejected side's activation, and the effect "
            f"is what of the margin is lost. Denoise: the rejected side takes the chosen side's, "
            f"and the effect is what is gained. They differ where components act together. "
            f"Exchanging everything moves the whole margin; single effects need not add up to it."
        ]
    return Section("causes", "What causes the preference?", text, parts=parts)


def _largest(table: pd.DataFrame, key: str, most: int) -> list[str]:
    """Labels of the largest effects of either direction, in the order of the table."""
    sizes = table.groupby(key, sort=False)["mean_size"].max()
    return sizes[sizes.rank(method="first", ascending=False) <= most].index.tolist()


def _bars(table: pd.DataFrame, names: list[str], title: str) -> Markup:
    """Both directions of some components."""
    series = []
    for direction in _directions(table):
        rows = table[table["direction"] == direction]
        values = {
            name: [float(v) for v in row]
            for name, *row in rows[["component", "mean", "low", "high"]].itertuples(index=False)
        }
        series.append([figures.Row(name, *values[name]) for name in names])
    shown = [_title(d) for d in _directions(table)]
    x_label = "mean effect on the margin (reward)"
    if len(series) == 1:
        return figures.rows(series[0], x_label, f"{title}, {shown[0]}")
    return paired_bars(series[0], series[1], (shown[0], shown[1]), x_label, title)


def _title(direction: str) -> str:
    return _TITLES.get(direction, direction)


def _directions(table: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(table["direction"]))


def _effects(
    number: Numbers, name: str, table: pd.DataFrame, key: str, words: list[str],
    which: list[int], title: str,
) -> Table:  # fmt: skip
    """A table of mean effects; router flips and notes only where there are any."""
    columns, head = dict(_EFFECT), list(_EFFECT_HEAD)
    if "mean_flips" in table and table["mean_flips"].any():
        columns["mean_flips"] = ".2g"
        head.append("router choices changed")
    notes = ["note"] if table["note"].astype(bool).any() else []
    rows = traced_rows(number, name, table, key, which, [*words, *notes], columns)
    if notes:  # a note stands at the end of its row
        at = len(words)
        rows = [[*row[:at], *row[at + 1 :], row[at]] for row in rows]
    return Table(title, [*words, *head, *notes], rows)


def _of(count: int, total: int, what: str) -> str:
    return f"all {total} {what}" if count == total else f"the {count} largest of {total} {what}"


def _components(evidence: Mapping[str, Evidence], number: Numbers) -> Part | None:
    e = evidence.get("patch_grid")
    if e is None:
        return None
    table = e.tables["components"]
    names, total = _largest(table, "component", MOST), table["component"].nunique()
    which = np.flatnonzero(table["component"].isin(names)).tolist()
    what = _of(len(names), total, "components")
    drawn = _largest(table, "component", _BARS)
    pairs = e.tables["pairs"]
    text: list[Cell] = []
    if pairs["degenerate"].any():
        text.append(f"{int(pairs['degenerate'].sum())} of {len(pairs)} pairs have no margin to "
                    f"speak of; they have effects and no shares.")  # fmt: skip
    return Part(
        "By component", text,
        [Figure(_bars(table, drawn, "Effect of exchanging each component"),
                f"Mean effect on the margin of exchanging one component, "
                f"{_of(len(drawn), total, 'components')}. Filled: noise; outlined: denoise; "
                f"whiskers are 95 % intervals.",
                labels(e, intervals=MEAN_INTERVALS), ("patch_grid",)), _map(e, table)],
        [_effects(number, "patch_grid", table, "components", ["direction", "component"], which,
                  f"Effects of {what}")],
    )  # fmt: skip


def _map(e: Evidence, table: pd.DataFrame) -> Figure:
    """The whole grid: a row for every layer, a column for every sublayer and direction."""
    place = table["component"].str.extract(r"^L(?P<layer>\d+)\.(?P<write>\w+)$")
    cells = table.assign(
        layer=place["layer"],
        column=place["write"].str.removesuffix("_out") + " " + table["direction"],
    ).dropna(subset="layer")
    grid = cells.pivot(index="layer", columns="column", values="share_of_margin")
    grid = grid.loc[cells["layer"].unique(), cells["column"].unique()]
    svg = square_map(
        grid.to_numpy(dtype=float), [f"layer {k}" for k in grid.index], list(grid.columns),
        "Share of the margin by layer and sublayer", "sublayer"
    )  # fmt: skip
    return Figure(
        svg, "The same as a map: every layer's sublayers, in both directions, as a share of the "
        "margin signed towards its sign. The area of a square is the size.",
        labels(e, units="share"), ("patch_grid",)
    )  # fmt: skip


def _heads(evidence: Mapping[str, Evidence], number: Numbers) -> Part | None:
    name = "patch_grid_heads"
    e = evidence.get(name)
    if e is None:
        return None
    table = e.tables["components"]
    place = table["component"].str.extract(r"L(\d+)\.H(\d+)").astype(int)
    shape = (int(place[0].max()) + 1, int(place[1].max()) + 1)
    drawn = []
    for direction in _directions(table):
        rows = table["direction"] == direction
        shares = np.full(shape, np.nan)
        shares[place[0][rows], place[1][rows]] = table["share_of_margin"][rows]
        svg = square_map(
            shares, [f"layer {k}" for k in range(shape[0])], [f"H{k}" for k in range(shape[1])],
            f"Share of the margin by head, {direction}", "head"
        )  # fmt: skip
        drawn.append(Figure(
            svg, f"{_title(direction)}, by head, as a share of the margin signed towards its sign. "
            f"The area of a square is the size.", labels(e, units="share"), (name,)
        ))  # fmt: skip
    names = _largest(table, "component", MOST // 2)
    which = np.flatnonzero(table["component"].isin(names)).tolist()
    what = _of(len(names), table["component"].nunique(), "heads")
    return Part("By attention head", [], drawn, [
        _effects(number, name, table, "components", ["direction", "component"], which,
                 f"Effects of {what}")
    ])  # fmt: skip


def _views(evidence: Mapping[str, Evidence], number: Numbers) -> Part | None:
    if "compare_views" not in evidence:
        return None
    text: list[Cell] = [
        "What a component writes along the head (observational) is not what exchanging it does "
        "(causal): a component that only feeds others has an effect and writes nothing, one that "
        "others make up for writes much and has none. Far from the dashed line, one view must not "
        "be read as the other."
    ]
    drawn: list[Figure] = []
    tables: list[Table] = []
    for name, what in (("compare_views", "components"), ("compare_views_heads", "heads")):
        if (e := evidence.get(name)) is None:
            continue
        table, agreement = e.tables["components"], e.tables["agreement"]
        said = [
            Markup("{} {} (95 % interval {} to {})").format(
                agreement["direction"].iloc[k],
                *(number(name, f"table/agreement/{k}/{c}", ".2f") for c in ("mean", "low", "high")),
            )
            for k in np.flatnonzero(agreement["subset"] == ALL_PAIRS).tolist()
        ]
        text.append(Markup("Mean rank correlation of the two views over the {} of a pair: {}.")
                    .format(what, Markup("; ").join(said)))  # fmt: skip
        drawn.append(Figure(
            views(table["component"].unique().tolist(), _both(table),
                  "attribution, observational (mean, reward)",
                  "patching, causal (mean, reward)",
                  f"Attribution against patching, {what}"),
            f"Each mark is one of the {what}: across, what it writes; up, what exchanging it does. "
            f"Dots: noise; squares: denoise; dashed: equal.{_most(table)}",
            labels(e, units="reward", intervals="rank correlation with interval in the text"),
            (name,),
        ))  # fmt: skip
        if name == "compare_views":
            tables = [_agreement(number, name, agreement, what)]
    return Part("Does what writes the margin cause it?", text, drawn, tables)


def _most(table: pd.DataFrame) -> str:
    count = table["component"].nunique()
    return f" The {MOST_MARKS} farthest out of {count}." if count > MOST_MARKS else ""


def _agreement(number: Numbers, name: str, table: pd.DataFrame, what: str) -> Table:
    shown = SubsetRows.of(table, "subset", table["subset"] == ALL_PAIRS)
    columns = {"pairs": "d", "undefined": "d", "mean": ".2f", "low": ".2f", "high": ".2f",
               "of_mean_effects": ".2f"}  # fmt: skip
    rows = traced_rows(
        number, name, table, "agreement", shown.which, ["direction", "subset"], columns
    )
    head = ["direction", "subset", "pairs", "undefined", "rank correlation", "low", "high",
            "of mean effects"]  # fmt: skip
    return Table(f"Rank correlation over {what}, by subset{shown.more}", head, rows)


def _both(table: pd.DataFrame) -> list[View]:
    found = []
    for direction in _directions(table):
        rows = table[table["direction"] == direction]
        columns = (rows[c].to_numpy(dtype=float) for c in ("attribution", "patching"))
        found.append(View(direction, *columns))
    return found


def _paths(evidence: Mapping[str, Evidence], number: Numbers) -> Part | None:
    e = evidence.get("path_effects")
    if e is None:
        return None
    table = e.tables["paths"]
    senders = table["sender"].unique().tolist()
    shown = _largest(table, "receiver", MOST)
    drawn = []
    for direction in _directions(table):
        rows = table[table["direction"] == direction]
        grid = rows.pivot(index="receiver", columns="sender", values="share_of_margin")
        svg = square_map(
            grid.loc[shown, senders].to_numpy(dtype=float), shown, senders,
            f"Share of the margin by path, {direction}", "receiver"
        )  # fmt: skip
        drawn.append(Figure(
            svg, f"{_title(direction)}, by path, as a share of the margin: columns send, rows "
            f"receive; a dash is no path. The row readout is the direct path, past all other "
            f"components.",
            labels(e, units="share"), ("path_effects",)
        ))  # fmt: skip
    order = np.argsort(-np.nan_to_num(table["mean_size"].to_numpy(dtype=float)), kind="stable")
    which = [int(k) for k in order if table["pairs"].iloc[k] > 0][:MOST]
    real = int((table["pairs"] > 0).sum())
    nodes = e.tables["nodes"]
    return Part(
        "Along which paths?",
        ["Only one receiver sees the sender's exchanged activation; it and all that comes after it "
         "are recomputed, everything else stays as it was. The senders are the components with "
         "the largest effects of their own. Paths need not add up to the sender's own effect."],
        drawn,
        [_effects(number, "path_effects", nodes, "nodes", ["direction", "sender"],
                  list(range(len(nodes))), "The senders' own effects, along all paths"),
         _effects(number, "path_effects", table, "paths", ["direction", "sender", "receiver"],
                  which, f"Effects of {_of(len(which), real, 'paths')}")],
    )  # fmt: skip


def _estimates(evidence: Mapping[str, Evidence], number: Numbers) -> Part | None:
    e = evidence.get("attribution_patching")
    if e is None or "agreement" not in e.tables:
        return None
    table = e.tables["agreement"]
    columns = {"pairs": "d", "rank_correlation": ".2f", "low": ".2f", "high": ".2f",
               "undefined": "d", "of_means": ".2f", "worst_gap": ".0%"}  # fmt: skip
    head = ["direction", "pairs", "rank correlation", "low", "high", "undefined", "of mean effects",
            "worst gap"]  # fmt: skip
    rows = traced_rows(number, "attribution_patching", table, "agreement", list(range(len(table))),
                       ["direction"], columns)  # fmt: skip
    return Part(
        "Would gradients have said the same?",
        ["Attribution patching estimates every effect from one backward pass. Held against the "
         "exact effects on some of the pairs: the rank correlation over components inside a pair, "
         "with a 95 % interval, and the largest gap as a share of the largest exact effect. Where "
         "they agree, gradients are a cheap screen on this model; where not, only patching is."],
        tables=[Table("Estimates by gradient against exact effects", head, rows, open=True)],
    )  # fmt: skip


def _doses(evidence: Mapping[str, Evidence], number: Numbers) -> Part | None:
    e = evidence.get("concept_dose_response")
    if e is None:
        return None
    name, table = "concept_dose_response", e.tables["curve"]
    doses = table["dose"].to_numpy(dtype=float)

    def column(key: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return table[key].to_numpy(dtype=float)

    nothing = np.full(len(doses), np.nan)
    lines = [figures.Curve("concept", doses, column("change"), column("low"), column("high"))]
    if "band_low" in table:
        band = (column("band_low") + column("band_high")) / 2
        lines.append(figures.Curve("random directions (middle and 95 % band)", doses, band,
                                   column("band_low"), column("band_high")))  # fmt: skip
    else:
        lines.append(figures.Curve("tangent at 0", doses, column("predicted"), nothing, nothing))
    site = e.tables["concept"]["site"].iloc[0]
    values = {c: number(name, f"table/slope/0/{c}") for c in ("slope", "low", "high", "predicted")}
    cosine, reach = (number(name, f"table/concept/0/{c}") for c in ("cosine", "linear_range"))
    return Part(
        "How does it answer to the concept?",
        [Markup("At {} one dose changes the score by {} reward (95 % interval {} to {}; the "
                "gradient says {}), linear up to a dose of {}. The concept's cosine with the "
                "effective reward direction there is {}.").format(
            site, values["slope"], values["low"], values["high"], values["predicted"], reach,
            cosine)],
        [Figure(figures.curves(lines, "dose (steps of the concept)", "change of the score (reward)",
                               "Change of the score by dose of the concept"),
                "Mean change of the score, bands are 95 % intervals. Solid: the concept; dashed: "
                "random directions of the same length.",
                labels(e, intervals=MEAN_INTERVALS,
                       n=f"n = {counted(e.value.sizes['item'], 'item')}"),
                (name,))],
    )  # fmt: skip
