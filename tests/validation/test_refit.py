"""Fitting constants again: planted factors are found, what no run shows stays, growth of errors refuses."""

import numpy as np
import pytest

from forerun.errors import ForerunError
from simulator.timing import load_framework
from validation.__main__ import main
from validation.refit import (
    LARGEST_FACTOR,
    Refit,
    fitted_moves,
    refit,
    refit_tables,
    refits,
    write_constants,
)

TEXT = """one:
  step_s: 1.0e-4  # host
  rank_s: 2.0e-6
two:
  step_s: 1.0e-4
"""


def outcome(name, after, held_out):
    return Refit(name, {"step_s": 1e-4}, {"step_s": after}, (9.0, 5.0), held_out, {"mean_tpot_ms": held_out})


def test_a_planted_factor_is_found_and_what_no_run_shows_stays():
    shares = np.random.default_rng(0).uniform(0.1, 0.6, (40, 3)) * [1.0, 1.0, 0.0]
    true = np.log([2.0, 0.7, 3.0])

    def errors(moves):
        return np.log(1 - shares.sum(axis=1) + shares @ np.exp(moves)) - np.log(
            1 - shares.sum(axis=1) + shares @ np.exp(true)
        )

    moves = fitted_moves(errors, 3)
    assert moves == pytest.approx([true[0], true[1], 0.0], abs=0.1)
    assert fitted_moves(lambda moves: moves[:1] - 9.0, 1)[0] <= np.log(LARGEST_FACTOR)


def test_constants_are_written_to_their_own_set_unless_the_held_out_error_grows(tmp_path):
    file = tmp_path / "frameworks.yaml"
    file.write_text(TEXT)
    write_constants([outcome("two", 2.5e-4, (9.0, 8.0)), outcome("one", 3e-4, (5.0, 5.5))], file)
    assert file.read_text() == TEXT.replace("two:\n  step_s: 1.0e-4", "two:\n  step_s: 2.5e-4")
    assert "refused" in str(refit_tables([outcome("one", 3e-4, (5.0, 5.5))])[1].rows)


def test_every_set_names_constants_of_its_engine():
    for name, entry in refits().items():
        for constant in entry["constants"]:
            assert getattr(load_framework(name), constant) > 0, (name, constant)


def test_a_set_without_measurements_is_refused(tmp_path, capsys):
    with pytest.raises(ForerunError, match="silicon_sample"):
        refit("trtllm", tmp_path)
    assert main(["refit", "--data", str(tmp_path), "--set", "vlm"]) == 2
    assert "did you mean 'vllm'" in capsys.readouterr().err
