"""One function per figure, for completion in editors: ``fr.plot.latency(run)`` is ``run.figure("latency")``.

Each function takes the result that the figure is drawn from and returns a Plotly figure. It raises a ``ForerunError``
if the result has no such figure, for example a comparison without a crossover.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import plotly.graph_objects as go

    from forerun.result import StudyResult
    from simulator.replay.replay_tables import Replay
    from simulator.running.run import RunResult
    from simulator.studies.compare.document import CompareResult
    from simulator.studies.plan.document import PlanResult
    from simulator.studies.sweep.study import SweepResult
    from simulator.studies.tune.document import TunedResult


def bottleneck(run: RunResult) -> go.Figure:
    """Share of engine time bound by compute, memory, interconnect, latency and host."""
    return run.figure("bottleneck")


def latency(run: RunResult) -> go.Figure:
    """Distributions of TTFT, TPOT and end-to-end latency over the requests."""
    return run.figure("latency")


def timeline(run: RunResult) -> go.Figure:
    """Running and waiting requests, KV cache use and throughput over simulated time."""
    return run.figure("timeline")


def waterfall(run: RunResult) -> go.Figure:
    """One bar per request: waiting, prefill, decode."""
    return run.figure("waterfall")


def measuring(run: RunResult) -> go.Figure:
    """Intervals of the means before and after measured runs of the deployment."""
    return run.figure("measuring")


def speedup(comparison: CompareResult) -> go.Figure:
    """Speedup of each variant over the first, with intervals."""
    return comparison.figure("speedup")


def load(comparison: CompareResult) -> go.Figure:
    """Metric of each variant over the load, with crossovers."""
    return comparison.figure("load")


def tornado(comparison: CompareResult) -> go.Figure:
    """Speedup at both ends of the range of each assumed parameter."""
    return comparison.figure("tornado")


def pareto(plan: PlanResult) -> go.Figure:
    """Tokens per second per GPU of each layout over tokens per second per user, with the Pareto front."""
    return plan.figure("pareto")


def cost(plan: PlanResult) -> go.Figure:
    """US dollars per million output tokens of each layout over tokens per second per user, with the Pareto front."""
    return plan.figure("cost")


def hours(plan: PlanResult) -> go.Figure:
    """Load and replicas by the hour, with the autoscaled and the fixed cost."""
    return plan.figure("hours")


def tuning(tuned: TunedResult) -> go.Figure:
    """Best number of draft tokens by batch size and context."""
    return tuned.figure("tuning")


def draft_rates(tuned: TunedResult) -> go.Figure:
    """Decode rate by number of draft tokens on one machine, measured and predicted."""
    return tuned.figure("rates")


def points(sweep: SweepResult) -> go.Figure:
    """Metric at each point of a sweep."""
    return sweep.figure("points")


def kv_tier(sweep: SweepResult) -> go.Figure:
    """Hit rates by tier and TTFT over the size of a KV store; the sweep must vary it alone."""
    return sweep.figure("kv-tier")


def tiers(run: RunResult) -> go.Figure:
    """Hit rates by tier over time, and bytes by lane."""
    return run.figure("tiers")


def adaptive(comparison: CompareResult) -> go.Figure:
    """Adaptive verification against the best fixed K over the load; the comparison must vary policy and load."""
    return comparison.figure("adaptive")


def parity(replay: Replay, metric: str = "") -> go.Figure:
    """Predicted over measured values of a replay.

    Args:
        replay: replay of kernels, engine steps or benchmark results.
        metric: for benchmark results, one of ``replay.figures``; default: the first.
    """
    from forerun.errors import ForerunError

    if replay.kind != "replay":
        raise ForerunError(f"parity: needs the result of a replay (got a result of {replay.kind})")
    return replay.figure(metric)


def errors(replay: Replay) -> go.Figure:
    """Relative error of each kernel of a replay over its measured time."""
    return replay.figure("errors")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[[StudyResult], go.Figure]:
        """Function for the figure ``name`` of results that other installed distributions add."""
        from simulator.studies.installed import installed_names, load_name

        added = () if name.startswith("_") else (load_name(one) for one in installed_names() if not one.islower())
        modules = {getattr(one, "drawn_in", "") for one in added} - {""}
        if not any(figure.name == name for module in modules for figure in import_module(module).FIGURES):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return lambda result: result.figure(name)
