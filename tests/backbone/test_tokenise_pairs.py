"""Question and answer as two texts, against the tokenizer's own call; truncation of all forms."""

import numpy as np
import pytest
from families import make_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenise_kit import bert, config, encoder, llama, roberta

from reward_lens.backbone.tokenise import PLAIN_TEMPLATE, Encoder
from reward_lens.data import Item
from reward_lens.errors import TokenizeError

WORDS = st.text(st.sampled_from("why sky.🙂é"), min_size=1, max_size=15).filter(str.strip)


@pytest.mark.parametrize("make", [bert, roberta])
@given(question=WORDS, answer=WORDS)
def test_a_pair_is_what_the_tokenizer_makes_of_two_texts(make, question, answer):
    tokenizer = make()
    own = encoder(tokenizer, longest=256, template="pair")
    (encoded,) = own.encode([Item.of(question, answer)])
    called = tokenizer(question, answer)
    assert encoded.ids.tolist() == called["input_ids"]
    if "token_type_ids" in called:
        assert encoded.types.tolist() == called["token_type_ids"]
        assert set(encoded.types) == {0, 1}
    else:
        assert encoded.types is None


def test_types_only_where_there_are_two_texts():
    (text, chat) = encoder(bert(), template="plain").encode([Item(text="sky"), Item.of("q", "a")])
    assert text.types is None
    assert chat.types is None


@pytest.mark.parametrize(
    ("make", "asked", "template"),
    [
        (bert, True, "pair"),
        (roberta, True, "pair"),
        (bert, False, PLAIN_TEMPLATE),
        (llama, True, PLAIN_TEMPLATE),  # it begins the second text with BOS
        (make_tokenizer, True, PLAIN_TEMPLATE),
    ],
)
def test_pairs_by_default(make, asked, template):
    assert encoder(make(), pair_default=asked).template == template


def test_a_bos_that_is_eos_too_separates_nothing():
    """It begins both texts; a BOS in the middle would draw the attention to itself."""
    tokenizer = llama()
    tokenizer.eos_token = tokenizer.sep_token = "<s>"
    assert tokenizer("a", "b")["input_ids"].count(tokenizer.eos_token_id) == 2
    assert encoder(tokenizer, pair_default=True).template == PLAIN_TEMPLATE


def test_a_chat_template_goes_before_pairs():
    tokenizer = bert()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    own = encoder(tokenizer, pair_default=True)
    assert own.template == "chat template"
    (encoded,) = own.encode([Item.of("why", "blue")])
    assert tokenizer.convert_ids_to_tokens(encoded.ids) == ["[CLS]", "why", "blue", "[SEP]"]


def test_several_turns_are_no_pair():
    turns = [{"role": "user", "content": c} for c in "ab"]
    with pytest.raises(TokenizeError, match="a pair of texts is one user prompt and one response"):
        encoder(bert(), template="pair").encode([Item.of(turns, "c")])


def tokens_of(own, item, side):
    (encoded,) = own.encode([item], side)
    return own.tokenizer.convert_ids_to_tokens(encoded.ids), encoded


@pytest.mark.parametrize(
    ("longest", "side", "tokens"),
    [
        (7, "left", "[CLS] blue [SEP] the sky . [SEP]"),
        (7, "right", "[CLS] why ? blue [SEP] the [SEP]"),
        (5, "left", "[CLS] [SEP] sky . [SEP]"),
        (5, "right", "[CLS] why ? [SEP] [SEP]"),
    ],
)
def test_a_pair_is_cut_at_the_ends_of_its_text(longest, side, tokens):
    """Special tokens stay: a model that reads the first token reads [CLS]."""
    item = Item.of("why ? blue", "the sky .")
    own = encoder(bert(), longest=longest, template="pair")
    names, encoded = tokens_of(own, item, side)
    assert names == tokens.split()
    assert encoded.cut == 9 - longest
    first = names.index("[SEP]") + 1
    assert encoded.types.tolist() == [0] * first + [1] * (longest - first)


def test_a_pair_without_its_cls_keeps_its_separator():
    own = encoder(bert(), longest=5, template="pair", bos="none")
    item = Item.of("why ? blue", "the sky .")
    assert tokens_of(own, item, "left")[0] == ["[SEP]", "the", "sky", ".", "[SEP]"]
    assert tokens_of(own, item, "right")[0] == ["why", "?", "blue", "[SEP]", "[SEP]"]


@pytest.mark.parametrize("side", ["left", "right"])
@given(text=st.text(st.sampled_from("abc"), min_size=1, max_size=20), longest=st.integers(3, 12))
def test_a_text_is_cut_at_its_end_and_counted(side, text, longest):
    whole, own = encoder(llama(), longest=None), encoder(llama(), longest=longest)
    (full,), (encoded,) = whole.encode([Item(text=text)]), own.encode([Item(text=text)], side)
    n = len(full.ids)
    assert encoded.cut == max(n - longest, 0)
    rest = full.ids[1:]
    kept = rest[encoded.cut :] if side == "left" else rest[: n - 1 - encoded.cut]
    np.testing.assert_array_equal(encoded.ids, [full.ids[0], *kept])


def test_what_is_too_long():
    own = encoder(bert(), longest=4)
    with pytest.raises(TokenizeError, match=r"item 0 has 7 tokens; .* at most 4 \(config.max_pos"):
        own.encode([Item(text="why is the sky blue")])
    with pytest.raises(TokenizeError, match="truncate='middle': choose one of error, left, right"):
        own.align(Item(text="why"), truncate="middle")
    with pytest.raises(TokenizeError, match="limit of 3 tokens .* leaves no room for text"):
        encoder(bert(), longest=3, template="pair").encode([Item.of("why", "sky")], "left")
    ids = Item(ids=(2, 10, 11, 12, 3), id="given")
    with pytest.raises(TokenizeError, match="item 'given' has 5 tokens"):
        own.encode([ids])
    assert own.encode([ids], "left")[0].ids.tolist() == [2, 11, 12, 3]
    assert encoder(llama(), longest=2).encode([Item(ids=(9, 8, 7))], "right")[0].cut == 1


def test_ids_beyond_the_embedding():
    own = Encoder(llama(), config(vocab_size=9))
    with pytest.raises(TokenizeError, match="item 0 has the id 9; this model embeds ids 0 to 8"):
        own.encode([Item(ids=(8, 9))])
    assert own.encode([Item(ids=(8,))])[0].ids.tolist() == [8]
