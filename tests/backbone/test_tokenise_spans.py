"""Where tokens lie in their text: believed only where decoding agrees, found by decoding else."""

import pytest
from families import make_tokenizer
from hypothesis import example, given
from hypothesis import strategies as st
from tokenise_kit import Lying, bert, encoder, llama, roberta, unigram
from transformers import ByT5Tokenizer

from reward_lens.backbone.alignment import find_spans, follow, offsets_agree
from reward_lens.backbone.gpt2_vocabulary import gpt2_tokenizer
from reward_lens.data import Item

HARD = [
    "naïve café",
    "nai\u0308ve",
    "well… yes",
    "a\x07b\x00c",
    "🙂 👩\u200d👩\u200d👧 x",
    "tab\tnew\r\nline\u00a0\u2003end ",
    "  two  spaces",
    "日本語 and ﬁ ½",
    "broken \ufffd sign",
    "\u2581 sign",
]
GPT2 = gpt2_tokenizer()
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=25)

LIES = {
    "zero width": lambda a, b: (a, a),
    "all at the start": lambda a, b: (0, 0),
    "one to the right": lambda a, b: (a + 1, b + 1),
    "one too long": lambda a, b: (a, b + 1),
    "halved": lambda a, b: (a // 2, b // 2),
}


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def pieces(text, spans):
    """The text cut by spans, tokens of one character together."""
    return [text[a:b] for a, b in dict.fromkeys(spans)]


@given(ANY_TEXT)
@example("".join(HARD))
def test_byte_tokens_cover_the_text(text):
    """Offsets and decoding: two ways to one answer, which leaves nothing out."""
    for tokenizer in (GPT2, make_tokenizer()):
        ids = ids_of(tokenizer, text)
        spans, how = find_spans(tokenizer, text, ids)
        assert how == "offsets"
        covered = {k for a, b in spans for k in range(a, b)}
        assert covered == set(range(len(text)))
        followed = follow(tokenizer, text, ids)
        assert "".join(pieces(text, followed)) == text


@pytest.mark.parametrize("make", [bert, roberta, llama, unigram, ByT5Tokenizer])
@given(text=ANY_TEXT)
@example(text="naïve… 🙂 hi a\x07b")
def test_spans_are_those_of_the_decoded_tokens_or_are_withheld(make, text):
    tokenizer = _made(make)
    ids = ids_of(tokenizer, text)
    found = find_spans(tokenizer, text, ids)
    if found is None:
        # Only where something cannot be written back: unknown, or changed beyond recognition.
        decoded = tokenizer.decode(ids)
        assert "".join(decoded.split()) != "".join(text.split())
        return
    spans, _ = found
    assert len(spans) == len(ids)
    assert all(0 <= a <= b <= len(text) for a, b in spans)
    assert list(spans) == sorted(spans)
    outside = "".join(c for k, c in enumerate(text) if not any(a <= k < b for a, b in spans))
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if normalizer is not None and outside:
        outside = normalizer.normalize_str(outside).replace("\u2581", "")
    assert not outside.strip()


_MADE = {}


def _made(make):
    if make not in _MADE:
        _MADE[make] = make()
    return _MADE[make]


@pytest.mark.parametrize(
    ("make", "text", "expected"),
    [
        (bert, "Naïve… a\x07sky?", ["Na", "ïve", "…", "a", "s", "k", "y", "?"]),
        (bert, "blue 🙂.", ["blue", "🙂", "."]),
        (roberta, "é b", ["é", "b"]),
        (llama, "hi, é", ["h", "i", ",", "é"]),
        (unigram, "hi… a", ["hi", "…", "a"]),
        (ByT5Tokenizer, "é 🙂", ["é", "🙂"]),
        (lambda: GPT2, "naïve… 🙂 hi", ["na", "ïve", "…", "🙂", "hi"]),
    ],
)
def test_spans_of_known_texts(make, text, expected):
    tokenizer = make()
    spans, _ = find_spans(tokenizer, text, ids_of(tokenizer, text))
    assert [p.strip() for p in pieces(text, spans) if p.strip()] == expected


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("text", HARD)
def test_offsets_that_lie_are_found_out_and_replaced(lie, text):
    liar = Lying(GPT2, LIES[lie])
    ids = ids_of(GPT2, text)
    honest, _ = find_spans(GPT2, text, ids)
    stated = liar(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert not offsets_agree(liar, text, ids, stated)
    spans, how = find_spans(liar, text, ids)
    assert how == "decoding"
    assert pieces(text, spans) == pieces(text, follow(GPT2, text, ids))
    whole = [k for k, i in enumerate(ids) if "\ufffd" not in GPT2.decode([i])]
    if "\ufffd" not in text:  # the real sign looks like a part of a character, and joins the next
        assert [spans[k] for k in whole] == [honest[k] for k in whole]


def test_a_space_put_before_the_text_takes_no_character():
    tokenizer = llama()
    out = tokenizer("hi", add_special_tokens=False, return_offsets_mapping=True)
    assert out["offset_mapping"][0] == (0, 1)  # the space's, as the tokenizer has it
    assert find_spans(tokenizer, "hi", out["input_ids"]) == (((0, 0), (0, 1), (1, 2)), "offsets")


def test_offsets_of_other_ids_do_not_count():
    class Other(Lying):
        def __call__(self, text, **options):
            return super().__call__(text + "!", **options)

    ids = ids_of(GPT2, "one two")
    assert find_spans(Other(GPT2, lambda a, b: (a, b)), "one two", ids)[1] == "decoding"


def test_a_token_left_out_is_found_out():
    """Spans that agree token by token and still pass over a word."""
    tokenizer = bert()
    ids = ids_of(tokenizer, "the sky")
    assert offsets_agree(tokenizer, "the sky", ids, [(0, 3), (4, 7)])
    assert not offsets_agree(tokenizer, "the sky sky", ids, [(0, 3), (8, 11)])
    assert not offsets_agree(tokenizer, "the sky sky", ids, [(0, 3), (4, 7)])
    assert not offsets_agree(tokenizer, "sky the sky", ids, [(4, 7), (0, 3)])


def test_none_where_the_text_cannot_be_written_back():
    tokenizer = Lying(bert(), lambda a, b: (a, a))
    assert find_spans(tokenizer, "the 日", ids_of(bert(), "the 日")) is None
    assert follow(GPT2, "other words", ids_of(GPT2, "some words")) is None
    aligned = encoder(tokenizer).align(Item.of("the 日", "sky"))
    assert (aligned.spans, aligned.response, aligned.verified) == (None, None, None)
    assert aligned.tokens[0] == "[CLS]"


@pytest.mark.parametrize("lie", [None, "zero width"])
@pytest.mark.parametrize(
    ("side", "visible"), [("error", "blue sky"), ("left", "blue sky"), ("right", "blue s")]
)
def test_the_response_is_found_in_what_is_left(lie, side, visible):
    item = Item.of("a blue sky", "blue sky")
    whole = "User: a blue sky\nAssistant: blue sky"
    longest = len(whole) if side == "error" else len(whole) - 2
    tokenizer = make_tokenizer() if lie is None else Lying(make_tokenizer(), LIES[lie])
    aligned = encoder(tokenizer, longest=longest).align(item, side)
    assert aligned.text == whole
    assert aligned.verified == ("offsets" if lie is None else "decoding")
    start, stop = aligned.response
    assert "".join(aligned.tokens[start:stop]) == visible
    shown = {"error": whole, "left": whole[2:], "right": whole[:-2]}[side]
    assert "".join(aligned.tokens) == shown
    assert "".join(whole[a:b] for a, b in aligned.spans) == shown


def test_a_response_that_was_cut_away():
    own = encoder(make_tokenizer(), longest=8)
    assert own.align(Item.of("a blue sky", "no"), "right").response is None


def test_a_pair_is_one_text_with_its_separator():
    aligned = encoder(bert(), template="pair").align(Item.of("Why?", "The sky."))
    assert aligned.text == "Why?[SEP]The sky."
    assert aligned.tokens == ("[CLS]", "Why", "?", "[SEP]", "The", "sky", ".", "[SEP]")
    assert [aligned.text[a:b] for a, b in aligned.spans[1:-1]] == list(aligned.tokens[1:-1])
    assert aligned.spans[0] == (0, 0)
    start, stop = aligned.response
    assert aligned.tokens[start] == "The"
    assert aligned.tokens[stop] == "[SEP]"


def test_ids_that_are_given_are_decoded():
    ids = ids_of(GPT2, "naïve 🙂")
    aligned = encoder(GPT2).align(Item(ids=tuple(ids)))
    assert aligned.text == "naïve 🙂"
    assert aligned.verified == "decoding"
    assert "".join(pieces(aligned.text, aligned.spans)) == aligned.text


def test_special_tokens_inside_the_text_have_their_own_spans():
    template = "{% for m in messages %}<bos>{{ m.content }}<eos>{% endfor %}"
    aligned = encoder(make_tokenizer(template), eos="append").align(Item.of("q", "a"))
    assert aligned.tokens == ("<bos>", "q", "<eos>", "<bos>", "a", "<eos>")
    assert "".join(aligned.text[a:b] for a, b in aligned.spans) == aligned.text
    added = encoder(make_tokenizer(), eos="append").align(Item.of("q", "a"))
    assert added.tokens[-1] == "<eos>"
    assert added.spans[-1] == (len(added.text), len(added.text))
