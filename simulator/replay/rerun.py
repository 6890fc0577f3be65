"""A measured run, simulated again."""

from __future__ import annotations

from forerun.document import Json
from hwprofiles import load_chip
from simulator.llm import load_architecture
from simulator.running.assumptions import Factors
from simulator.running.measured_runs import simulate_measured
from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from traces.benchmark_results import MeasuredRun


def rerun(
    run: MeasuredRun, base: Scenario, seed: int = 0, intervals: bool = False, factors: Factors | None = None
) -> Json:
    """Simulate a measured run; with ``intervals``, also estimate the model error.

    Args:
        run: measured run to simulate.
        base: scenario for all settings that the run does not state.
        seed: seed of the simulation.
        intervals: whether to estimate the model error.
        factors: factors on constants, for fitting these.

    Returns:
        ``{"predicted": {metric: value}, "basis", "notes", "model_error", "simulated"}`` with the metrics of
        ``traces.benchmark_results.METRICS``.

    Raises:
        ForerunError, hwprofiles.ProfileError, traces.TraceError: the run cannot be simulated; the text says why.
    """
    result, predicted, notes = simulate_measured(simulate, run, base, seed, intervals=intervals, factors=factors)
    about = {
        "basis": result.basis,
        "model_error": result.model_error,
        "simulated": simulated_as(run, base, result.scenario),
    }
    return {"predicted": predicted, **about, "notes": notes}


def simulated_as(run: MeasuredRun, base: Scenario, scenario: Scenario) -> str:
    """Model, chip and engine of a run's simulation, in words, and the source of the model's name."""
    model, own = (load_architecture(one.model).name for one in (scenario, base))
    origin = (
        f" in place of the scenario's {own}" if model != own else "" if run.model else ", named by the scenario alone"
    )
    return f"{model}{origin}, on {load_chip(scenario.hardware.chip).name} under {scenario.engine.framework}"
