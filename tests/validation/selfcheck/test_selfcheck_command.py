"""``forerun selfcheck`` from end to end on a model that is all overhead, and without torch."""

import json
import sys

import pytest

from simulator.cli import main

FIGURES = {"mean_tpot_ms", "mean_ttft_ms", "output_throughput"}


def test_without_torch_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["selfcheck"]) == 2
    message = capsys.readouterr()
    assert "pip install 'forerun[measure]'" in message.err
    assert message.err.count("\n") == 1
    assert not message.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "fp61"], "no 'fp61'"),
        (["--fail-above", "tpott=3"], "did you mean 'tpot'"),
        (["--fail-above", "tpot=few"], "write FIGURE=PERCENT"),
        (["--threads", "4096"], "more than the"),
    ],
)
def test_bad_options_are_refused_by_name(arguments, message, capsys):
    pytest.importorskip("torch")
    assert main(["selfcheck", "--tiny", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_tiny_check_from_end_to_end(tmp_path, capsys):
    pytest.importorskip("torch")
    assert main(["selfcheck", "--tiny", "--dtype", "fp32", "--out", str(tmp_path), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    plain, drafting = document["comparisons"]
    assert (plain["speculation"], drafting["speculation"]) == ("none", "draft-model")
    assert set(plain["figures"]) == FIGURES
    assert set(drafting["figures"]) == FIGURES | {"spec_decode_acceptance_length"}
    for one in document["comparisons"]:
        for figure in one["figures"].values():
            error = 100 * (figure["predicted"] / figure["measured"] - 1)
            assert figure["measured"] > 0
            assert figure["error_percent"] == pytest.approx(error)
    assert document["batches"]["equal"] == document["batches"]["steps"] > 0
    assert drafting["figures"]["spec_decode_acceptance_length"]["difference_in_standard_errors"] < 4
    machine = document["machine"]
    assert machine["dtype"] == "fp32"
    assert machine["drift_percent"] >= 0
    assert len(machine["reference_step_s"]) == 3
    assert 0 <= document["host"]["step_s"] < 1
    for name in ("kernels.csv", "profile.yaml", "scenario-none-0.json", "scenario-draft-model-0.json"):
        assert (tmp_path / name).is_file()
    families = {one["family"]: one["held_out_mape"] for one in document["calibration"]["families"]}
    assert set(families) == {"gemm", "attention_prefill", "attention_decode", "elementwise"}
    assert all(error > 0 for error in families.values())
    capsys.readouterr()
    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    assert main(["run", str(moved / "scenario-draft-model-0.json"), "--json", "-"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["summary"]["completed"] == 6
    evidence = again["evidence"]
    assert evidence["calibrated"] > 0.5, "all but prompt chunks shorter than any measured"
    assert evidence["calibrated"] + evidence["extrapolated"] == pytest.approx(1.0), "all is fitted here"


def test_every_size_of_the_target_lies_between_those_of_the_models_that_are_measured():
    from validation.selfcheck.sizes import FULL, TINY

    for sizes in (FULL, TINY):
        for name in ("hidden", "heads", "kv_heads", "intermediate", "vocabulary", "head_dim"):
            values = [getattr(one, name) for one in sizes.nearby]
            assert min(values) <= getattr(sizes.target, name) <= max(values), (sizes.target.name, name)


def test_no_round_begins_that_would_end_too_late_and_phases_are_reported(tmp_path):
    pytest.importorskip("torch")
    from dataclasses import replace

    from validation.selfcheck.check import Selfcheck
    from validation.selfcheck.sizes import TINY

    message = []
    sizes = replace(TINY, rounds=3, enough_s=0.0)
    document = Selfcheck(sizes, tmp_path, 1, 0, "fp32", lambda done, total, doing: message.append(doing)).run()
    assert document["rounds"] == 1
    assert message[0] == "limits of this machine"
    assert "round 1 of at most 3: kernels" in message
    assert not [words for words in message if words.startswith("round 2")]
    assert message[-1] == "fitting kernels, simulating"
