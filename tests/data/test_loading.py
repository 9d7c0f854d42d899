from __future__ import annotations

import gzip
import itertools
import json
import math
import re
import subprocess
import sys

import datasets
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_lens.data import Item, Message, as_pairs, load_pairs
from reward_lens.data.formats import file_rows
from reward_lens.errors import DataError

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
        {"prompt": "q", "chosen": [USER, GOOD], "rejected": [USER, BAD]},  # as UltraFeedback has it
        {"prompt": [USER], "chosen": GOOD, "rejected": BAD},
        {**ROW, "question": None, "id": float("nan"), "subset": pd.NA},
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
    padded = {
        "input_ids_chosen": [9, 1, 2],
        "attention_mask_chosen": [0, 1, 1],
        "input_ids_rejected": [1, 3, 9],
        "attention_mask_rejected": [1, 1, 0],
    }
    (masked,) = as_pairs([padded])
    assert (masked.chosen.ids, masked.rejected.ids) == ((1, 2), (1, 3))
    (prompted,) = as_pairs([{"prompt": "q", "text_chosen": "<s>a", "text_rejected": "<s>b"}])
    assert prompted.chosen.text == "<s>a"
    assert prompted.lineage == prompted.rejected.lineage == Item.of("q", "x").lineage


def test_what_is_scored_must_be_clear():
    both = {**ROW, "text_chosen": "<s>a", "text_rejected": "<s>b"}
    with pytest.raises(DataError, match=r"row 0 has 'text_chosen'.*'chosen'.*not clear"):
        as_pairs([both])
    assert load_pairs([both], chosen="chosen", rejected="rejected")[0].chosen.response == "good"


def test_several_rejected_are_several_pairs_of_one_lineage():
    pairs = as_pairs([{**ROW, "rejected": ["b1", "b2"], "id": "x", "subset": "s"}])
    assert pairs.ids == ["x#0", "x#1"]
    assert [p.rejected.response for p in pairs] == ["b1", "b2"]
    assert len(set(pairs.lineages)) == 1
    assert list(pairs.subsets) == ["s", "s"]
    product = as_pairs([{**ROW, "chosen": ["g1", "g2"], "rejected": ["b1", "b2"]}])
    assert [(p.chosen.response, p.rejected.response) for p in product] == [
        ("g1", "b1"),
        ("g1", "b2"),
        ("g2", "b1"),
        ("g2", "b2"),
    ]
    assert as_pairs([{**ROW, "rejected": ["b"], "id": "x"}]).ids == ["x"]


def test_equal_sides_and_equal_rows_are_kept():
    pairs = as_pairs([("q", "same", "same"), ("q", "same", "same")])
    assert pairs.ids == ["row-0", "row-1"]
    assert pairs[0].chosen.content() == pairs[0].rejected.content()


def test_labels_are_kept():
    (pair,) = as_pairs([{**ROW, "id": 7, "subset": "s", "lineage": "l", "source": "o", "n": 3}])
    assert (pair.id, pair.subset, pair.lineage, pair.source) == ("7", "s", "l", "o")
    assert pair.meta == {"n": 3}
    assert (pair.chosen.id, pair.rejected.id) == ("7/chosen", "7/rejected")
    (other,) = load_pairs(
        [{"ask": "q", "chosen": "a", "rejected": "b", "prompt_id": "l", "x": [1], "y": math.inf}],
        prompt="ask",
    )
    assert other.lineage == "l"
    assert other.meta == {}
    assert pair.chosen.lineage == "l"


def test_a_transcript_prompt_is_scored_as_given_unless_asked():
    row = {**ROW, "prompt": "Human: a\n\nAssistant: b\n\nHuman: c"}
    (as_given,) = as_pairs([row])
    assert len(as_given.prompt) == 1
    (turns,) = load_pairs([row], transcripts=True)
    assert [m.content for m in turns.prompt] == ["a", "b", "c"]
    assert [m.role for m in turns.prompt] == ["user", "assistant", "user"]
    (open_ended,) = load_pairs([{**ROW, "prompt": "\n\nHuman: a\n\nAssistant:"}], transcripts=True)
    assert open_ended.prompt == (Message("user", "a"),)
    (plain,) = load_pairs([ROW], transcripts=True)
    assert plain.prompt == (Message("user", "q"),)
    for prompt, message in (
        ("Human: a\n\nAssistant: b", "does not end in a 'Human:' turn"),
        ("Assistant: b", "does not begin with 'Human:'"),
    ):
        with pytest.raises(DataError, match=f"row 0: prompt is a transcript that {message}"):
            load_pairs([{**ROW, "prompt": prompt}], transcripts=True)
    with pytest.raises(DataError, match="choose 'auto', True or False"):
        load_pairs([ROW], transcripts="yes")


def test_a_long_transcript_is_a_conversation():
    context = "\n\nHuman: a\n\nAssistant: b\nc\n\nHuman: d\n\nAssistant:"
    row = {"chosen": f"{context} good\n\nstill good", "rejected": f"{context} bad"}
    (pair,) = as_pairs([row])
    assert [m.content for m in pair.prompt] == ["a", "b\nc", "d"]
    assert (pair.chosen.response, pair.rejected.response) == ("good\n\nstill good", "bad")
    with pytest.raises(DataError, match="chosen is no transcript"):
        load_pairs([row], transcripts=False)


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
    found["tuples"] = load_pairs([tuple(r[k] for k in ROW) for r in rows]).fingerprint
    found["iterator"] = load_pairs(iter(rows)).fingerprint
    assert set(found.values()) == {expected}, found


def test_a_saved_data_set(tmp_path):
    table = datasets.Dataset.from_list([ROW])
    table.save_to_disk(str(tmp_path / "d"))
    assert load_pairs(tmp_path / "d").fingerprint == as_pairs([ROW]).fingerprint
    with pytest.raises(DataError, match="no data set saved"):
        load_pairs(tmp_path)
    with pytest.raises(DataError, match="no splits; leave split='train' out"):
        load_pairs(tmp_path / "d", split="train")
    parts = datasets.DatasetDict(train=datasets.Dataset.from_list([ROW, ROW]), test=table)
    parts.save_to_disk(str(tmp_path / "parts"))
    assert len(load_pairs(tmp_path / "parts", split="test")) == 1
    with pytest.raises(DataError, match=r"splits \['train', 'test'\]; choose one with split="):
        load_pairs(tmp_path / "parts")
    with pytest.raises(DataError, match="got 'dev'"):
        load_pairs(tmp_path / "parts", split="dev")
    with pytest.raises(DataError, match=r"the splits \['train', 'test'\]; pass one"):
        as_pairs(parts)


def test_the_first_rows(tmp_path):
    path = write(tmp_path, "p.jsonl", [{**ROW, "id": k} for k in range(5)])
    assert load_pairs(path, limit=2).ids == ["0", "1"]
    with pytest.raises(DataError, match="limit=0"):
        load_pairs(path, limit=0)
    several = [{**ROW, "rejected": ["b1", "b2"]}, ROW]
    for source in (several, write(tmp_path, "s.jsonl", several), as_pairs(several)[:2]):
        assert load_pairs(source, limit=2).ids[:2] == ["row-0#0", "row-0#1"]
    # rows, not pairs; and what comes after them is not read
    endless = ({**ROW, "rejected": ["b1", "b2"]} for _ in itertools.count())
    assert load_pairs(endless, limit=1).ids == ["row-0#0", "row-0#1"]


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
        ({"prompt": "q", "chosen": "a", "rejected": None}, "rejected is null"),
        ({"text_chosen": "a", "text_rejected": None}, "text_rejected is null"),
        ({"text_chosen": "a"}, "no field 'text_rejected'"),
        ({"text_chosen": "a", "text_rejected": ""}, "text_rejected is empty"),
        ({"input_ids_chosen": [1], "input_ids_rejected": ["a"]}, "input_ids_rejected must be one"),
        ({**ROW, "prompt": True}, "prompt is a bool"),
        ({**ROW, "rejected": []}, "rejected must be a non-empty list"),
        ({**ROW, "rejected": ["b", " "]}, "rejected is empty"),
        ({**ROW, "lineage": 2.5}, "lineage is a float, expected a label"),
        ({"chosen": "\n\nHuman: q\n\nAssistant: ", "rejected": "x"}, "chosen.*is empty"),
        ({"chosen": "\n\nAssistant: q", "rejected": "x"}, "chosen.*does not begin with 'Human:'"),
        (
            {
                "chosen": "\n\nHuman: q\n\nAssistant: a",
                "rejected": "\n\nHuman: z\n\nAssistant: b",
            },
            "differ before the last turn",
        ),
        ({**ROW, "chosen": [{"role": "assistant", "content": [{"text": "a"}]}]}, "list of parts"),
        ({"chosen": "a", "rejected": "b"}, "no prompt, and chosen is no transcript"),
        ({**ROW, "prompt": "other", "chosen": [USER, GOOD]}, r"begins with exactly this prompt"),
        ({**ROW, "chosen": [USER]}, r"chosen must be text or the assistant's one message"),
        (
            {"chosen": [USER, GOOD], "rejected": [{**USER, "content": "z"}, BAD]},
            "differ before the last turn",
        ),
        ({"chosen": [USER], "rejected": [USER]}, "chosen: the last turn must be the response"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "chosen needs a prompt"),
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
        ("p.jsonl", b'{"prompt": "a\n', r"not JSON \(Invalid control character at column 14\)"),
        ("p.jsonl", b"[1]\n", "line 1: expected a JSON object, found a list"),
        ("p.jsonl", b'{"prompt": "\xff"}\n', "line 1: not UTF-8"),
        ("p.json", b'{"data": []}', "expected a list of objects"),
        ("p.json", b"[3]", "row 0: expected a JSON object, found a int"),
        ("p.json", b" ", "no rows"),
        ("p.json", b"[\n{},\n{]", r"not JSON .* line 3, column 2"),
        ("p.json", b'\xff\xfe["', "not UTF-8"),
        ("p.jsonl", b'{"a": 1}\n', r"line 1 has no field 'chosen'; it has \['a'\]"),
        ("p.jsonl", b'{"prompt": 1, "prompt": 2}\n', "line 1: a JSON object has 'prompt' twice"),
        ("p.jsonl", b'{"chosen": "\\ud800", "prompt": "q", "rejected": "b"}\n', "lone surrogate"),
        *(
            (
                "p.jsonl",
                json.dumps({**ROW, key: "a\ud800"}).encode(),
                f"{key} holds the lone surrogate",
            )
            for key in ("id", "subset", "lineage")
        ),
        ("p.jsonl.gz", b"plain", "not a whole gzip file"),
        (
            "p.jsonl.gz",
            gzip.compress(json.dumps(ROW).encode() + b"\n", mtime=0)[:-9],
            "not a whole gzip file",
        ),
        ("p.csv", b"", "no rows"),
        ("p.csv", b"prompt,chosen,rejected\n", "no rows"),
        ("p.csv", b"prompt,chosen,rejected\nq,,b\n", "line 2: chosen is empty"),
        ("p.csv", b"prompt,chosen,chosen\nq,a,b\n", "line 1 has 'chosen' twice"),
        ("p.csv", b'prompt,chosen,rejected\n"q\nq",a,b\n"q\nq",,b\n', "line 4: chosen is empty"),
        ("p.csv", b"prompt,chosen,rejected\nq,a,b\nq,\xff,b\n", "line 3: not UTF-8"),
        ("p.csv", b'prompt,chosen,rejected\nq,"a,b\n', "line 2: not CSV"),
        (
            "p.csv",
            b"prompt,chosen,rejected\nq,\"[{'content': 'a', 'role': 'assistant'}]\",b\n",
            "line 2: chosen is a list of messages written as text",
        ),
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


def test_options_that_mean_nothing_are_refused(tmp_path):
    path = write(tmp_path, "p.jsonl", [ROW])
    for source in (path, [ROW]):
        with pytest.raises(DataError, match=r"split='test' is for data sets of the hub.*Pairs"):
            load_pairs(source, split="test")
        with pytest.raises(DataError, match="revision='main' is for"):
            load_pairs(source, revision="main")
    with pytest.raises(DataError, match="pairs already"):
        load_pairs(as_pairs([ROW]), prompt="ask")


def test_importing_the_room_is_light():
    heavy = "{'torch', 'transformers', 'datasets'} & set(sys.modules)"
    code = f"import sys, reward_lens.data; sys.exit(str({heavy}) if {heavy} else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_row_is_no_list():
    with pytest.raises(DataError, match="put it in a list"):
        as_pairs(ROW)
    with pytest.raises(DataError, match="tuple of 2"):
        as_pairs([("q", "a")])
    with pytest.raises(DataError, match=r"3 texts; put it in a list, as in \[\(prompt, chosen"):
        as_pairs(("q", "good", "bad"))
    with pytest.raises(DataError, match="row 0 is a str; a pair is"):
        as_pairs(["q", "good", "bad"])
    with pytest.raises(DataError, match="got one Pair"):
        as_pairs(as_pairs([ROW])[0])
    with pytest.raises(DataError, match="for a file use load_pairs"):
        as_pairs("pairs.jsonl")
    with pytest.raises(DataError, match="got int"):
        as_pairs(3)
    with pytest.raises(DataError, match="the table has 'chosen' twice"):
        as_pairs(pd.DataFrame([["q", "a", "b"]], columns=["prompt", "chosen", "chosen"]))
    with pytest.raises(DataError, match="there are no pairs"):
        as_pairs([])


def readme(shared):
    return (shared / "data" / "README.md").read_text(encoding="utf-8")


def test_the_reference_pairs(shared):
    pairs = load_pairs(shared / "data" / "pairs.jsonl")
    assert len(pairs) == 2962
    table = re.findall(r"^\| ([\w-]+) \| (\d+) \| (\d+) \|", readme(shared), flags=re.M)
    assert pairs.subset_counts == {name: int(n) for name, n, _ in table}
    parts = pairs.split(json.loads((shared / "data" / "split.json").read_text()))
    assert {k: len(v) for k, v in parts.items()} == {"train": 2371, "test": 591}
    assert parts["test"].subset_counts == {name: int(n) for name, _, n in table}
    assert not set(parts["train"].lineages) & set(parts["test"].lineages)
    with pytest.raises(DataError, match=r"line 1 has no field 'chosen'"):
        load_pairs(shared / "data" / "pairs_multiturn_messages.jsonl")


def test_transcripts_of_the_reference_pairs_are_the_messages_beside_them(shared):
    pairs = load_pairs(shared / "data" / "pairs.jsonl", transcripts=True)
    prompts = {p.id: p.prompt for p in pairs}
    lines = (shared / "data" / "pairs_multiturn_messages.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in lines.splitlines()]
    assert len(rows) == 350
    for row in rows:
        assert [(m.role, m.content) for m in prompts[row["id"]]] == [
            (m["role"], m["content"]) for m in row["messages"]
        ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.csv", "a.parquet"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=re.escape(str(tmp_path / name))):
        list(file_rows(tmp_path / name))
