"""Predictions against measurements: kernels, and the calibration that follows from them."""

from simulator.replay.calibrate import Calibration, FamilyFit, calibrate, write_profile
from simulator.replay.kernels import ReplayReport, replay_kernels, worst_rows
from simulator.replay.predict import Prediction, predict_table
from simulator.replay.scores import Limit, Score, exceeded, parse_limit
from simulator.replay.split import Split, parse_split, training_rows

__all__ = [
    "Calibration",
    "FamilyFit",
    "Limit",
    "Prediction",
    "ReplayReport",
    "Score",
    "Split",
    "calibrate",
    "exceeded",
    "parse_limit",
    "parse_split",
    "predict_table",
    "replay_kernels",
    "training_rows",
    "worst_rows",
    "write_profile",
]
