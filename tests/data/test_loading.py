from __future__ import annotations

import gzip
import json

import datasets
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_lens.data import Item, Message, as_pairs, load_pairs
from reward_lens.errors import DataError, DownloadRefused

ROW = {"prompt": "q", "chosen": "good", "rejected": "bad"}
USER, GOOD, BAD = (
    {"role": r, "content": c}
    for r, c in (("user", "q"), ("assistant", "good"), ("assistant", "bad"))
)


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        ("q", "good", "bad"),
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [USER], "chosen": "good", "rejected": "bad"},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": "\n\nHuman: q\n\nAssistant: good", "rejected": "\n\nHuman: q\n\nAssistant: bad"},
        {"question": "q", "chosen_response": "good", "rejected_response": "bad"},
    ],
)
def test_every_form_is_one_pair(row):
    (pair,) = as_pairs([row])
    assert pair.chosen.messages == (Message("user", "q"), Message("assistant", "good"))
    assert pair.rejected.response == "bad"
    assert pair.lineage == Item.of("q", "x").lineage


def test_rendered_texts_and_ids():
    (pair,) = as_pairs([{"text_chosen": "<s>a", "text_rejected": "<s>b"}])
    assert (pair.chosen.text, pair.rejected.text) == ("<s>a", "<s>b")
    (pair,) = as_pairs([{"chosen_input_ids": [1, 2], "rejected_input_ids": [1, 3]}])
    assert (pair.chosen.ids, pair.rejected.ids) == ((1, 2), (1, 3))


def test_several_rejected_are_several_pairs_of_one_lineage():
    pairs = as_pairs([{**ROW, "rejected": ["b1", "b2"], "id": "x", "subset": "s"}])
    assert pairs.ids == ["x#0", "x#1"]
    assert [p.rejected.response for p in pairs] == ["b1", "b2"]
    assert len(set(pairs.lineages)) == 1
    assert list(pairs.subsets) == ["s", "s"]


def test_labels_are_kept():
    (pair,) = as_pairs([{**ROW, "id": 7, "subset": "s", "lineage": "l", "source": "o", "n": 3}])
    assert (pair.id, pair.subset, pair.lineage, pair.source) == ("7", "s", "l", "o")
    assert pair.meta == {"n": 3}
    assert pair.chosen.lineage == "l"


def test_a_transcript_prompt_is_scored_as_given_unless_asked():
    row = {**ROW, "prompt": "Human: a\n\nAssistant: b\n\nHuman: c"}
    (as_given,) = as_pairs([row])
    assert len(as_given.prompt) == 1
    (turns,) = load_pairs([row], transcripts=True)
    assert [m.content for m in turns.prompt] == ["a", "b", "c"]
    assert [m.role for m in turns.prompt] == ["user", "assistant", "user"]


def write(tmp_path, name, rows):
    path = tmp_path / name
    frame = pd.DataFrame(rows)
    if name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
    elif name.endswith(".json"):
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif name.endswith(".csv"):
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return path


FORMATS = ["p.jsonl", "p.jsonl.gz", "p.json", "p.csv", "p.parquet"]
TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\x00"), min_size=1, max_size=12
).filter(str.strip)


@settings(max_examples=15, deadline=None)
@given(rows=st.lists(st.fixed_dictionaries(dict.fromkeys(ROW, TEXT)), min_size=1, max_size=4))
def test_every_format_gives_the_same_pairs(tmp_path_factory, rows):
    tmp_path = tmp_path_factory.mktemp("formats")
    expected = as_pairs(rows).fingerprint
    found = {f: load_pairs(write(tmp_path, f, rows)).fingerprint for f in FORMATS}
    found["frame"] = load_pairs(pd.DataFrame(rows)).fingerprint
    table = datasets.Dataset.from_list(rows)
    found["dataset"] = load_pairs(table).fingerprint
    assert set(found.values()) == {expected}, found


def test_a_saved_data_set(tmp_path):
    datasets.Dataset.from_list([ROW]).save_to_disk(str(tmp_path / "d"))
    assert load_pairs(tmp_path / "d").fingerprint == as_pairs([ROW]).fingerprint
    with pytest.raises(DataError, match="no data set saved"):
        load_pairs(tmp_path)


def test_the_first_rows(tmp_path):
    path = write(tmp_path, "p.jsonl", [{**ROW, "id": k} for k in range(5)])
    assert load_pairs(path, limit=2).ids == ["0", "1"]
    with pytest.raises(DataError, match="limit=0"):
        load_pairs(path, limit=0)


def test_named_columns():
    rows = [{"ask": "q", "win": "good", "lose": "bad"}]
    assert (
        load_pairs(rows, prompt="ask", chosen="win", rejected="lose")[0].chosen.response == "good"
    )
    with pytest.raises(DataError, match="no column 'nope'"):
        load_pairs(rows, prompt="nope", chosen="win", rejected="lose")
    with pytest.raises(DataError, match="'prompt' and 'question' could each"):
        load_pairs([{**ROW, "question": "?"}])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW, "prompt": 5}, "prompt is a int"),
        ({**ROW, "chosen": ""}, "chosen is empty"),
        ({**ROW, "rejected": 1.5}, "rejected is a float"),
        ({"prompt": "q", "chosen": "a"}, "no field 'rejected'"),
        ({"prompt": "q", "chosen": "a", "rejected": None}, "no field 'rejected'"),
        ({"chosen": "a", "rejected": "b"}, "no prompt, and chosen is no transcript"),
        ({**ROW, "chosen": [USER, GOOD]}, r"must be text or the assistant's one message"),
        (
            {"chosen": [USER, GOOD], "rejected": [{**USER, "content": "z"}, BAD]},
            "differ before the last turn",
        ),
        ({"chosen": [USER], "rejected": [USER]}, "must end in an assistant turn"),
        ({**ROW, "id": [1]}, "id is a list"),
        ({**ROW, "prompt": []}, "prompt must be a non-empty list"),
        ({"id": "m", "messages": [USER, GOOD]}, "no field 'chosen'"),
    ],
)
def test_a_malformed_row_is_refused_with_file_line_and_field(tmp_path, row, message):
    path = write(tmp_path, "p.jsonl", [{**ROW, "id": "ok"}, row])
    with pytest.raises(DataError, match=f"p.jsonl, line 2.*{message}"):
        load_pairs(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", b"", "no rows"),
        ("p.json", b"[]", "no rows"),
        ("p.jsonl", b"{not json}\n", "line 1: not JSON"),
        ("p.jsonl", b"[1]\n", "line 1: expected a JSON object, found a list"),
        ("p.jsonl", b'{"prompt": "\xff"}\n', "not UTF-8"),
        ("p.json", b'{"data": []}', "expected a list of objects"),
        ("p.json", b"[3]", "row 0: expected an object"),
        ("p.csv", b"prompt,chosen,rejected\nq,a\n", "line 2: the row and the header differ"),
        ("p.parquet", b"PAR0", "not a Parquet file"),
        ("p.txt", b"hello", "expected one of .jsonl"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_pairs(tmp_path / name)


def test_marks_at_the_start_of_a_file_and_windows_lines(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ROW).encode() + b"\r\n\r\n")
    assert load_pairs(path).fingerprint == as_pairs([ROW]).fingerprint


def test_an_id_used_twice_names_both_lines(tmp_path):
    path = write(tmp_path, "p.jsonl", [{**ROW, "id": "a"}, {**ROW, "id": "a"}])
    with pytest.raises(DataError, match=r"line 2: the id 'a' was used before, at .*line 1"):
        load_pairs(path)


def test_a_file_that_is_not_there():
    with pytest.raises(DataError, match="no such file"):
        load_pairs("nowhere/pairs.jsonl")


def test_a_hub_id_that_is_not_cached_is_refused():
    with pytest.raises(DownloadRefused, match=r"some-owner/some-pairs.*allow_download=True"):
        load_pairs("some-owner/some-pairs")


def test_one_row_is_no_list():
    with pytest.raises(DataError, match="single row in a list"):
        as_pairs(ROW)
    with pytest.raises(DataError, match="tuple of 2"):
        as_pairs([("q", "a")])


def test_the_reference_pairs(shared):
    pairs = load_pairs(shared / "data" / "pairs.jsonl")
    assert len(pairs) == 2962
    counts = pairs.subset_counts
    assert (counts["bbq-ambig"], counts["llmbar-natural"], counts["pandalm-human"]) == (
        132,
        100,
        350,
    )
    parts = pairs.split(json.loads((shared / "data" / "split.json").read_text()))
    assert {k: len(v) for k, v in parts.items()} == {"train": 2371, "test": 591}
    with pytest.raises(DataError, match=r"line 1 has no field 'chosen'"):
        load_pairs(shared / "data" / "pairs_multiturn_messages.jsonl")
