"""What a person is shown of one item."""

import pytest
from families import make_tokenizer
from tokenise_kit import bert, encoder, llama

from reward_lens.data import Item
from reward_lens.errors import TokenizeError

PER_TURN = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"


def test_a_short_item_in_full():
    own = encoder(make_tokenizer(PER_TURN), pad=258)
    shown = own.explain(Item.of("q", "a"))
    assert (shown.native, shown.native_token, shown.last, shown.last_token) == (2, "a", 3, "<eos>")
    assert str(shown) == (
        "text        'q<eos>a<eos>'\n"
        "template    'chat template'\n"
        "BOS         none\n"
        "EOS         as rendered\n"
        "tokens      4; the model reads 64 (config.max_position_embeddings)\n"
        "native read index 2 'a': the rightmost id that is not the pad id\n"
        "last        index 3 '<eos>'\n"
        "response    tokens 2 to 2\n"
        "spans       verified by offsets\n"
        "\n"
        "index   id  span  token\n"
        "    0   80   0:1  'q'\n"
        "    1  258   1:6  '<eos>'\n"
        "    2   64   6:7  'a'      native read, response\n"
        "    3  258  7:12  '<eos>'  last"
    )


def test_a_long_one_says_what_is_left_out():
    own = encoder(make_tokenizer(), longest=60)
    shown = own.explain(Item.of("x" * 100, "yes"), "left")
    lines = str(shown).splitlines()
    assert f"tokens      60, {shown.cut} cut away; the model reads 60" in str(shown)
    assert shown.cut == len("User: \nAssistant: yes") + 100 - 60
    assert "... 12 tokens not shown ..." in lines
    rows = [line.split()[0] for line in lines[-49:]]
    assert rows == [*map(str, range(24)), "...", *map(str, range(36, 60))]
    assert len({line.index("'") for line in lines[-24:]}) == 1


def test_a_pair_shows_its_types_and_a_mean_no_index():
    shown = encoder(bert(), template="pair", rule="mean").explain(Item.of("why", "the"))
    text = str(shown)
    assert shown.types == (0, 0, 0, 1, 1)
    assert "types       3 of type 0, 2 of type 1" in text
    assert "native read all tokens, their mean: the mean over all tokens" in text
    assert shown.native_token is None
    assert "index  id  type" in text


def test_ids_and_rendered_text_name_no_template():
    given_ids = encoder(llama()).explain(Item(ids=(5, 6)))
    assert (given_ids.template, given_ids.bos, given_ids.eos) == ("given as ids",) * 3
    assert "response    not located" in str(given_ids)
    text = encoder(llama(), eos="append").explain(Item(text="hi"))
    assert (text.template, text.bos, text.eos) == ("already rendered", "tokenizer", "append")
    assert text.last_token == "</s>"


def test_an_item_that_cannot_be_encoded():
    with pytest.raises(TokenizeError, match="reads at most 8"):
        encoder(make_tokenizer(), longest=8).explain(Item.of("a question", "b"))
