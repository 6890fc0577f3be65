"""EAGLE-3 on or off for this traffic? Azure's conversation trace at rising load: closed form, checked by a simulation.

Run: python examples/eagle3_on_or_off.py [--requests N]
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np

from simulator.running.metrics import summarise
from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from simulator.studies.steady_state.estimate import estimate, max_request_rate

SPECULATION = {
    "method": "eagle3",
    "num_speculative_tokens": 3,
    "acceptance": {"curve": "eagle3-llama-3.1-8b-mt-bench"},
}
PLAIN = Scenario.model_validate(
    {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}, "workload": {"trace": "azure-conv-2023"}}
)
DRAFTED = PLAIN.with_values({"speculation": SPECULATION})


def crossover(rates: list[float], gains: list[float]) -> float | None:
    """Rate at which the gain passes 1, interpolated; None where it never does."""
    for (low, above), (high, below) in pairwise(zip(rates, gains, strict=True)):
        if above >= 1.0 > below:
            return low + (high - low) * (above - 1.0) / (above - below)
    return None


def simulated_gain(rate: float, requests: int | None) -> float:
    """Mean TPOT without over with EAGLE-3, on the trace's own arrivals played at ``rate``."""
    custom = estimate(PLAIN).request_rate
    changes = {"workload.arrivals": {"process": "trace", "rate_scale": rate / custom}}
    if requests is not None:
        changes["workload.num_requests"] = requests
    plain, drafted = (summarise(simulate(s.with_values(changes)))["mean_tpot_ms"] for s in (PLAIN, DRAFTED))
    return plain / drafted


def main() -> None:
    """Print the gain at each load and the conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, help="only the first N requests of the trace")
    requests = parser.parse_args().requests
    tops = max_request_rate(PLAIN), max_request_rate(DRAFTED)
    rates = np.linspace(0.05, 0.97, 12) * min(tops)
    gains = []
    print("req/s   TPOT without   TPOT with   gain")
    for rate in rates.tolist():
        plain, drafted = (estimate(scenario, request_rate=rate).mean_tpot_s or 0.0 for scenario in (PLAIN, DRAFTED))
        gains.append(plain / drafted)
        print(f"{rate:5.1f}   {plain * 1e3:9.1f} ms   {drafted * 1e3:6.1f} ms   {gains[-1]:.2f}x")
    checked = float(rates[2])
    print(f"Simulated at {checked:.1f} req/s: {simulated_gain(checked, requests):.2f}x, here {gains[2]:.2f}x")
    where = crossover(rates.tolist(), gains)
    most = f"one H100 serves at most {tops[0]:.1f} req/s without and {tops[1]:.1f} with it"
    if where is None:
        print(f"EAGLE-3 {'pays' if gains[0] > 1 else 'does not pay'} at every load of this traffic; {most}.")
    else:
        print(f"EAGLE-3 pays below about {where:.1f} req/s of this traffic and costs latency above; {most}.")


if __name__ == "__main__":
    main()
