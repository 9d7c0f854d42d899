"""BOS at the start and EOS at the end: counted in the ids, for every form an item has."""

import pytest
from families import BOS, EOS, make_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenise_kit import bert, encoder, llama, roberta

from reward_lens.data import Item
from reward_lens.errors import TokenizeError

WITH_BOS = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
WITHOUT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
PER_TURN = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
CHAT = Item.of("q", "a")
TEXT = Item(text="qa")
TEXT_WITH_BOS = Item(text="<s>qa")


def ids_of(own, item, truncate="error"):
    return own.encode([item], truncate)[0].ids.tolist()


def bos_count(own, item):
    ids = ids_of(own, item)
    assert own.tokenizer.bos_token_id not in ids[ids.count(own.tokenizer.bos_token_id) :]
    return ids.count(own.tokenizer.bos_token_id)


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [WITH_BOS, WITHOUT, None])
@pytest.mark.parametrize("item", [CHAT, TEXT, TEXT_WITH_BOS])
def test_how_many_bos(adds_bos, template, item):
    """Template and tokenizer may both bring one; by default the tokenizer's convention holds."""
    written = (item is CHAT and template == WITH_BOS) or item is TEXT_WITH_BOS
    added = adds_bos and item is CHAT and template is None

    def count(bos):
        return bos_count(encoder(llama(template, adds_bos), bos=bos), item)

    assert count(None) == (1 if adds_bos else int(written))
    assert count("keep") == int(written) + int(added)
    assert count("none") == 0
    assert count("add") == 1


def test_a_text_that_doubles_bos_itself():
    twice = Item(text="<s><s>qa")
    counts = {b: bos_count(encoder(llama(), bos=b), twice) for b in (None, "keep", "none", "add")}
    assert counts == {None: 1, "keep": 2, "none": 0, "add": 1}
    assert bos_count(encoder(llama(), template="<s>{prompt} {response}"), CHAT) == 1


@pytest.mark.parametrize(
    ("template", "adds_bos", "bos", "recorded"),
    [
        (WITH_BOS, True, None, "template"),
        (WITHOUT, True, None, "tokenizer"),
        (None, True, None, "tokenizer"),
        (WITHOUT, False, None, "none"),
        (WITH_BOS, True, "keep", "keep"),
        (WITH_BOS, True, "none", "none"),
        (None, False, "add", "add"),
    ],
)
def test_the_bos_rule_is_recorded(template, adds_bos, bos, recorded):
    assert encoder(llama(template, adds_bos), bos=bos).bos == recorded


def test_cls_is_the_bos_of_a_tokenizer_without_one():
    own = encoder(bert(), template="plain")
    assert own.bos == "tokenizer"
    cls, sep = own.tokenizer.cls_token_id, own.tokenizer.sep_token_id
    for item in (CHAT, Item(text="why"), Item(text="[CLS] why [SEP]")):
        ids = ids_of(own, item)
        assert (ids[0], ids.count(cls)) == (cls, 1)
        assert (ids[-1], ids.count(sep)) == (sep, 1)
    assert cls not in ids_of(encoder(bert(), bos="keep"), Item(text="why"))
    assert cls not in ids_of(encoder(bert(), bos="none"), CHAT)


def test_ids_that_are_given_are_left_alone():
    given_ids = Item(ids=(5, 1, 7))
    for rules in ({"bos": "add"}, {"bos": "none"}, {"eos": "append"}, {"eos": "overwrite"}):
        assert ids_of(encoder(llama(), **rules), given_ids) == [5, 1, 7]


def test_padding_of_given_ids():
    padded = Item(ids=(3, 3, 5, 3, 7, 3))
    assert ids_of(encoder(llama(), 3), padded) == [5, 3, 7]
    assert ids_of(encoder(make_tokenizer()), Item(ids=(256, 5, 256))) == [5]  # config names none
    for own in (1, 2):  # BOS or EOS serves as pad: what is real cannot be told
        assert ids_of(encoder(llama(), own), Item(ids=(own, 5, own))) == [own, 5, own]


def test_eos_is_added_where_it_is_asked_for():
    plain = ids_of(encoder(make_tokenizer()), CHAT)
    assert plain[-1] != EOS
    assert ids_of(encoder(make_tokenizer(), eos="append"), CHAT) == [*plain, EOS]
    assert ids_of(encoder(make_tokenizer(PER_TURN), eos="append"), CHAT).count(EOS) == 2
    ended = ids_of(encoder(make_tokenizer(), eos="overwrite"), CHAT)
    assert ended == [*plain, *make_tokenizer()(" ")["input_ids"], EOS]
    names = [encoder(make_tokenizer(), eos=e).eos for e in (None, "append", "overwrite")]
    assert names == ["as rendered", "append", "overwrite"]


def open_rlhf(tokenizer, text, longest):
    """The formula of its reward data set, written out: text, cut on the right, last id set."""
    text = text.rstrip("\n")
    if not text.endswith(tokenizer.eos_token):
        text += " " + tokenizer.eos_token
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:longest]
    return [*ids[:-1], tokenizer.eos_token_id]


TEXTS = st.lists(st.sampled_from(["a", "b", "\n", "<eos>"]), min_size=1, max_size=12)


@given(TEXTS.map("".join).filter(str.strip), st.integers(4, 14))
def test_overwriting_as_openrlhf_does(text, longest):
    tokenizer = make_tokenizer()
    own = encoder(tokenizer, longest=longest, eos="overwrite")
    (encoded,) = own.encode([Item(text=text)], "right")
    assert encoded.ids.tolist() == open_rlhf(tokenizer, text, longest)


@pytest.mark.parametrize("rule", ["append", "overwrite"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_bos_and_eos_survive_truncation(rule, side):
    own = encoder(make_tokenizer(WITH_BOS), longest=6, eos=rule)
    (encoded,) = own.encode([CHAT], side)
    ids = encoded.ids.tolist()
    assert (len(ids), ids[0], ids[-1]) == (6, BOS, EOS)
    assert encoded.cut == len("[user]q[assistant]a") + 2 + (rule == "overwrite") - 6


@pytest.mark.parametrize(
    ("tokenizer", "rules", "message"),
    [
        (llama, {"bos": "twice"}, "bos='twice': choose None or one of keep, none, add"),
        (llama, {"eos": "twice"}, "eos='twice': choose None or one of append, overwrite"),
        (bert, {"eos": "append"}, "eos='append', but the tokenizer has no EOS token"),
        (roberta, {"eos": "overwrite", "template": "pair"}, "does not fit template='pair'"),
    ],
)
def test_rules_that_cannot_be_served(tokenizer, rules, message):
    with pytest.raises(TokenizeError, match=message):
        encoder(tokenizer(), **rules)


def test_bos_where_there_is_none_to_add():
    tokenizer = make_tokenizer()
    tokenizer.bos_token = None
    with pytest.raises(TokenizeError, match="bos='add', but the tokenizer has no BOS token"):
        encoder(tokenizer, bos="add")
