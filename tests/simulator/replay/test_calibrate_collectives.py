"""Collectives are fitted like every other family, on messages of a megabyte and more: a truth put in is found."""

from dataclasses import replace

import numpy as np
import pytest
from made_kernels import rows_of

from hwprofiles import KernelLibrary, load_chip
from simulator.replay import predict_table
from simulator.replay.calibrate import calibrate

BARE = load_chip("h100-sxm").model_copy(update={"kernels": {}})


@pytest.mark.parametrize("op", ["all_reduce", "all_gather"])
def test_the_truth_behind_collectives_is_detected(op):
    """A machine whose links reach half of their rate where those of the class reach four fifths."""
    known = KernelLibrary(BARE).parameters("collective", "any")
    slow = known.model_copy(update={"bandwidth_efficiency": 0.5, "launch_s": 2 * known.launch_s})
    truth = KernelLibrary(BARE.model_copy(update={"kernels": {"generic": {"collective": {"any": slow}}}}))
    sizes = {"message_bytes": np.tile(2 ** np.arange(20, 31), 2), "world_size": np.repeat((2, 4), 11)}
    requested = rows_of(op, sizes)
    noise = np.exp(np.random.default_rng(0).normal(0.0, 0.02, len(requested)))
    table = replace(requested, measured_s=predict_table(requested, truth).seconds * noise)
    calibration = calibrate(table, BARE, residual=False)
    (fit,) = calibration.fits
    assert (fit.family, fit.rows) == ("collective", 22)
    assert fit.parameters.bandwidth_efficiency == pytest.approx(0.5, rel=0.05)
    error, before = (
        np.abs(predict_table(table, KernelLibrary(chip)).seconds / table.measured_s - 1)
        for chip in (calibration.chip, BARE)
    )
    assert error.mean() < 0.03
    assert before.mean() > 0.2
