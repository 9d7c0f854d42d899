"""The page of a model that is not causal: source tokens are shown, prefix scores are not."""

from __future__ import annotations

import re

import zoo
from families import PAIRS

import reward_lens as rl
from reward_lens.report import Page, render
from reward_lens.report.browser_json import unpacked


def page_of(name):
    signal = rl.wrap_hf_model(zoo.make(name), zoo.tokenizer_for(name))
    audit = rl.audit(signal, PAIRS)
    assert audit.passed, (audit.missing, audit.conformance.failed)
    return audit, render(Page("m", "f", "c", "e"), audit.evidence, audit.pairs)


def maps_of(text):
    """The token maps of the page's pair browser."""
    data = re.search(r'id="browser-data">(.*?)</script>', text, re.DOTALL)
    return [m["key"] for m in unpacked(data[1])["maps"]]


def test_an_encoder_that_reads_its_first_token():
    audit, text = page_of("bert")
    assert set(audit.not_offered) == {"path_effects"}
    assert audit["token_map"].provenance.parameters["methods"] == ("gradient",)
    assert maps_of(text) == ["source", "gradient", "causal"]
    assert "change of the prefix score" not in text


def test_an_encoder_that_reads_the_mean_has_no_source_tokens():
    audit, text = page_of("modernbert, mean")
    assert set(audit.not_offered) == {"source_attribution"}
    assert audit["patch_grid"].provenance.parameters["positions"] == "aligned"
    assert "exchange one activation at the aligned tokens" in text
    assert "run as full forward" in text
    assert maps_of(text) == ["gradient", "causal"]


def test_a_state_space_model_has_no_heads_to_show():
    audit, text = page_of("jamba")
    heads = {"attribution_heads", "patch_grid_heads", "compare_views_heads"}
    assert set(audit.not_offered) == heads | {"source_attribution"}
    assert "configuration says 4" in audit.not_offered["attribution_heads"]
    assert maps_of(text) == ["prefix", "gradient", "causal"]
    assert "By component" in text
    assert "By attention head" not in text
