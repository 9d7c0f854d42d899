"""How a conversation becomes text: every kind of template, and what each refuses."""

import pytest
from families import make_tokenizer
from tokenise_kit import bert, encoder, llama

from reward_lens.backbone.tokenise import PLAIN_TEMPLATE
from reward_lens.data import Item, Message
from reward_lens.errors import TokenizeError

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}"
    "{% endfor %}"
)
ITEM = Item.of("Why?", "Because.")
TURNS = Item(
    messages=(
        Message("system", "Be brief."),
        Message("user", "Hi"),
        Message("assistant", "Hello"),
        Message("user", "Why?"),
        Message("assistant", "Because."),
    )
)


def test_the_tokenizers_own_template_is_the_default():
    own = encoder(make_tokenizer(CHATML))
    assert own.template == "chat template"
    assert own.has_chat_template
    assert own.render(ITEM) == "<|user|>Why?</s><|assistant|>Because.</s>"
    assert own.render(TURNS) == (
        "<|system|>Be brief.</s><|user|>Hi</s><|assistant|>Hello</s><|user|>Why?</s>"
        "<|assistant|>Because.</s>"
    )


def test_without_one_the_text_is_plain_and_says_so():
    plain = encoder(make_tokenizer())
    assert plain.template == PLAIN_TEMPLATE
    assert not plain.has_chat_template
    assert plain.render(ITEM) == "User: Why?\nAssistant: Because."
    with pytest.raises(TokenizeError, match=r"\['system', 'user', .* no chat template; .*Jinja"):
        plain.render(TURNS)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain", "User: Why?\nAssistant: Because."),
        ("chat", "<|user|>Why?</s><|assistant|>Because.</s>"),
        ("[INST] {prompt} [/INST] {response}</s>", "[INST] Why? [/INST] Because.</s>"),
        ("{% for m in messages %}{{ m.content }};{% endfor %}", "Why?;Because.;"),
        ("{{ messages[0].content }}/{{ messages[-1].content }}", "Why?/Because."),
    ],
)
def test_a_template_that_is_given(template, text):
    given = encoder(make_tokenizer(CHATML), template=template)
    assert given.render(ITEM) == text
    named = {"plain": PLAIN_TEMPLATE, "chat": "chat template"}
    assert given.template == named.get(template, template)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("chatty", "'chatty' has no field; choose None, 'plain', 'chat', 'pair', a Jinja"),
        ("{prompt}", r"names the fields \['prompt'\]"),
        ("{prompt}{response}{system}", r"names the fields \['prompt', 'response', 'system'\]"),
        ("{prompt}{response}{response}", "names the fields"),
        ("{prompt!r}{response}", "write plain {prompt} and {response}"),
        ("{prompt} {response", "expected '}'"),
        (7, "template=7: choose"),
        ("chat", "has no chat template: give its Jinja text as template="),
        ("pair", r"puts no separator between two texts; .*\(BERT, RoBERTa, DeBERTa\)"),
        ("{{ messages[0].content }}", "leaves out the last turn of a conversation"),
    ],
)
def test_a_template_that_cannot_be_used(template, message):
    with pytest.raises(TokenizeError, match=message):
        encoder(make_tokenizer(), template=template)


def test_a_template_that_refuses_or_drops_a_turn():
    alternating = encoder(make_tokenizer(ALTERNATING))
    assert alternating.render(ITEM) == "[user]Why?[assistant]Because."
    with pytest.raises(TokenizeError, match=r"refused .*\['system', 'user', .*must alternate"):
        alternating.render(TURNS)
    no_system = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    with pytest.raises(TokenizeError, match="leaves out the system turn. Take it out"):
        encoder(make_tokenizer(no_system)).render(TURNS)


def test_errors_name_the_item():
    items = [ITEM, Item(messages=TURNS.messages, id="row 3"), TURNS]
    with pytest.raises(TokenizeError, match="item 'row 3' has turns"):
        encoder(make_tokenizer()).encode(items)
    with pytest.raises(TokenizeError, match="item 1 has turns"):
        encoder(make_tokenizer()).encode(items[::2])
    with pytest.raises(TokenizeError, match="given as ids; there is no text"):
        encoder(make_tokenizer()).render(Item(ids=(1, 2)))
    with pytest.raises(TokenizeError, match="item 0 has no tokens"):
        encoder(bert()).encode([Item(text="\x07")])


@pytest.mark.parametrize(
    ("template", "prompt", "response", "before", "after"),
    [
        (None, "say assistant", "assistant", "User: say assistant\nAssistant: ", ""),
        (CHATML, "s", "s", "<|user|>s</s><|assistant|>", "</s>"),
        (CHATML, "response", " response_ ", "<|user|>response</s><|assistant|>", "</s>"),
        ("{prompt}|{prompt}|{response}|", "a|b", "a", "a|b|a|b|", "|"),
        ("{% for m in messages %}{{ m.content | upper }}.{% endfor %}", "a", "A", "A.", "."),
    ],
)
def test_the_response_is_found_where_it_was_written(template, prompt, response, before, after):
    """Not by its words, which prompt and template may hold too."""
    aligned = encoder(make_tokenizer(), template=template).align(Item.of(prompt, response))
    start, stop = aligned.response
    cut = (aligned.tokens[:start], aligned.tokens[start:stop], aligned.tokens[stop:])
    assert tuple(map("".join, cut)) == (before, response.strip(), after)


def test_the_response_ends_before_what_overwriting_adds():
    own = encoder(make_tokenizer(), template="{prompt}>{response}", eos="overwrite")
    aligned = own.align(Item.of("q", "yes\n\n"))
    start, stop = aligned.response
    assert "".join(aligned.tokens[start:stop]) == "yes"
    assert aligned.text == "q>yes <eos>"


def test_every_rule_is_in_the_fingerprint():
    choices = [
        {},
        {"bos": "keep"},
        {"bos": "none"},
        {"bos": "add"},
        {"eos": "append"},
        {"eos": "overwrite"},
        {"rule": "last"},
        {"template": "{prompt}{response}"},
        {"template": CHATML},
    ]
    hashes = [encoder(llama(), **c).fingerprint() for c in choices]
    hashes += [encoder(llama(CHATML)).fingerprint(), encoder(llama(), 0).fingerprint()]
    assert len(set(hashes)) == len(hashes) - 1  # the same template, given or the tokenizer's own
    assert encoder(llama()).fingerprint() == hashes[0]
