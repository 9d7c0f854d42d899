"""What every edit changes and what it keeps."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_lens.data.edits import EDITS, Edit, edits_named, end_token
from reward_lens.data.edits_phrases import PHRASES
from reward_lens.data.edits_prose import Prose
from reward_lens.errors import DataError

BY_LABEL = {e.label: e for e in EDITS}
CODE = "```python\nfor i in x:\n    # Why. Not a sentence. Really\n    step(i)\n```"
MIXED = (
    f"Here is how to sort a list in three lines. You can use code for that:\n\n{CODE}\n\n"
    "1. First write the function. Then call it.\n2. Second, see e.g. Dr. Smith for more.\n\n"
    "Python has sorting built in. It takes a key such as `my_key. Another` too. Goodbye, "
    "everybody who came.\n"
)
FOUR = "The first point holds. The second one follows. A third point comes. The fourth one ends."

# Sentences of plain words; capital letter first, a full stop last, as the reader of prose expects.
_WORDS = st.lists(st.sampled_from(["apple", "river", "seven", "letter", "winter", "ocean"]),
                  min_size=2, max_size=7)  # fmt: skip
_SENTENCES = _WORDS.map(lambda words: " ".join(words).capitalize() + ".")
_PARAGRAPHS = st.lists(_SENTENCES, min_size=1, max_size=5).map(" ".join)
TEXTS = st.lists(_PARAGRAPHS, min_size=1, max_size=3).map("\n\n".join)
WITH_CODE = st.tuples(TEXTS, st.sampled_from(["", f"\n\n{CODE}", f"\n\n{CODE}\n\nAnd so on."])).map(
    "".join
)


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def fenced(text: str) -> list[str]:
    return re.findall(r"^```.*?^```", text, flags=re.S | re.M)


def is_subsequence(short, long) -> bool:
    rest = iter(long)
    return all(x in rest for x in short)


def test_labels_tell_edits_apart_and_the_issue_is_covered():
    assert len(BY_LABEL) == len(EDITS)
    families = {e.family for e in EDITS}
    assert families == {"length", "format", "control", "tone", "flattery", "citation", "noise",
                        "ending"}  # fmt: skip
    for name in ("restated", "trimmed", "bold", "heading", "emoji", "hedging", "confident",
                 "flattery", "polite", "citation", "typos", "repeated"):  # fmt: skip
        assert {e.position for e in edits_named([name])} == {"start", "middle", "end"}
    assert {"markdown_off", "markdown_on", "list_form"} <= set(BY_LABEL)


@pytest.mark.parametrize("edit", EDITS, ids=lambda e: e.label)
@settings(max_examples=20)
@given(text=WITH_CODE)
def test_every_edit_keeps_code_is_repeatable_and_changes_something(edit, text):
    found = edit.apply(text)
    assert found == edit.apply(text)
    if found is not None:
        assert found != text
        assert found.strip()
        assert fenced(found) == fenced(text)


@pytest.mark.parametrize(
    "label", [e.label for e in EDITS if e.keeps == "every character of the response"]
)
@settings(max_examples=20)
@given(text=WITH_CODE)
def test_what_adds_takes_nothing_away_and_cuts_no_word(label, text):
    found = BY_LABEL[label].apply(text)
    if found is None:
        return
    assert is_subsequence(text, found)
    assert is_subsequence(words(text), words(found))  # each as a whole


@settings(max_examples=50)
@given(text=TEXTS)
def test_undoing_markdown_gives_the_words_back_in_order(text):
    for label in ("markdown_on", "list_form", "bold.start", "bold.middle", "bold.end"):
        marked = BY_LABEL[label].apply(text)
        if marked is None:
            continue
        assert words(marked) == words(text)
        back = BY_LABEL["markdown_off"].apply(marked)
        assert back is not None
        assert back.split() == text.split()


@settings(max_examples=50)
@given(text=WITH_CODE)
def test_typos_keep_letters_and_length(text):
    for position in ("start", "middle", "end"):
        found = BY_LABEL[f"typos.{position}"].apply(text)
        if found is None:
            continue
        assert len(found) == len(text)
        pairs = list(zip(words(text), words(found), strict=True))
        assert all(sorted(a) == sorted(b) and a[0] == b[0] and a[-1] == b[-1] for a, b in pairs)
        where = [k for k, (a, b) in enumerate(zip(text, found, strict=True)) if a != b]
        third = ("start", "middle", "end").index(position)
        longest = max(len(a) for a, _ in pairs)
        assert min(where) >= third * len(text) / 3
        assert max(where) < (third + 1) * len(text) / 3 + longest


@settings(max_examples=50)
@given(text=WITH_CODE)
def test_trimming_leaves_whole_sentences_in_order(text):
    before = [Prose(text).words(s) for s in Prose(text).sentences]
    for position in ("start", "middle", "end"):
        found = BY_LABEL[f"trimmed.{position}"].apply(text)
        if len(before) < 3:
            assert found is None
            continue
        assert found is not None
        after = [Prose(found).words(s) for s in Prose(found).sentences]
        gone = {"start": 0, "end": len(before) - 1}.get(position)
        if gone is None:
            gone = next(k for k, s in enumerate([*after, ""]) if s != before[k])
            assert 0 < gone <= len(before) - 1
        assert after == before[:gone] + before[gone + 1 :]


def test_sentences_are_read_past_code_abbreviations_and_lists():
    prose = Prose(MIXED)
    assert [(prose.words(s), s.kind) for s in prose.sentences] == [
        ("Here is how to sort a list in three lines.", "plain"),
        ("You can use code for that:", "plain"),
        ("First write the function.", "item"),
        ("Then call it.", "item"),
        ("Second, see e.g. Dr. Smith for more.", "item"),
        ("Python has sorting built in.", "plain"),
        ("It takes a key such as `my_key. Another` too.", "plain"),
        ("Goodbye, everybody who came.", "plain"),
    ]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("trimmed.start", FOUR.removeprefix("The first point holds. ")),
        ("trimmed.end", FOUR.removesuffix(" The fourth one ends.")),
        ("halved", "The first point holds. The second one follows."),
        ("bold.start", FOUR.replace("The first point holds.", "**The first point holds.**")),
        ("bold.end", FOUR.replace("The fourth one ends.", "**The fourth one ends.**")),
        ("repeated.end", f"{FOUR} The fourth one ends."),
        ("repeated.start", f"The first point holds. {FOUR}"),
        ("list_form", "- The first point holds.\n- The second one follows.\n- A third point comes."
                      "\n- The fourth one ends."),
        ("markdown_on", "**The first point holds.**\n\n- The second one follows.\n- A third point "
                        "comes.\n- The fourth one ends."),
        ("trailing_space.end", f"{FOUR} "),
        ("trailing_newlines.end", f"{FOUR}\n\n"),
        ("markdown_off", None),
    ],
)  # fmt: skip
def test_an_edit_by_hand(label, expected):
    assert BY_LABEL[label].apply(FOUR) == expected


def test_restating_says_again_what_was_said():
    start, middle, end = (BY_LABEL[f"restated.{p}"].apply(FOUR) for p in ("start", "middle", "end"))
    assert re.fullmatch(rf"\w[^:]*: A third point comes\. The fourth one ends\. {FOUR}", start)
    assert re.fullmatch(rf"{FOUR} \w[^:]*: {FOUR}", end)
    again = "The first point holds. The second one follows."
    assert re.fullmatch(rf"{again} \w[^:]*: {again} A third.*", middle)


def test_other_line_ends_and_scripts():
    assert BY_LABEL["trimmed.end"].apply("One.\r\nTwo.\r\n\r\nThree.\r\n") == "One.\r\nTwo.\r\n"
    assert BY_LABEL["trimmed.end"].apply("- one\n- two\n\n- three") == "- one\n- two"
    chinese = "你好。这是测试。最后一句。"
    assert BY_LABEL["markdown_on"].apply(chinese) == "**你好。**\n\n- 这是测试。\n- 最后一句。"
    assert BY_LABEL["trimmed.middle"].apply(chinese) == "你好。最后一句。"


def test_citations_come_before_the_full_stop():
    found = BY_LABEL["citation.middle"].apply(FOUR)
    assert re.fullmatch(r"The first point holds\. The second one follows [(\[][^)\]]*[)\]]\. A.*",
                        found)  # fmt: skip


def test_headings_at_three_places():
    assert re.match(r"## \w+\n\nThe first", BY_LABEL["heading.start"].apply(FOUR))
    middle = BY_LABEL["heading.middle"].apply(FOUR)
    assert re.search(r"follows\.\n\n## \w+\n\nA third", middle)
    assert re.search(r"comes\.\n\n## [\w ]+\n\nThe fourth", BY_LABEL["heading.end"].apply(FOUR))


def test_markdown_off_on_all_it_knows():
    marked = (
        "# Title\n\n> Quoted *words* here.\n\n- **Bold** item\n* another [link](http://a.b/c)\n"
        f"1. Numbered `x_y` stays\n\n---\n\n{CODE}\n\n| a | *b* |\nA product of 2 * 3 * 4 and "
        "snake_case_name and __strong__ and _soft_."
    )
    plain = (
        "Title\n\nQuoted words here.\n\nBold item\nanother link\n1. Numbered x_y stays\n\n\n"
        f"{CODE}\n\n| a | *b* |\nA product of 2 * 3 * 4 and snake_case_name and strong and soft."
    )
    assert BY_LABEL["markdown_off"].apply(marked) == plain


def test_code_and_inline_code_have_no_typos_and_no_bold():
    only = f"{CODE}"
    assert all(BY_LABEL[f"typos.{p}"].apply(only) is None for p in ("start", "middle", "end"))
    assert BY_LABEL["bold.start"].apply("Use `sorted(values)` for this.") is None
    assert BY_LABEL["flattery.start"].apply(only).endswith(f"\n\n{CODE}")
    assert BY_LABEL["flattery.end"].apply(only).startswith(f"{CODE}\n\n")
    assert BY_LABEL["flattery.middle"].apply(only) is None


def test_phrases_join_running_text_and_stand_apart_from_the_rest():
    def added(text, position):
        found = BY_LABEL[f"neutral.{position}"].apply(text)
        (phrase,) = [p for p in PHRASES["neutral"][2]["any"] if p in found]
        return found.replace(phrase, "<>")

    assert added("One thing.", "start") == "<> One thing."
    assert added("One thing.\n", "end") == "One thing. <>\n"
    assert added("No full stop", "end") == "No full stop\n\n<>"
    assert added("- item one\n- item two", "start") == "<>\n\n- item one\n- item two"
    assert added("- item one\n- item two", "end") == "- item one\n- item two\n\n<>"
    assert added("One. Two. Three. Four.", "middle") == "One. Two. <> Three. Four."


def test_an_edit_of_one_sentence_is_not_counted_at_two_places():
    assert BY_LABEL["bold.start"].apply("Only one sentence here.") is not None
    assert BY_LABEL["bold.end"].apply("Only one sentence here.") is None
    assert BY_LABEL["bold.middle"].apply("One. Two.") is None


def test_wordings_vary_with_text_and_seed_and_nothing_else():
    edit = BY_LABEL["flattery.end"]
    texts = [f"Answer number {k} is here." for k in range(40)]
    chosen = {edit.apply(t).removeprefix(t) for t in texts}
    assert len(chosen) == len(PHRASES["flattery"][2]["any"])
    assert len({edit.apply(texts[0], seed=s) for s in range(40)}) == len(chosen)


def test_end_token():
    edit = end_token("<|end|>")
    assert (edit.label, edit.family) == ("end_token.end", "ending")
    assert edit.apply("Yes.") == "Yes.<|end|>"


def test_choosing_by_label_name_and_family():
    assert [e.label for e in edits_named(["flattery.end"])] == ["flattery.end"]
    assert [e.label for e in edits_named(["ending", "halved"])] == [
        "halved", "trailing_space.end", "trailing_newlines.end",
    ]  # fmt: skip


def test_refusals():
    with pytest.raises(DataError, match="no edit 'flatery'; there are length, restated"):
        edits_named(["flatery"])
    with pytest.raises(DataError, match="give a list of names"):
        edits_named("flattery")
    with pytest.raises(DataError, match=r"edit bold.start: the response is empty"):
        BY_LABEL["bold.start"].apply("  ")
    with pytest.raises(DataError, match="the response is a int, expected text"):
        BY_LABEL["bold.start"].apply(3)


def test_an_edit_that_leaves_nothing_does_not_apply():
    empty = Edit("none", "noise", "whole", "nothing", "nothing", lambda prose, seed: "  ")
    assert empty.apply("Something.") is None
