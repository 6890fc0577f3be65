"""H100, A100 or N150 for the same money: the highest rate of chat that each fleet holds within an SLO.

Cloud prices are those of the chip profiles. An N150 is bought: its list price spread over three years, three times over
for host, power and space (an assumption; set --n150-usd-per-hour).

Run: python examples/equal_cost_chips.py [--usd-per-hour U] [--requests N]
"""

from __future__ import annotations

import argparse

from hwprofiles import load_chip
from simulator.running.scenario import Scenario
from simulator.studies.plan.objectives import limits_words, objective_of
from simulator.studies.plan.trials import PlannedLoad, find_highest_rate
from simulator.studies.steady_state.estimate import max_request_rate

CHIPS = ("h100-sxm", "a100-sxm-80gb", "n150")
SLO = objective_of({}, ("p99_ttft_ms=2000", "p99_tpot_ms=80"))
HOURS = 3 * 365 * 24
AROUND_THE_CARD = 3.0


def scenario(chip: str, replicas: int) -> Scenario:
    """Chat with a 3B model, which fits the smallest of the chips."""
    return Scenario.model_validate(
        {
            "model": "llama-3.2-3b",
            "hardware": {"chip": chip, "replicas": replicas},
            "engine": {"routing": "least-outstanding"},
            "workload": {
                "arrivals": {"process": "poisson", "request_rate": 1.0},
                "input_tokens": {"distribution": "lognormal", "mean": 512, "cv": 0.8, "max": 4096},
                "output_tokens": {"distribution": "lognormal", "mean": 200, "cv": 0.6, "max": 1024},
                "num_requests": 1,
            },
        }
    )


def hourly(chip: str, n150: float | None) -> float:
    """US dollars per chip and hour."""
    price = load_chip(chip).price
    assert price is not None
    if price.usd_per_hour is not None:
        return price.usd_per_hour
    assert price.usd_list is not None
    return n150 if n150 is not None else AROUND_THE_CARD * price.usd_list / HOURS


def main() -> None:
    """Print one row per chip and the conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--usd-per-hour", type=float, default=5.3, help="what each fleet may cost")
    parser.add_argument("--n150-usd-per-hour", type=float, help="what an N150 costs per hour")
    parser.add_argument("--requests", type=int, default=3000, help="requests of each run")
    arguments = parser.parse_args()
    rates = {}
    print("chip             $/chip-hour   chips   max req/s   $ per million output tokens")
    for chip in CHIPS:
        price = hourly(chip, arguments.n150_usd_per_hour)
        fleet = scenario(chip, max(1, int(arguments.usd_per_hour / price)))
        load = PlannedLoad("process", None, arguments.requests)
        most, guess = load.most_telling_rate(fleet, 0.0), 0.8 * max_request_rate(fleet)
        rates[chip], *_ = find_highest_rate(fleet, load, SLO, [0], guess, most)
        if rates[chip] >= most:
            parser.error(f"--requests {arguments.requests} is too few to tell how much {chip} serves")
        chips = fleet.hardware.replicas
        dollars = price * chips / (rates[chip] * 200 * 3600) * 1e6 if rates[chip] else float("nan")
        print(f"{chip:<16} {price:11.3f}   {chips:5d}   {rates[chip]:9.2f}   {dollars:27.3f}")
    best, *others = sorted(rates, key=lambda chip: -rates[chip])
    rest = " and ".join(f"{rates[best] / max(rates[chip], 1e-9):.2f} times {chip}" for chip in others)
    print(f"For ${arguments.usd_per_hour:.2f} an hour and {limits_words(SLO)}, {best} serves most: {rest}.")


if __name__ == "__main__":
    main()
