"""Bad input: the place, the value and the way out; nothing is lost silently, and only TraceError ever escapes."""

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces.files as files
from tests.traces.written_file import written
from traces import TraceError, iter_requests, read_requests

HEADER = "arrival_s,input_tokens,output_tokens\n"
GOOD = HEADER + "0,10,2\n1,20,3\n"


@pytest.mark.parametrize(
    ("row", "message", "reason"),
    [
        ("1,20", r"2 columns where the header has 3", "columns"),
        ("1,20,3,4", r"4 columns where the header has 3", "columns"),
        ("1,-5,3", r"input_tokens: -5: tokens cannot be negative", "input_tokens: negative"),
        ("1,5,0", r"output_tokens: 0 tokens: at least 1 expected", "output_tokens: zero"),
        ("1,5,", r"output_tokens: no value", "output_tokens: missing"),
        ("1,5,x", r"output_tokens: 'x' is not a number", "output_tokens: not a number"),
        ("1,5.5,3", r"input_tokens: 5.5 is not a whole number", "input_tokens: not whole"),
        ("1,1e400,3", r"input_tokens: inf is not a finite", "input_tokens: not finite"),
        ("1,nan,3", r"input_tokens: nan is not a finite", "input_tokens: not finite"),
        ("1,1000000000000000000,3", r"input_tokens: .* more than 1000000000 tokens", "input_tokens: too large"),
        (f"1,{'9' * 90},3", r"input_tokens: .* too large", "input_tokens: too large"),
        ("1,1_0,3", r"input_tokens: '1_0' is not a number", "input_tokens: not a number"),
        ("-1,5,3", r"arrival_s: -1: an arrival time cannot be negative", "arrival_s: negative"),
        ("inf,5,3", r"arrival_s: inf is not a finite", "arrival_s: not finite"),
        ("1e18,5,3", r"arrival_s: .* too large for an arrival time", "arrival_s: too large"),
        (",5,3", r"arrival_s: no value", "arrival_s: missing"),
    ],
)
def test_a_bad_row_stops_at_its_line_or_is_counted(tmp_path, row, message, reason):
    path = written(tmp_path, HEADER + "0,10,2\n\n2,20,3\n" + row + "\n3,30,4\n")
    with pytest.raises(TraceError, match=rf"trace:5: {message}"):
        read_requests(path)
    table = read_requests(path, on_error="skip")
    assert dict(table.skipped) == {reason: 1}
    assert table.input_tokens.tolist() == [10, 20, 30]
    assert table.arrival_s.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("line", "message", "reason"),
    [
        ('{"timestamp": 5, "input_length": 5, "out', "not valid JSON", "not JSON"),
        ("[1, 2]", "one JSON object per line expected", "not an object"),
        ('{"timestamp": 5, "input_length": 5}', "output_length: no value", "output_length: missing"),
        ('{"timestamp": 5, "input_length": true, "output_length": 1}', "True is not a number", None),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 1}', "nan is not a finite", None),
        ('{"timestamp": 5, "input_length": 5, "output_length": 1, "hash_ids": "a b"}', "not a list of integer", None),
        ('{"timestamp": 5, "input_length": 5, "output_length": 1, "hash_ids": [1, 2]}', "2 block ids for 5", None),
        ('{"timestamp": 5, "input_length": 5, "output_length": 1, "hash_ids": [1.5]}', "not a list of integer", None),
        ('{"timestamp": {}, "input_length": 5, "output_length": 1}', "{} is not a time such as", None),
    ],
)
def test_bad_json_lines(tmp_path, line, message, reason):
    good = '{"timestamp": %d, "input_length": 5, "output_length": 2, "hash_ids": [1]}'
    path = written(tmp_path, "\n".join([good % 0, good % 9, line, good % 10]), "t.jsonl")
    with pytest.raises(TraceError, match=rf"t\.jsonl:3: .*{message}"):
        read_requests(path)
    table = read_requests(path, on_error="skip")
    assert len(table) == 3
    assert sum(table.skipped.values()) == 1
    assert reason is None or dict(table.skipped) == {reason: 1}


def test_line_numbers_hold_across_blocks_and_quotes(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_BYTES", 64)
    rows = [f'{i},10,2,"a ""b"" {i}\nc"\n' for i in range(100)]
    rows[60] = '60,10,zero,"x\ny"\n'
    path = written(tmp_path, "arrival_s,input_tokens,output_tokens,text\n" + "".join(rows))
    with pytest.raises(TraceError, match=r"trace:122: output_tokens: 'zero'"):
        read_requests(path)
    assert len(read_requests(path, on_error="skip")) == 99
    plain = written(tmp_path, HEADER + "".join(f"{i},10,{0 if i == 77 else 2}\r\n" for i in range(100)), "plain.csv")
    with pytest.raises(TraceError, match=r"plain\.csv:79: output_tokens: 0 tokens"):
        read_requests(plain)


def test_the_first_bad_row_is_reported_whatever_its_kind(tmp_path):
    path = written(tmp_path, HEADER + "0,10,2\n1,x,2\n1,2\n-1,2,2\n")
    with pytest.raises(TraceError, match=r"trace:3: input_tokens"):
        read_requests(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\n \n\n", "nothing but blanks"),
        (HEADER.encode(), "no requests"),
        (b"\x00\x01\x02\x03junk\xff" * 30, "binary data"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "binary data"),
        (b"PK\x03\x04rest", "zip-compressed"),
        (b"\x28\xb5\x2f\xfdrest", "zstd-compressed"),
        (b"PAR1 and no more", "not a readable Parquet"),
        (gzip.compress(GOOD.encode() * 99, mtime=0)[:60], "gzip data is damaged or cut short"),
        (b"\x1f\x8b", "gzip data is damaged or cut short"),
        (b"\x1f\x8bjunk that is no gzip", "gzip data is damaged"),
        (
            b"a,b,c\n1,2,3\n",
            r"no trace format fits; columns seen: 'a', 'b', 'c'. Say which is which with --map arrival=COLUMN",
        ),
        (b"arrival_s,input_tokens\n1,2\n", r"input_tokens is there, but no column for the other token count"),
        (b"0,10,2\n1,20,3\n", "looks like data; a header line"),
        (b"arrival_s,input_tokens,output_tokens,input_tokens\n0,1,2,3\n", "column 'input_tokens' appears 2 times"),
        (HEADER.encode() + b"0,10,2\n1,\xe9,3\n", r":3: byte 0xe9 is not UTF-8"),
        (b"{\n\n  [", "not valid JSON"),
        (b"[1, 2]", "without any object"),
        (b'[{"a": 1}', "not valid JSON"),
        (b'{"a": 1}\n', r"no trace format fits; keys seen: 'a'"),
    ],
)
def test_files_that_are_no_trace(tmp_path, data, message):
    path = written(tmp_path, data)
    with pytest.raises(TraceError, match=message) as caught:
        read_requests(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_arguments_name_what_is_right(tmp_path):
    path = written(tmp_path, GOOD)
    for keywords, message in [
        ({"format": "azure"}, r"no trace format 'azure'; did you mean 'azure-ll?mm?'"),
        ({"format": "mooncake"}, r"no column for arrival_s in format 'mooncake' \(accepted: timestamp\)"),
        ({"on_error": "ignore"}, "'stop' or 'skip'"),
        ({"limit": 0}, "limit: 0"),
        ({"block_token": 16}, r"takes no option 'block_token'; did you mean 'block_tokens'"),
        ({"drop_failures": False}, r"'forerun' takes no option 'drop_failures' \(it takes: block_tokens\)"),
        ({"block_tokens": 0}, "block_tokens: 0"),
    ]:
        with pytest.raises(TraceError, match=message):
            read_requests(path, **keywords)
    with pytest.raises(TraceError, match="no such file"):
        read_requests(tmp_path / "absent.csv")
    with pytest.raises(TraceError, match="holds neither"):
        read_requests(tmp_path / "..", "servegen")


def test_undecodable_bytes_can_be_skipped(tmp_path):
    path = written(tmp_path, HEADER.encode() + b"0,10,2\n1,1\xe9,3\n2,30,4\n")
    table = read_requests(path, on_error="skip")
    assert dict(table.skipped) == {"not UTF-8": 1}
    assert table.input_tokens.tolist() == [10, 30]


def test_nothing_usable_says_why(tmp_path):
    path = written(tmp_path, HEADER + "0,0,2\n1,0,3\n")
    for reader in (read_requests, lambda *a, **k: list(iter_requests(*a, **k))):
        with pytest.raises(TraceError, match=r"no usable request; 2 rows left out \(input_tokens: zero: 2\)"):
            reader(path, on_error="skip")


def test_a_quote_that_never_closes_is_not_read_to_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_BYTES", 100)
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1000)
    path = written(tmp_path, HEADER + '0,10,2\n1,"20,3\n' + "2,30,4\n" * 1000)
    with pytest.raises(TraceError, match=r"trace:3: a quoted field that never closes"):
        read_requests(path)


def test_order_is_mended_stably_and_reported(tmp_path):
    path = written(tmp_path, HEADER + "5,1,1\n3,2,2\n5,3,3\n3,4,4\n")
    table = read_requests(path)
    assert table.arrival_s.tolist() == [0, 0, 2, 2]
    assert table.input_tokens.tolist() == [2, 4, 1, 3]
    assert table.notes == ("2 rows earlier than the row before them; sorted by arrival",)


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        ("1700000000", "1700000002", 2),
        ("1700000000000", "1700000000250", 0.25),
        ("1700000000000000", "1700000000000001", 1e-6),
        ("1700000000000000000", "1700000000000000001", 1e-9),
        ("0.25", "1.5", 1.25),
    ],
)
def test_epoch_and_relative_times_start_at_zero(tmp_path, first, second, seconds):
    path = written(tmp_path, f"timestamp,prompt_tokens,completion_tokens\n{first},1,1\n{second},1,1\n")
    assert read_requests(path).arrival_s.tolist() == [0, seconds]


def test_one_bad_epoch_does_not_blur_the_others(tmp_path):
    rows = ["1700000000000000000", "", "1700000000000000001"]
    path = written(tmp_path, "timestamp_ns,prompt_tokens,completion_tokens\n" + "".join(f"{row},1,1\n" for row in rows))
    assert read_requests(path, on_error="skip").arrival_s.tolist() == [0, 1e-9]


AZURE_ROW = "2023-11-16 18:17:0%d.9799600,4808,10"


@pytest.mark.parametrize(
    "stamp",
    ["2023-13-16 18:17:03", "NaT", "now", "2023-11-16", "1600-01-01 00:00:00", "1e9", "", "2023-11-16 18:17:03."],
)
def test_bad_dates(tmp_path, stamp):
    rows = [AZURE_ROW % 1, f"{stamp},5,5", AZURE_ROW % 3]
    path = written(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows))
    with pytest.raises(TraceError, match=r"trace:3: TIMESTAMP: "):
        read_requests(path)
    assert read_requests(path, on_error="skip").arrival_s.tolist() == [0, 2]


def test_the_limit_stops_before_later_damage(tmp_path):
    path = written(tmp_path, HEADER + "0,10,2\n1,0,3\n2,30,3\nbroken\n3,0,3\n")
    assert len(read_requests(path, limit=1)) == 1
    table = read_requests(path, limit=2, on_error="skip")
    assert (table.input_tokens.tolist(), dict(table.skipped)) == ([10, 30], {"input_tokens: zero": 1})


@given(st.lists(st.tuples(st.sampled_from(["0", "1", "7.0", "x", "", "-1", "1e18"]), st.booleans()), min_size=1))
@settings(max_examples=60, deadline=None)
def test_every_row_is_kept_or_counted(rows):
    text = HEADER + "0,1,1\n" + "".join(f"1,{value},2{',9' if extra else ''}\n" for value, extra in rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_text(text)
        table = read_requests(path, on_error="skip")
    assert len(table) + sum(table.skipped.values()) == len(rows) + 1


def test_a_damaged_header_does_not_lose_its_columns(tmp_path):
    path = written(tmp_path, b"\x80,arrival_s,input_tokens,output_tokens\n9,0,10,2\n")
    assert read_requests(path, on_error="skip").input_tokens.tolist() == [10]
