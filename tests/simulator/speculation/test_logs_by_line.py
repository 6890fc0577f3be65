"""Engine logs read line by line: which counts each line holds, and where a file stops making sense."""

import json

import pytest

from forerun.errors import ForerunError
from simulator.speculation import engine_logs, read_acceptance


@pytest.fixture
def read(tmp_path):
    def read(text, name="engine.log"):
        path = tmp_path / name
        if isinstance(text, dict):
            text = json.dumps(text)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_acceptance(path)

    return read


def vllm(accepted, drafted, rates=None, length=None):
    parts = [] if length is None else [f"Mean acceptance length: {length}"]
    parts += [f"Accepted: {accepted} tokens", f"Drafted: {drafted} tokens"]
    parts += [] if rates is None else ["Per-position acceptance rate: " + ", ".join(f"{r:.3f}" for r in rates)]
    return "SpecDecoding metrics: " + ", ".join(parts) + "\n"


class TestVllmLines:
    def test_drafts_by_the_sharpest_way(self, read):
        """Accepted over the sum of shares; else over the length less the bonus; else drafted over positions."""
        by_rates = read(vllm(120, 300, [0.7, 0.4, 0.1], 9.9))
        assert (by_rates.num_drafts, by_rates.acceptance_length) == (100, pytest.approx(2.2))
        by_length = read(vllm(120, 300, None, 2.5))
        assert by_length.num_drafts == 80
        assert by_length.num_speculative_tokens == round(300 / 80)
        assert by_length.per_position is None
        none_accepted = read(vllm(0, 300, [0.0, 0.0, 0.0], 1.0))
        assert (none_accepted.num_drafts, none_accepted.acceptance_length) == (100, 1.0)

    def test_lines_without_counts_are_passed_over(self, read):
        line = vllm(120, 300, [0.7, 0.4, 0.1])
        useless = "SpecDecoding metrics: Drafted: 3 tokens\nSpecDecoding metrics: Accepted: 3 tokens\n" + vllm(0, 0)
        assert read(useless + line).records == 1
        with pytest.raises(ForerunError, match=":1: its SpecDecoding line lacks 'Accepted: N tokens'"):
            read(useless)
        with pytest.raises(ForerunError, match="count no draft"):
            read(vllm(0, 0, [0.0, 0.0]))

    def test_lengths_at_a_bonus_token_say_nothing(self, read):
        """A length of 1 with tokens accepted cannot be divided by; the line is passed over."""
        with pytest.raises(ForerunError, match="has no counts"):
            read(vllm(5, 30, None, 1.0))

    def test_pooled_over_lines(self, read):
        log = read(vllm(120, 300, [0.7, 0.4, 0.1]) + vllm(30, 150, [0.5, 0.1, 0.0]))
        assert (log.records, log.num_drafts, log.draft_tokens, log.accepted_tokens) == (2, 150, 450, 150)
        assert log.per_position == pytest.approx([(70 + 25) / 150, (40 + 5) / 150, 10 / 150])
        assert log.acceptance_length == pytest.approx(2.0)
        assert log.num_speculative_tokens == 3

    def test_the_first_line_sets_the_positions(self, read):
        for first in (None, [0.7, 0.4, 0.1]):
            with pytest.raises(ForerunError, match=r"engine\.log:2: the number of positions changes to 1"):
                read(vllm(120, 300, first, 2.5) + vllm(70, 100, [0.7]))


class TestRounding:
    @pytest.mark.parametrize(
        ("rates", "kept"),
        [
            ([0.5, 0.502, 0.4], [0.5, 0.5, 0.4]),  # a rise within print rounding
            ([1.0, 1.0], [1.0, 1.0]),
            ([0.0], [0.0]),
        ],
    )
    def test_small_rises_are_levelled(self, read, rates, kept):
        document = {"spec_decode_acceptance_length": 1.5, "spec_decode_per_position_acceptance_rates": rates}
        assert read(document).per_position == tuple(kept)

    @pytest.mark.parametrize(
        ("rates", "words"),
        [
            ([0.5, 0.503], "rises at position 2"),
            ([0.5, 0.4, 0.41], "rises at position 3"),
            ([1.001], "position 1 is accepted in 1.001"),
            ([-0.001], "position 1 is accepted in -0.001"),
            ([0.5, "x"], "must be a list of shares"),
            ("x", "must be a list of shares"),
        ],
    )
    def test_others_are_refused(self, read, rates, words):
        with pytest.raises(ForerunError, match=words):
            read({"spec_decode_acceptance_length": 1.5, "spec_decode_per_position_acceptance_rates": rates})


class TestBenchmark:
    def test_length_from_counts(self, read):
        log = read({"spec_decode_num_drafts": 10, "spec_decode_accepted_tokens": 15, "spec_decode_draft_tokens": 40})
        assert (log.acceptance_length, log.num_speculative_tokens, log.records) == (2.5, 4, 1)
        uneven = read({"spec_decode_num_drafts": 10, "spec_decode_accepted_tokens": 15, "spec_decode_draft_tokens": 41})
        assert uneven.num_speculative_tokens is None
        assert read({"spec_decode_num_drafts": 10, "spec_decode_accepted_tokens": 0}).acceptance_length == 1.0

    @pytest.mark.parametrize("value", [-1, True, "3", [3], 1e18])
    def test_what_is_no_count(self, read, value):
        with pytest.raises(ForerunError, match="spec_decode_num_drafts: must be a number >= 0"):
            read({"spec_decode_num_drafts": value, "spec_decode_acceptance_length": 2.0})

    @pytest.mark.parametrize(
        ("length", "fine"), [(1.0, True), (0.99, False), (4.0, True), (4.009, True), (4.02, False)]
    )
    def test_lengths_that_three_positions_can_give(self, read, length, fine):
        document = {
            "spec_decode_acceptance_length": length,
            "spec_decode_per_position_acceptance_rates": [1.0, 1.0, 1.0],
        }
        if fine:
            assert read(document).num_speculative_tokens == 3
        else:
            with pytest.raises(ForerunError, match="is impossible with 3 draft tokens"):
                read(document)

    def test_byte_order_marks_and_leading_blanks(self, read):
        text = b"\xef\xbb\xbf \n" + json.dumps({"spec_decode_acceptance_length": 2.0}).encode()
        assert read(text).acceptance_length == 2.0

    def test_a_file_too_large_for_json_is_not_loaded(self, read, monkeypatch):
        monkeypatch.setattr(engine_logs, "LARGEST_JSON_BYTES", 3 << 20)
        small = {"spec_decode_acceptance_length": 2.0, "filler": "x" * (3 << 20)}
        with pytest.raises(ForerunError, match="larger than 3 MiB; give the summary JSON"):
            read(small)
        fitting = {**small, "filler": "x" * ((3 << 20) - 100)}
        assert read(fitting).acceptance_length == 2.0


def counter(name, value, labels=""):
    return f"vllm:spec_decode_num_{name}_total{{{labels}}} {value}\n"


class TestCounters:
    def test_without_positions_the_counts_say_how_deep(self, read):
        log = read(counter("drafts", 50) + counter("draft_tokens", 150) + counter("accepted_tokens", 75))
        assert (log.num_speculative_tokens, log.acceptance_length, log.per_position) == (3, 2.5, None)
        bare = read(counter("drafts", 50) + counter("accepted_tokens", 75))
        assert (bare.num_speculative_tokens, bare.draft_tokens) == (None, None)

    def test_positions_run_from_zero(self, read):
        for position in ("1", "2"):
            with pytest.raises(ForerunError, match="do not run from 0 without gaps"):
                read(counter("drafts", 5) + counter("accepted_tokens_per_pos", 3, f'position="{position}"'))

    def test_creation_times_are_no_counts(self, read):
        text = 'vllm:spec_decode_num_drafts_created{engine="0"} 1.7e+09\n'
        assert read(counter("drafts", 5) + text + counter("accepted_tokens", 5)).num_drafts == 5


class TestSglang:
    def line(self, running, length):
        return f"Decode batch, #running-req: {running}, #token: 9, accept len: {length}, x\n"

    def test_lines_without_requests_or_below_one_are_passed_over(self, read):
        text = self.line(4, 2.0) + self.line(0, 9.0) + self.line(7, 0.5) + self.line(4, 1.0)
        log = read(text)
        assert (log.records, log.acceptance_length) == (2, 1.5)

    @pytest.mark.parametrize(
        ("arguments", "tokens"),
        [
            ("speculative_num_steps=3, speculative_eagle_topk=1", 3),
            ("speculative_num_steps=3, speculative_eagle_topk=2", None),
            ("speculative_num_draft_tokens=5", 4),
            ("speculative_num_draft_tokens=1", None),
            ("speculative_num_steps=2, speculative_num_draft_tokens=9", 2),
            ("", None),
        ],
    )
    def test_draft_tokens_from_the_servers_arguments(self, read, arguments, tokens):
        assert read(f"server_args=ServerArgs({arguments})\n" + self.line(4, 2.0)).num_speculative_tokens == tokens
