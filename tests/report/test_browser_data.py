"""The pairs of a page: every number is the evidence's, and what is left out of many is said."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from pair_kit import drawn, known, lens_of, map_of

import reward_lens as rl
from reward_lens.assets import asset
from reward_lens.data import Item, Pair, Pairs
from reward_lens.errors import EvidenceError
from reward_lens.report import browser_choice
from reward_lens.report.browser_choice import texts_of
from reward_lens.report.browser_data import Budgets, as_block, browser_data
from reward_lens.report.browser_json import size, unpacked
from reward_lens.report.numbers import Numbers, resolve
from reward_lens.report.pair_texts import pair_section


@pytest.fixture(scope="module")
def demo():
    """What an audit measures, of few pairs, on the demo model."""
    signal = rl.load_signal(asset("demo/model"))
    pairs = rl.load_pairs(asset("demo/pairs.jsonl")).sample(24, 1)
    short = sorted(range(24), key=lambda k: len(pairs[k].chosen.response))[:8]
    some = pairs.select(short)
    scores = rl.preference(signal, pairs)
    evidence = {
        "preference": scores,
        "worst_errors": rl.worst_errors(scores, pairs, 3),
        "lens": rl.lens(signal, pairs[:10]),
        "token_map": rl.token_map(signal, some, methods=["prefix", "gradient"]),
        "token_map_causal": rl.token_map(signal, some[:2], methods=["leave_one_out"]),
        "source_attribution": rl.source_attribution(signal, some),
    }
    return evidence, pairs


def parsed(*args, **options):
    return unpacked(as_block(browser_data(*args, **options)))


def test_every_written_number_is_the_evidences(demo):
    evidence, pairs = demo
    data = parsed(evidence, pairs)
    assert {p["id"] for p in data["pairs"]} == set(pairs.ids)
    checked = 0
    for pair in data["pairs"]:
        paths = [(c["path"], pair["n"][c["key"]]) for c in data["columns"]]
        paths += [(s["score"], pair["s"][s["key"]]) for s in data["sides"]]
        for whole, text in paths:
            name, _, rest = whole.replace("{k}", str(pair["k"])).partition("|")
            path, _, form = rest.rpartition("|")
            assert text == format(resolve(evidence[name], path), form)
            checked += 1
        margin = evidence["preference"].value.sel(side="margin", pair=pair["id"]).item()
        assert pair["r"]["margin"] == pytest.approx(margin, rel=1e-6)
    assert checked == 3 * len(pairs)


def test_curves_are_the_lens(demo):
    evidence, pairs = demo
    data = parsed(evidence, pairs)
    curves = data["curves"]
    assert curves["depths"] == evidence["lens"].value.sizes["depth"]
    there = [p for p in data["pairs"] if "c" in p]
    assert {p["id"] for p in there} == set(pairs[:10].ids)
    name, _, rest = curves["path"].partition("|")
    path, _, form = rest.rpartition("|")
    for pair in there:
        for reading in curves["readings"]:
            for depth, margin in enumerate(pair["c"][reading]):
                at = path.format(r=reading, id=pair["id"].replace("/", "%2F"), d=depth)
                assert format(margin, form) == format(resolve(evidence[name], at), form)


def test_token_maps_are_the_evidences(demo):
    evidence, pairs = demo
    data = parsed(evidence, pairs)
    maps = {m["key"]: m for m in data["maps"]}
    assert list(maps) == ["prefix", "source", "gradient", "causal"]
    columns = {"prefix": ("token_map", "prefix"), "gradient": ("token_map", "gradient"),
               "causal": ("token_map_causal", "leave_one_out")}  # fmt: skip
    mapped = {p["id"]: p["m"] for p in data["pairs"] if "m" in p}
    assert set(mapped) == set(evidence["token_map"].value["pair"].values)
    some = set(evidence["token_map_causal"].value["pair"].values)
    sources = evidence["source_attribution"].value.sum("layer")
    for pair, sides in mapped.items():
        for side, found in sides.items():
            wanted = {}
            for key, (name, column) in columns.items():
                table = evidence[name].tables["tokens"]
                rows = table[(table["pair"] == pair) & (table["side"] == side)]
                wanted |= {key: rows[column].to_numpy()} if len(rows) else {}
                if name == "token_map":
                    assert found["tokens"] == rows["token"].tolist()
                    assert found["read"] == rows["read"].to_numpy().argmax()
                    inside = [found["start"] <= k < found["end"] for k in range(len(rows))]
                    assert inside == rows["response"].tolist()
            wanted["source"] = sources.sel(pair=pair, side=side).values[: len(found["tokens"])]
            assert set(found["v"]) == set(wanted)
            assert ("causal" in wanted) == (pair in some)
            for key, values in wanted.items():
                shown = np.array([np.nan if v is None else v for v in found["v"][key]])
                half = 0.501 * maps[key]["scale"]
                assert np.nanmax(np.abs(shown * maps[key]["scale"] - values)) < half
                np.testing.assert_array_equal(np.isnan(shown), np.isnan(values))


def test_full_shade_is_the_99th_percentile_of_sizes(demo):
    evidence, pairs = demo
    values = evidence["token_map"].tables["tokens"]["prefix"].to_numpy()
    full = np.quantile(np.abs(values[np.isfinite(values)]), 0.99)
    data = parsed(evidence, pairs)
    assert data["maps"][0]["full"] == f"{full:.3g}"
    assert data["maps"][0]["scale"] == pytest.approx(full / 1000, rel=1e-5)
    assert {m["tier"] for m in data["maps"]} == {"observational"}
    assert "trust exploratory" in data["maps"][0]["labels"]


def test_values_beyond_full_shade_are_not_clipped(demo):
    evidence, pairs = demo
    every = [v for p in parsed(evidence, pairs)["pairs"] for side in p.get("m", {}).values()
             for v in side["v"]["prefix"] if v is not None]  # fmt: skip
    assert max(map(abs, every)) > 1000
    assert all(type(v) is int for v in every)


def test_without_maps_and_curves_there_are_texts(demo):
    evidence, pairs = demo
    scores = {"preference": evidence["preference"]}
    data = parsed(scores, pairs, sidecar="r.pairs.jsonl")
    assert (data["maps"], data["curves"], data["sidecar"]) == ([], None, "r.pairs.jsonl")
    assert len(data["pairs"]) == 24
    assert not any("m" in p or "c" in p for p in data["pairs"])
    alone = {**scores, "source_attribution": evidence["source_attribution"]}
    assert [m["key"] for m in parsed(alone, pairs)["maps"]] == ["source"]


def test_pairs_that_were_not_scored_are_refused(demo):
    evidence, pairs = demo
    other = Pairs([*pairs[:3], Pair(Item.of("q", "a"), Item.of("q", "b"), "new", "l")])
    with pytest.raises(EvidenceError, match=r"the pair 'new' \(1 in all\) is not among the 24"):
        browser_data(evidence, other)


SUBSETS = 40


@pytest.fixture(scope="module")
def many():
    """Ten thousand short pairs, in 39 large subsets and one of a single pair."""
    pairs = Pairs(
        Pair(
            Item.of(f"prompt {k} " + "word " * (k % 50), f"good answer {k}" * (1 + k % 7)),
            Item.of(f"prompt {k} " + "word " * (k % 50), f"bad {k}"),
            f"pair {k}",
            f"lineage {k // 2}",
            "single" if k == 7777 else f"subset {k % (SUBSETS - 1)}",
        )
        for k in range(10_000)
    )
    return {
        "preference": drawn(pairs),
        "lens": lens_of(pairs.sample(300).ids),
        "token_map": map_of(pairs.sample(50, 3).ids, 60),
        "worst_errors": known(
            "worst_errors", xr.DataArray(np.zeros(1), dims="pair", name="margin"),
            errors=pd.DataFrame({"pair": pairs[5:15].ids}),
        ),
    }, pairs  # fmt: skip


#: What does not hold all of them.
TIGHT = Budgets(texts=120_000, maps=90_000, curves=35_000)


def test_ten_thousand_pairs_stay_within_the_budget(many, monkeypatch):
    evidence, pairs = many
    read = []
    monkeypatch.setattr(browser_choice, "texts_of", lambda p: read.append(p.id) or texts_of(p))
    data = browser_data(evidence, pairs, budgets=TIGHT)
    limits = TIGHT
    assert data.total == 10_000
    assert 100 < len(data.pairs) <= limits.pairs
    assert len(read) <= limits.pairs  # the texts of the others are not looked at
    parts = {key: sum(size(p[key]) for p in data.pairs if key in p) for key in ("m", "c")}
    assert 0.9 * limits.maps < parts["m"] <= limits.maps
    assert 0.9 * limits.curves < parts["c"] <= limits.curves
    said = size([{k: v for k, v in p.items() if k not in parts} for p in data.pairs])
    assert said <= sum((limits.texts, limits.maps, limits.curves)) - sum(parts.values()) + 200
    assert size(asdict(data)) < 250_000


def test_what_is_chosen_of_many(many):
    evidence, pairs = many
    data = browser_data(evidence, pairs, budgets=TIGHT)
    there = [p["id"] for p in data.pairs]
    assert len(set(there)) == len(there)
    assert {p["subset"] for p in data.pairs} == set(pairs.subsets)
    assert set(pairs[5:15].ids) < set(there)
    assert set(evidence["token_map"].value["pair"].values) < set(there)
    margins = evidence["preference"].value.sel(side="margin").values
    for order in (np.argsort(margins), np.argsort(-margins), np.argsort(np.abs(margins))):
        assert {pairs.ids[k] for k in order[:20]} < set(there)
    counts = [sum("m" in p for p in data.pairs), sum("c" in p for p in data.pairs)]
    read = set(evidence["lens"].value["pair"].values)
    assert len(read & set(there)) > 50  # the rest is taken from pairs whose curve is known
    assert data.about[0].startswith(
        f"The texts of {len(there)} of 10,000 pairs are on this page, {counts[0]} with token maps, "
        f"{counts[1]} with their margin by depth"
    )
    assert f"Of the 50 pairs with token maps, {50 - counts[0]} do not fit on this page." in (
        data.about
    )


def test_the_choice_is_the_same_every_time(many):
    evidence, pairs = many
    one, two, other = (browser_data(evidence, pairs, seed=s) for s in (0, 0, 1))
    assert as_block(one) == as_block(two)
    assert {p["id"] for p in one.pairs} != {p["id"] for p in other.pairs}


def test_where_there_are_more_subsets_than_pairs_it_is_said(many):
    evidence, pairs = many
    few = browser_data({"preference": evidence["preference"]}, pairs, budgets=Budgets(pairs=10))
    left = SUBSETS - len({p["subset"] for p in few.pairs})
    assert len(few.pairs) == 10
    assert f"{left} of the {SUBSETS} subsets have no pair on this page." in few.about


def test_budgets_fit_the_room_there_is():
    usual, small = Budgets.within(10_000_000), Budgets.within(49_000)
    assert usual == Budgets()
    assert 48_990 <= small.texts + small.maps + small.curves <= 49_000
    assert small.texts / small.maps == pytest.approx(usual.texts / usual.maps, rel=1e-3)
    assert Budgets.within(-5).texts == 0


def test_the_section_says_how_the_maps_agree(demo):
    evidence, _ = demo
    section = pair_section(evidence, Numbers(evidence))
    agreed = evidence["token_map"].tables["agreement"]["rank_correlation"].iloc[0]
    assert f">{agreed:.2f}</data>" in str(section.text[1])
    assert section.labels.startswith("observational · gauge invariant · reward units · n = 8 pairs")
    plain = pair_section({}, Numbers({}))
    assert (plain.id, plain.title, len(plain.text)) == ("pairs", "Pairs", 1)
