"""Every evidence shows itself: a short repr, HTML, a figure that makes sense, a tidy table."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from families import PAIRS, make_signal
from matplotlib import pyplot as plt

import reward_lens as rl
from reward_lens.comparing import compare_models
from reward_lens.errors import EvidenceError
from reward_lens.evidence import (
    Evidence,
    EvidenceStore,
    GaugeStatus,
    Interval,
    Provenance,
    Subject,
    Tier,
    Units,
)
from reward_lens.evidence.intervals import cluster_t
from reward_lens.geometry import effective_angle, fit_frame, state_alignment
from reward_lens.organisms import make_gauge_twin

MOST_BYTES = 20_000
MANY = [(f"Add {k} and {7 * k}.", f"It is {8 * k}.", f"I would say {k}.") for k in range(60)]
LABELLED = [{"prompt": p, "response": r, "label": y} for p, a, b in PAIRS
            for y, r in ((1, a), (0, b))]  # fmt: skip
LONGER = ("Tell me of the sea.", "It is wide. It is blue. It is deep.", "It is dry. It is red.")
ROWS = [
    {"prompt": p, "chosen": a, "rejected": b, "subset": "llmbar-natural"}
    for p, a, b in (*PAIRS, LONGER)
]
#: What there is to show: all that an audit measures, and what it does not.
IN_AUDIT = (
    "conformance", "preference", "margin_distribution", "reliability_curve", "worst_errors",
    "bias_battery", "style_accuracy", "lens", "attribution",
    "attribution_heads", "patch_grid", "patch_grid_heads", "compare_views", "compare_views_heads",
    "path_effects", "attribution_patching", "token_map", "token_map_causal", "source_attribution",
)  # fmt: skip
BESIDE = {
    "section_accuracy": lambda s, p: rl.section_accuracy(rl.preference(s, p)),
    "token_curves": lambda s, p: rl.token_curves(s, p),
    "token_map_sentences": lambda s, p: rl.token_map(s, p, unit="sentence"),
    "patch_grid_aligned": lambda s, p: rl.patch_grid(s, p, positions="aligned"),
    "patch_grid_noise": lambda s, p: rl.patch_grid(s, p, direction="noise", layers=[1]),
    "patch_grid_layers": lambda s, p: rl.patch_grid(s, p, by="layer_position"),
    "patch_grid_tokens": lambda s, p: rl.patch_grid(s, p, by="layer_position", positions="aligned"),
    "concept_dose_response": lambda s, p: rl.concept_dose_response(s, p, concept=LABELLED),
    "prompt_snr": lambda s, p: rl.prompt_snr(s, p),
    "best_of_n": lambda s, p: rl.best_of_n(s, [{"prompt": a, "chosen": b, "rejected": [c, b + "!"]}
                                               for a, b, c in PAIRS]),
    "compare": lambda s, p: rl.compare(s, make_signal("qwen2"), p),
    "effective_angle": lambda s, p: effective_angle(s, make_gauge_twin(s), MANY[:20]),
    "state_alignment": lambda s, p: _aligned(s),
    "objective_geometry": lambda s, p: rl.objective_geometry(_rows(), p),
    "row_mean": lambda s, p: rl.lens(_rows(), p),
    "intervened": lambda s, p: _intervened(s, p),
}  # fmt: skip
SELECT_FIRST = {
    "token_map",
    "token_map_causal",
    "token_map_sentences",
    "token_curves",
    "source_attribution",
}


def _rows():
    return make_signal("llama", num_labels=3)


def _aligned(signal):
    twin = make_gauge_twin(signal)
    frame = fit_frame(signal, twin, MANY[:40], dimensions=3)
    return state_alignment(signal, twin, MANY[40:], frame)


def _intervened(signal, pairs):
    with signal.intervene(rl.ablate("L1.H2")) as changed:
        return rl.lens(changed, pairs)


@pytest.fixture(scope="module")
def audit():
    return rl.audit(make_signal("llama"), ROWS, biases=2)


@pytest.fixture(scope="module")
def found(audit):
    signal, pairs = make_signal("llama"), audit.pairs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a concept fitted on so little
        return {**audit.evidence, **{name: make(signal, pairs) for name, make in BESIDE.items()}}


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def test_nothing_that_is_measured_is_forgotten(audit):
    assert set(audit.evidence) == set(IN_AUDIT)
    shown = {*IN_AUDIT, *BESIDE}
    own = {"audit", "ablate", "replace", "steer", "fit_concept", "from_tiny", "load_pairs",
           "load_signal", "run_conformance", "wrap_hf_model", "calibrate",
           "load_choices"}  # fmt: skip
    assert {n for n in rl.__all__ if n[0].islower()} - own <= shown


class _Tags(HTMLParser):
    """Fails unless every tag is closed, in order; keeps the text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.text = [], ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in {"div", "strong", "table", "tr", "th", "td", "details", "summary", "code"}
        style = dict(attrs).get("style", "")
        assert "color" not in style
        assert "background" not in style
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f"{data} "


@pytest.mark.parametrize("name", [*IN_AUDIT, *BESIDE])
def test_html_is_whole_short_and_says_what_is_needed(found, name):
    e = found[name]
    page = e._repr_html_()
    assert len(page.encode()) < MOST_BYTES
    said = _Tags(page).text
    facts, _, receipt = said.partition("receipt")
    for word in (e.instrument, e.tier.value, e.gauge.value, e.units.value, e.trust.name.lower()):
        assert word in facts
    assert " × ".join(f"{n} {d}" for d, n in e.value.sizes.items()) in facts
    assert str(e.subject.notes.get("source", e.subject.signal)) in facts
    for i in [i for i in e.uncertainty if np.isfinite(i.low)][:3]:
        assert f"{i.low:.4g} to {i.high:.4g}" in facts
    assert "measured" in receipt
    for table in e.tables:
        assert f"{table} (" in facts


@pytest.mark.parametrize("name", [*IN_AUDIT, *BESIDE])
def test_the_repr_is_a_few_lines(found, name):
    e = found[name]
    lines = repr(e).splitlines()
    assert len(lines) <= 8
    assert all(len(line) < 160 for line in lines)
    assert f"{e.instrument} v1, {e.tier.value}" in lines[1]
    assert f"gauge {e.gauge.value}, units {e.units.value}, trust exploratory" in lines[2]


@pytest.mark.parametrize("name", [*IN_AUDIT, *BESIDE])
def test_the_table_has_every_entry_and_says_its_units(found, name):
    e = found[name]
    table = e.to_dataframe()
    assert len(table) == e.value.size
    assert {*e.value.dims, *e.value.coords, e.value.name} == set(table.columns)
    np.testing.assert_array_equal(table[e.value.name].to_numpy(), e.value.values.ravel())
    assert table.attrs["units"] == e.units.value
    assert table.attrs["id"] == e.id
    assert set(table.attrs["quantity_units"]) == set(e.quantity_units)


@pytest.mark.parametrize("name", [*IN_AUDIT, *BESIDE])
def test_the_figure_has_labels_numbers_and_what_it_rests_on(found, name):
    e = found[name]
    select = {}
    if name in SELECT_FIRST:
        with pytest.raises(EvidenceError, match=r"select first, e.g. ev.plot\(pair="):
            e.plot()
        select = {"pair": e.value["pair"].values[0]}
    axes = np.atleast_1d(e.plot(**select))
    figure = axes[0].figure
    title = figure.get_suptitle()
    assert title.startswith(f"{e.instrument}: {e.value.name}")
    said = " ".join(title.split())
    for word in (e.tier.value, f"gauge {e.gauge.value}", "trust exploratory", "readout"):
        assert word in said
    assert ("legacy row mean of 3 objectives" in said) == (name == "row_mean")
    for ax in axes:
        assert ax.get_xlabel()
        assert _has_numbers(ax)
    assert axes[0].get_ylabel()
    units = {e.units.value, *(u.value for u in e.quantity_units.values())}
    labels = [t.get_text() for ax in figure.axes for t in (ax.xaxis.label, ax.yaxis.label)]
    known = units | {str(e.value.attrs.get("units", "yes or no"))}
    assert any(unit in label for label in labels for unit in known)
    figure.canvas.draw()


def _has_numbers(ax):
    """Whether something finite is drawn beside the line at zero."""
    points = [np.asarray(line.get_xydata(), float) for line in ax.get_lines() if _is_data(ax, line)]
    cells = [np.asarray(image.get_array().filled(np.nan)).ravel() for image in ax.get_images()]
    drawn = [p.sum(axis=1) for p in points] + cells
    return bool(ax.patches) or any(np.isfinite(d).any() for d in drawn)


def _is_data(ax, line):
    return line.get_transform() not in (ax.get_xaxis_transform("grid"),
                                        ax.get_yaxis_transform("grid"))  # fmt: skip


# Made by hand: what is drawn is known.


def make(values, dims, coords=None, **more):
    value = xr.DataArray(values, dims=dims, coords=coords, name="thing")
    given = {"version": "1", "tier": Tier.CAUSAL, "gauge": GaugeStatus.INVARIANT,
             "units": Units.REWARD, "instrument": "made"}  # fmt: skip
    return Evidence(
        value, subject=Subject("s", "d", "reward"),
        provenance=Provenance({}, "float32", "cpu", "eager"), **(given | more),
    )  # fmt: skip


def by_pair(n=6, names=40):
    values = np.random.default_rng(0).normal(size=(n, names)) * np.arange(names)
    lineage = [f"l{k // 2}" for k in range(n)]
    coords = {"pair": [f"p{k}" for k in range(n)], "lineage": ("pair", lineage),
              "component": [f"C{k}" for k in range(names)]}  # fmt: skip
    return make(values, ("pair", "component"), coords)


def test_means_and_bars_are_those_over_lineages():
    e = by_pair(names=3)
    ax = e.plot()
    points = ax.get_lines()[0].get_xdata()
    wanted = [cluster_t("m", e.value.values[:, k], e.value["lineage"].values) for k in range(3)]
    np.testing.assert_allclose(points, [i.estimate for i in wanted])
    (segments,) = (c.get_segments() for c in ax.collections)
    np.testing.assert_allclose([s[0][0] for s in segments], [i.low for i in wanted])
    np.testing.assert_allclose([s[1][0] for s in segments], [i.high for i in wanted])
    assert "mean over 6 pairs" in ax.figure.get_suptitle()
    assert "fewer than 15 lineages" in ax.figure.get_supxlabel()


def test_of_many_rows_the_largest_are_drawn_and_it_is_said():
    e = by_pair()
    ax = e.plot()
    drawn = [t.get_text() for t in ax.get_yticklabels()]
    largest = np.abs(e.value.mean("pair")).to_series().nlargest(20)
    assert drawn == list(largest.index)
    assert ax.get_ylabel() == "component (20 largest of 40)"


def test_a_pair_is_selected_and_named():
    e = by_pair(names=3)
    ax = e.plot(pair="p2")
    np.testing.assert_array_equal(ax.get_lines()[0].get_xdata(), e.value.sel(pair="p2"))
    assert "pair p2" in ax.figure.get_suptitle()
    assert "mean over" not in ax.figure.get_suptitle()


def test_it_is_drawn_where_it_is_told_to():
    _, ax = plt.subplots()
    assert by_pair(names=3).plot(ax=ax) is ax
    assert "causal · gauge invariant · trust exploratory" in ax.get_title()


def two_units():
    return make(
        [[1.0, 2.0], [0.1, 0.2]], ("quantity", "component"),
        {"quantity": ["effect", "share"], "component": ["A", "B"]},
        quantity_units={"share": Units.SHARE},
    )  # fmt: skip


def test_quantities_in_other_units_have_axes_of_their_own():
    both = two_units().plot()
    assert [ax.get_xlabel() for ax in both] == ["effect, reward units", "share"]
    _, ax = plt.subplots()
    with pytest.raises(EvidenceError, match="2 panels do not fit into one ax: effect, reward"):
        two_units().plot(ax=ax)
    assert two_units().plot(ax=ax, quantity="share").get_xlabel() == "share"
    assert two_units().plot(quantity="effect").get_xlabel() == "effect, reward units"
    assert two_units().plot(quantity=["share"]).get_xlabel() == "share"


def test_intervals_that_are_stated_are_drawn():
    i = Interval("acc[group=b]", 0.5, 0.4, 0.7, 0.9, 0.1, 9, 9, 9, "t")
    e = make([0.25, 0.5], ("group",), {"group": ["a", "b"]}, uncertainty=(i,))
    ax = e.plot()
    (segments,) = (c.get_segments() for c in ax.collections)
    assert [s[0][0] for s in segments] == pytest.approx([0.25, 0.4])  # none for the first
    assert [s[1][0] for s in segments] == pytest.approx([0.25, 0.7])
    assert ax.figure.get_supxlabel() == "bars: 90 % intervals (t)"


def test_one_number():
    e = make(0.5, (), uncertainty=(Interval("thing", 0.5, 0.4, 0.6, 0.9, 0.1, 9, 9, 9, "t"),))
    assert e.plot().get_lines()[0].get_xdata() == [0.5]
    assert e.to_dataframe().to_dict("list") == {"thing": [0.5]}


@pytest.mark.parametrize(
    ("e", "select", "said"),
    [
        (lambda: by_pair(), {"layer": 1}, "no dimension 'layer' to select; there are: pair, comp"),
        (lambda: by_pair(), {"pair": "q"}, "pair='q' is not there; there are 6: p0, p1, .*p5"),
        (
            lambda: make([np.nan, np.inf], ("i",)),
            {},
            r"nothing to draw: i \(2\), and none is a num",
        ),
        (lambda: make(np.empty(0), ("i",)), {}, r"nothing to draw: i \(0\)"),
        (lambda: make(["a"], ("i",)), {}, "thing is text"),
        (
            lambda: make(np.ones((2, 2, 2)), ("a", "b", "c")),
            {},
            r"a figure has two axes.*plot\(a=0",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_way_out(e, select, said):
    with pytest.raises(EvidenceError, match=said):
        e().plot(**select)
    assert plt.get_fignums() == []


def test_html_stays_short_whatever_was_measured():
    bad = "<&🙂\n" * 400
    names = [f"{bad}{k}" for k in range(300)]
    e = make(
        np.zeros((300, 300)), ("quantity", "pair"), {"quantity": names},
        tables={n: pd.DataFrame({"x": [1]}) for n in names},
        quantity_units=dict.fromkeys(names, Units.SHARE),
        uncertainty=tuple(Interval(n, 0.5, 0.4, 0.6, 0.9, 0.1, 9, 9, 9, bad, bad) for n in names),
    )  # fmt: skip
    e = replace(e, subject=Subject(bad, bad, bad, tuple(names), bad, dict.fromkeys(names, bad)),
                instrument=bad)  # fmt: skip
    page = e._repr_html_()
    assert len(page.encode()) < MOST_BYTES
    said = _Tags(page).text
    assert "more in .uncertainty" in " ".join(said.split())
    assert "more lines: .receipt() has them" in said
    assert "trust" in said
    assert len(repr(e).splitlines()) <= 8


def test_trust_is_asked_of_the_store(calibrated_store):
    (e, *_) = calibrated_store.find()
    named = e.standing.name
    assert f"trust {named}" in repr(e)
    assert named in _Tags(e._repr_html_()).text


# An audit.


def test_an_audit_is_a_table_of_its_evidence(audit):
    text = repr(audit)
    title, head, *rows = text.splitlines()
    assert title.startswith("<Audit of LlamaForSequenceClassification")
    assert "conformance passed, 5 pairs" in title
    assert head.split() == ["evidence", "n", "trust", "forwards"]
    assert [row.split()[0] for row in rows[: len(audit.evidence)]] == list(audit)
    lens = next(row for row in rows if row.split()[0] == "lens")
    cost = f"{audit['lens'].provenance.cost_forwards:.0f}"
    assert lens.split() == ["lens", "5", "pairs", "in", "4", "lineages", "exploratory", cost]
    assert len(text) < 3000
    said = _Tags(audit._repr_html_()).text.split()
    assert all(name in said for name in audit)


def test_an_audit_says_what_is_missing(audit):
    lacking = replace(audit, missing={f"i{k}": "why " * 90 for k in range(9)}, notes=("a", "b"),
                      left_out={"p": "long"}, not_offered={"paths": "no <heads>"})  # fmt: skip
    text = repr(lacking)
    assert "did not run: i0: why why" in text
    assert "did not run: and 5 more" in text
    assert "not offered: paths: no <heads>" in text
    assert "1 pair left out, .left_out; 2 notes, .notes" in text
    assert "no &lt;heads&gt;" in lacking._repr_html_()


def test_an_audit_as_a_frame_has_every_interval_once(audit):
    frame = audit.to_dataframe()
    every = [(name, i) for name, e in audit.evidence.items() for i in e.uncertainty]
    assert list(zip(frame["evidence"], frame["result"], strict=True)) == [
        (name, i.name) for name, i in every
    ]
    row = frame.set_index(["evidence", "result"]).loc[("preference", "accuracy")]
    accuracy = audit["preference"].interval("accuracy")
    assert (row["low"], row["high"], row["n"]) == (accuracy.low, accuracy.high, accuracy.n)
    assert (row["id"], row["trust"]) == (audit["preference"].id, "exploratory")


def test_a_comparison_shows_itself_as_an_audit_does(audit):
    signal = make_signal("llama")
    found = compare_models(signal, make_gauge_twin(signal), PAIRS, names=("one", "<two>"))
    title, _, *rows = repr(found).splitlines()
    assert title.startswith("<Comparison of one and <two>: conformance passed, ")
    assert [row.split()[0] for row in rows[: len(found.evidence)]] == list(found)
    assert "one and &lt;two&gt;" in found._repr_html_()
    assert set(found.to_dataframe()["evidence"]) <= set(found)
    with pytest.raises(KeyError, match="did you mean compare"):
        found["compared"]
    failed = {"a": ["score parity"], "b": []}

    class Failed(type(found)):
        failed_checks = failed

    shown = Failed(**{f.name: getattr(found, f.name) for f in fields(found)})
    assert "conformance FAILED" in repr(shown)
    assert "FAILED checks of a: score parity" in repr(shown)
    assert not shown.passed


def test_signals_pairs_and_stores_are_a_line_each(audit, tmp_path):
    signal = make_signal("llama")
    with EvidenceStore(tmp_path / "e.db") as store:
        shown = [signal, audit.pairs, store, make_gauge_twin(signal)]
        assert all(len(repr(x)) < 300 and "\n" not in repr(x) for x in shown)
