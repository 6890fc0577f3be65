"""A grammar as a drafter: forced spans accepted with certainty, alone and in front of another drafter."""

import json

import numpy as np
import pytest
from both_engines import both_engines
from plain_scenario import plain_scenario

from forerun.errors import ForerunError
from simulator import simulate
from simulator.speculation.grammar import ForcedTokens, forced_survival, forced_text, measured_forced
from simulator.studies.tune.choices import draft_choices

RATES = np.array([0.7, 0.6, 0.5, 0.4])
SCHEMA = {
    "type": "object",
    "required": ["name", "kind", "size"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["small", "smart"]},
        "size": {"$ref": "#/$defs/size"},
    },
    "$defs": {"size": {"type": "integer"}},
}


def scenario(method="eagle3", share=0.4, **changes):
    acceptance = {} if method == "grammar" else {"acceptance": {"conditional": RATES.tolist()}}
    block = {"method": method, "num_speculative_tokens": 4, "grammar": {"forced_share": share}} | acceptance
    return plain_scenario(
        inputs=100,
        outputs=80,
        requests=24,
        speculation=block,
        workload={"arrivals": {"process": "closed-loop", "max_concurrency": 8}},
    ).with_values(changes)


def test_without_a_forced_token_the_drafter_is_as_it_was():
    assert forced_survival(RATES, ForcedTokens(0.0, 5.0)) == pytest.approx(np.cumprod(RATES))
    one, other = (simulate(scenario(**{"speculation.grammar": grammar})) for grammar in (None, {"forced_share": 0.0}))
    assert np.array_equal(one.requests.finished_s, other.requests.finished_s)


def test_where_all_is_forced_all_is_accepted():
    assert forced_survival(RATES, ForcedTokens(1.0, 1.0)).tolist() == [1.0] * 4
    counters = simulate(scenario(share=1.0)).speculation
    assert counters.accepted_tokens == 4 * counters.num_drafts


@pytest.mark.parametrize(("share", "span"), [(0.3, 3.0), (0.6, 8.0), (0.5, 1.0)])
def test_a_long_grammar_alone_leaves_one_step_for_each_free_token(share, span):
    length = 1.0 + forced_survival(np.zeros(400), ForcedTokens(share, span)).sum()
    assert length == pytest.approx(1.0 / (1.0 - share), rel=1e-6)


@pytest.mark.parametrize(("share", "span"), [(0.3, 4.0), (0.7, 6.0)])
def test_tokens_per_step_are_those_of_a_drawn_text(share, span):
    draws = np.random.default_rng(1)
    free_run = span * (1.0 - share) / share
    forced = []
    while len(forced) < 300_000:
        forced += [False] * draws.geometric(1.0 / free_run) + [True] * draws.geometric(1.0 / span)
    place = steps = 0
    while place + 6 < len(forced):
        taken = 0
        while taken < 4 and (forced[place + taken] or draws.random() < RATES[taken]):
            taken += 1
        place += taken + 1
        steps += 1
    expected = 1.0 + forced_survival(RATES, ForcedTokens(share, span)).sum()
    assert place / steps == pytest.approx(expected, rel=0.02)


def test_a_grammar_alone_verifies_what_it_forces_and_nothing_else():
    run = simulate(scenario("grammar"), seed=3)
    assert run.speculation.draft_tokens == run.speculation.accepted_tokens > 0
    plain = simulate(scenario("grammar", speculation=None), seed=3)
    assert run.requests.finished_s.max() < plain.requests.finished_s.max()


def test_the_grammar_and_its_host_time_compose_with_a_drafter():
    alone, both, dear = (
        simulate(scenario(share=share, **changes), seed=4).requests.finished_s.max()
        for share, changes in ((0.0, {}), (0.5, {}), (0.5, {"speculation.grammar.step_s": 0.02}))
    )
    assert both < alone < dear


@pytest.mark.parametrize("method", ["grammar", "eagle3", "ngram"])
def test_both_engines_agree_on_a_grammar(method):
    both_engines(scenario(method), seed=5)


def test_tuning_counts_what_is_forced_once():
    composed = scenario(share=0.5).speculation
    choice = draft_choices(scenario(share=0.5), (4,))[0]
    assert choice.survival == pytest.approx(forced_survival(RATES, composed.grammar.forced))


def test_forced_text_is_what_the_schema_leaves_no_choice_of():
    value = {"name": "bolt", "kind": "smart", "size": 3}
    parts = forced_text(value, SCHEMA)
    assert "".join(text for text, _ in parts) == json.dumps(value)
    forced = "".join(text if flag else "." * len(text) for text, flag in parts)
    assert forced == '{"name": "....., "kind": "smart", "size": .}'.replace("smart", "sma.t")
    other = forced_text({"name": "bolt"}, {"type": "object", "properties": {"name": {"type": "string"}}})
    assert "".join(text if flag else "." * len(text) for text, flag in other) == '{........"......'


def test_share_and_span_are_measured_in_a_file(tmp_path):
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    rows = [{"name": "bolt", "kind": "small", "size": 3}, {"output": '{"name": "nut", "kind": "smart", "size": 14}'}]
    (tmp_path / "outputs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    measured = measured_forced(str(tmp_path / "outputs.jsonl"), str(tmp_path / "schema.json"))
    assert 0.5 < measured.share < 0.9
    assert measured.span > 2.0
    free = json.dumps({"type": "object"})
    (tmp_path / "free.json").write_text(free)
    assert measured_forced(str(tmp_path / "outputs.jsonl"), str(tmp_path / "free.json")).share < 0.1
    files = {"outputs": str(tmp_path / "outputs.jsonl"), "json_schema": str(tmp_path / "schema.json")}
    run = simulate(scenario(**{"speculation.grammar": files}))
    assert any(note.startswith(f"grammar: {100 * measured.share:.0f} % of the output tokens") for note in run.notes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"speculation.grammar": {}}, "give one of forced_share, and outputs with json_schema"),
        ({"speculation.grammar": {"outputs": "a.jsonl"}}, "outputs and json_schema go together"),
        ({"speculation.grammar": {"outputs": "no.jsonl", "json_schema": "no.json"}}, "No such file"),
        ({"speculation": {"method": "grammar", "num_speculative_tokens": 4}}, "method 'grammar' needs grammar"),
    ],
)
def test_a_grammar_that_says_too_little_is_refused(changes, says):
    with pytest.raises(ForerunError, match=says):
        simulate(scenario(**changes))


def test_a_comparison_may_leave_the_drafter_out_and_the_grammar_in():
    alone = scenario().with_values({"speculation.method": "grammar"})
    assert alone.speculation.acceptance.alpha == 0.0
    assert alone.with_values({"speculation.method": "eagle3"}).speculation.acceptance.conditional == RATES.tolist()


def test_a_grammar_alone_has_nothing_to_tune():
    with pytest.raises(ForerunError, match="has nothing to tune"):
        draft_choices(scenario("grammar"))
