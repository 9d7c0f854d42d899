"""Texts and special tokens: one way to the ids, one BOS, the end token where it was trained."""

from __future__ import annotations

import numpy as np
import pytest
from families import BOS, EOS, PAIRS, make_model, make_tokenizer
from tokenizers.processors import TemplateProcessing

import reward_lens as rl
from reward_lens.backbone.gpt2_vocabulary import gpt2_tokenizer
from reward_lens.data import Item

_TURN = "[{{ m['role'] }}]{{ m['content'] }}"
PLAIN = "{% for m in messages %}" + _TURN + "{% endfor %}"
WITH_BOS = "{{ bos_token }}" + PLAIN
WITH_EOS = "{% for m in messages %}" + _TURN + "{{ eos_token }}{% endfor %}"
CHAT = [
    {"role": r, "content": c}
    for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "the end"))
]
# What text a model is given does not depend on its trunk; two that place positions differently.
both_families = pytest.mark.parametrize("family", ["llama", "gpt2"])


def tokenizer(template=None, adds_bos=False):
    """The byte tokenizer, which may put a BOS before every text on its own account."""
    made = make_tokenizer(template)
    if adds_bos:
        made.backend_tokenizer.post_processor = TemplateProcessing(
            single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS)]
        )
    return made


def signal_of(template=None, adds_bos=False, family="llama", **rules):
    model = make_model(family)
    made = tokenizer(template, adds_bos)
    return rl.wrap_hf_model(model, made, conformance_quickcheck=False, **rules)


def ids_of(signal, item, **options):
    return signal.encode([item], **options)[0].ids.tolist()


@both_families
@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [None, PLAIN, WITH_BOS])
def test_one_bos_whoever_brings_it(family, adds_bos, template):
    signal = signal_of(template, adds_bos, family)
    expected = int(adds_bos or template == WITH_BOS)
    given = [("q", "a")] + ([CHAT] if template else [])
    for item in given:
        ids = ids_of(signal, item)
        assert ids.count(BOS) == expected
        assert BOS not in ids[1:]
    if adds_bos:
        for text in ("some text", "<bos>some text"):
            assert ids_of(signal, Item(text=text)).count(BOS) == 1
    who = "template" if template == WITH_BOS else "tokenizer" if adds_bos else "none"
    assert signal.meta.bos == who
    assert signal.score(given).subject.notes["bos"] == who


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [None, PLAIN, WITH_BOS])
@pytest.mark.parametrize(("rule", "count"), [("none", 0), ("add", 1)])
def test_a_model_trained_without_or_with_bos(adds_bos, template, rule, count):
    signal = signal_of(template, adds_bos, bos=rule)
    ids = ids_of(signal, ("q", "a"))
    assert ids.count(BOS) == count
    assert (ids[0] == BOS) is bool(count)
    ev = signal.score([("q", "a")])
    assert signal.meta.bos == ev.subject.notes["bos"] == rule


def test_bos_makes_a_difference_that_is_on_record():
    scores, prints = set(), set()
    for rule in ("none", "add"):
        signal = signal_of(WITH_BOS, True, bos=rule)
        ev = signal.score([("q", "a")])
        scores.add(float(ev.value[0]))
        prints.add(signal.fingerprint)
    assert len(scores) == len(prints) == 2


def test_without_a_template_the_text_that_was_scored_is_said():
    signal = signal_of()
    ev = signal.score([("q", "a")])
    assert "{prompt}" in signal.meta.template
    assert ev.subject.notes["template"] == signal.meta.template
    assert any("no chat template" in n for n in signal.meta.notes)
    assert signal.explain(("q", "a")).text == signal.meta.template.format(prompt="q", response="a")
    assert signal_of(PLAIN).meta.template == "chat template"


@both_families
@pytest.mark.parametrize("template", [None, PLAIN, WITH_EOS])
@pytest.mark.parametrize("rule", ["append", "overwrite"])
def test_a_text_ends_as_it_did_in_training(family, template, rule):
    signal = signal_of(template, family=family, eos=rule)
    plain = ids_of(signal_of(template, family=family), ("q", "an answer"))
    ids = ids_of(signal, ("q", "an answer"))
    assert ids[-1] == EOS
    assert ids[-2] != EOS
    assert ids[: len(plain) - 1] == plain[:-1]
    ev = signal.score([("q", "an answer")])
    assert signal.meta.eos == rule
    assert int(ev.value.read_index[0]) == len(ids) - 1  # pad is another id, so EOS is read
    assert ev.value.read_token.values[0] == "<eos>"
    long = ("q", "x" * 400)
    for side in ("left", "right"):
        cut = ids_of(signal, long, truncate=side)
        assert len(cut) == 256
        assert cut[-1] == EOS


def test_an_end_token_inside_the_prompt_does_not_count_as_the_end():
    for rule in ("append", "overwrite"):
        signal = signal_of(eos=rule)
        ids = ids_of(signal, ("first<eos>", "second"))
        assert ids.count(EOS) == 2
        assert ids[-1] == EOS
    signal = signal_of(WITH_EOS, eos="append")
    ids = ids_of(signal, CHAT)
    assert ids.count(EOS) == len(CHAT)
    assert int(signal.score([CHAT]).value.read_index[0]) == len(ids) - 1


@both_families
@pytest.mark.parametrize(
    ("template", "adds_bos", "rules"),
    [
        (None, False, {}),
        (WITH_BOS, True, {}),
        (PLAIN, True, {"bos": "none", "eos": "append"}),
        (None, True, {"eos": "overwrite"}),
    ],
)
def test_every_method_builds_the_same_ids(family, template, adds_bos, rules):
    signal = signal_of(template, adds_bos, family, **rules)
    items = [(p, r) for side in (1, 2) for p, r in ((x[0], x[side]) for x in PAIRS)]
    n = [len(e.ids) for e in signal.encode(items)]
    scored = signal.score(items)
    assert list(scored.value.n_tokens) == n
    curves = signal.score_prefixes(items).value.values
    assert [int(np.isfinite(c).sum()) for c in curves] == n
    ends = [c[k - 1] for c, k in zip(curves, n, strict=True)]
    np.testing.assert_allclose(ends, scored.value, atol=1e-5)
    assert [len(x) for x in signal.capture(items, ["embed"], position="all")["embed"]] == n
    assert [len(x) for x in signal.gradient(items, "L0.resid_post")] == n
    half = len(items) // 2
    margins = scored.value.values[:half] - scored.value.values[half:]
    for measured in (rl.lens(signal, PAIRS), rl.attribution(signal, PAIRS)):
        assert list(measured.value.tokens_chosen) == n[:half]
        assert list(measured.value.tokens_rejected) == n[half:]
    found = rl.lens(signal, PAIRS).value.sel(reading="applied").isel(depth=-1)
    np.testing.assert_allclose(found, margins, atol=1e-5)
    for item, encoded in zip(items, signal.encode(items), strict=True):
        told = signal.explain(item)
        assert list(told.ids) == encoded.ids.tolist()
        again = signal.score([Item(ids=tuple(told.ids))])
        assert float(again.value[0]) == pytest.approx(
            float(signal.score([item]).value[0]), abs=1e-6
        )


TRICKY = [
    "naïve café — “déjà vu”…",
    "emoji 🙂 and 👩‍👩‍👧‍👦, then more",
    "tab\tand\u00a0no-break, bell\x07, zero\u200bwidth",
    "日本語と한국어",
    "  leading and trailing  ",
    "combining: e\u0301 a\u0308",
]


@pytest.mark.parametrize("response", TRICKY)
@pytest.mark.parametrize("vocabulary", ["bytes", "gpt2"])
@pytest.mark.parametrize("template", [True, False])
def test_spans_cover_the_text_whatever_characters_it_has(response, vocabulary, template):
    if vocabulary == "gpt2":
        made = gpt2_tokenizer()
        model = make_model("llama", vocab_size=len(made), pad_token_id=None)
        if template:
            made.chat_template = PLAIN
    else:
        made, model = tokenizer(PLAIN if template else None, adds_bos=True), make_model("llama")
    signal = rl.wrap_hf_model(model, made, conformance_quickcheck=False)
    told = signal.explain(("A question?", response))
    assert told.spans is not None
    assert told.verified in ("offsets", "decoding")
    covered = np.zeros(len(told.text), dtype=bool)
    for start, stop in told.spans:
        assert 0 <= start <= stop <= len(told.text)
        covered[start:stop] = True
    assert covered.all()
    assert [a for a, _ in told.spans] == sorted(a for a, _ in told.spans)
    first, last = told.response
    found = told.text[told.spans[first][0] : told.spans[last - 1][1]]
    assert response.strip() in found
    assert len(found) <= len(response) + 1
