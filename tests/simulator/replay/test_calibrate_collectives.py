"""Collectives are fitted like every other family, on messages of a megabyte and more: a truth put in is found."""

import numpy as np
import pytest

from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, load_chip
from simulator.replay import predict_table
from simulator.replay.calibrate import calibrate
from traces.kernels import KernelTable, concatenate, make_table

BARE = load_chip("h100-sxm").model_copy(update={"kernels": {}})


def rows(op, world):
    size = 2 ** np.arange(20, 31)
    sizes = {"message_bytes": size, "world_size": np.full(len(size), world)}
    return make_table(np.ones(len(size)), op, sizes, {}, "made", "forerun")


@pytest.mark.parametrize("op", ["all_reduce", "all_gather"])
def test_the_truth_behind_collectives_is_detected(op):
    """A machine whose links reach half of their rate where those of the class reach four fifths."""
    known = KernelLibrary(BARE).parameters("collective", "any")
    slow = known.model_copy(update={"bandwidth_efficiency": 0.5, "launch_s": 2 * known.launch_s})
    truth = KernelLibrary(BARE.model_copy(update={"kernels": {"generic": {"collective": {"any": slow}}}}))
    requested = concatenate([rows(op, world) for world in (2, 4)])
    noise = np.exp(np.random.default_rng(0).normal(0.0, 0.02, len(requested)))
    seconds = predict_table(requested, truth).seconds * noise
    table = KernelTable(
        requested.sizes, requested.words, seconds, requested.std_s, requested.count, requested.source, requested.format
    )
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


def test_a_chip_without_a_link_of_its_own_predicts_no_collectives():
    single = BARE.model_copy(update={"links": BARE.links.model_copy(update={"scale_up": None})})
    with pytest.raises(ForerunError, match="chip 'h100-sxm' has no scale-up link"):
        predict_table(rows("all_reduce", 2), KernelLibrary(single))
