"""Sentences and tokens as the units of a token map, and how far its readings agree."""

from __future__ import annotations

import numpy as np
import pytest
from families import PAIRS, make_signal
from scipy import stats

import reward_lens as rl
from reward_lens.data import as_pairs
from reward_lens.evidence.intervals import cluster_t
from reward_lens.instruments.token_maps import token_map
from reward_lens.instruments.token_units import sentence_spans

READINGS = ("prefix", "gradient", "leave_one_out")


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


def test_sentences(signal):
    pairs = [("Why?", "One. Two!  Three", "It is so.\nBecause it is…")]
    ev = token_map(signal, pairs, methods=READINGS, unit="sentence")
    table = ev.tables["sentences"]
    assert list(table["text"]) == ["One. ", "Two!  ", "Three", "It is so.\n", "Because it is…"]
    assert list(table["sentence"]) == [0, 1, 2, 0, 1]
    assert ev.value.dims == ("reading", "side", "pair", "sentence")
    assert ev.value.shape == (3, 2, 1, 3)
    per_token = ev.tables["tokens"]
    for _, row in table.iterrows():
        mine = per_token[(per_token["side"] == row["side"])].iloc[row["start"] : row["stop"]]
        if row["text"].isascii():  # "…" is three tokens, each of which shows it
            assert "".join(mine["token"]) == row["text"]
        for reading in ("prefix", "gradient"):
            assert row[reading] == pytest.approx(mine[reading].sum())
        side = 0 if row["side"] == "chosen" else 1
        found = ev.value.isel(side=side, pair=0, sentence=row["sentence"])
        np.testing.assert_allclose(found, [row[m] for m in READINGS])
    assert "leave_one_out" not in per_token


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("no end", ["no end"]),
        ("A. B.", ["A. ", "B."]),
        ("Is 3.5 one? Yes!", ["Is 3.5 one? ", "Yes!"]),
        ('He said "no." Then left.', ['He said "no." ', "Then left."]),
        ("one\n\ntwo\n", ["one\n\n", "two\n"]),
        ("好。不好！", ["好。", "不好！"]),
        ("Wait… what?", ["Wait… ", "what?"]),
    ],
)
def test_where_sentences_end(signal, text, parts):
    (item,) = rl.data.as_items([("q", text)])
    aligned = signal.encoder.align(item, "error")
    spans = sentence_spans(aligned, aligned.response)
    found = [aligned.text[aligned.spans[a][0] : aligned.spans[b - 1][1]] for a, b in spans]
    assert found == parts


def test_agreement_is_the_mean_over_items_within_the_response(signal):
    tokens = token_map(signal, PAIRS, methods=READINGS)
    table = tokens.tables["agreement"].set_index(["first", "second"])
    lineages = np.concatenate([as_pairs(PAIRS).lineages] * 2)
    sides = [*as_pairs(PAIRS).chosen, *as_pairs(PAIRS).rejected]
    spans = [signal.encoder.align(item, "error").response for item in sides]

    def read(reading, k):
        side, pair = divmod(k, len(PAIRS))
        found = tokens.value.sel(reading=reading).isel(side=side, pair=pair)
        return found.values[slice(*spans[k])]

    for first, second in table.index:
        rho = np.array([
            stats.spearmanr(read(first, k), read(second, k)).statistic if b - a > 2 else np.nan
            for k, (a, b) in enumerate(spans)
        ])  # fmt: skip
        ok = ~np.isnan(rho)
        assert ok.sum() == 7  # "No" has two tokens
        row, expected = table.loc[first, second], cluster_t("x", rho[ok], lineages[ok])
        assert row["rank_correlation"] == pytest.approx(rho[ok].mean(), abs=2e-3)  # ties
        assert row["low"] == pytest.approx(expected.low, abs=2e-3)
        assert (row["items"], row["undefined"]) == (7, 1)
        assert tokens.interval(f"{first}.{second}").clusters == 3
    assert len(table) == 3
