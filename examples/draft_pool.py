"""How many verifiers can share one drafter? 70B on four H100, drafts of a 1B model from a pool of H100 or n150.

Gain in tokens per second over the same verifiers without drafts, for one drafter and more and more verifiers;
acceptance of 0.7 per token, and 0.6 and 0.8 as its range. Then up to how many verifiers a drafter pays, and how that
compares with a drafter on the verifiers' own chips.

    python examples/draft_pool.py --page pool.html        # about a minute on one core
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dashboards.attention_report import Finding, findings_html
from dashboards.figures.speculation import PoolCurve, PoolData, pool_figure
from simulator.scenario import Scenario, scenario_from
from simulator.studies.draft_pool import PoolGain, break_even, own_chips_gain, pool_gains, pool_prices

DRAFTERS: dict[str, dict[str, Any]] = {
    "h100-sxm": {"chip": "h100-sxm", "link": "infiniband-ndr"},
    "n150": {"chip": "n150", "link": "ethernet-100g", "weights_dtype": "bfp8"},
}
"""Chip of the pool and the way to it."""
BATCHES, CONTEXT, TOKENS, MAX_BATCH = (1, 16), 2048, 2, 8
ACCEPTED = (0.7, 0.6, 0.8)
"""Per token, and its range."""


def scenario(draft: dict[str, Any], alpha: float) -> Scenario:
    """A verifier and its drafter."""
    data = {
        "model": "llama-3.1-70b",
        "hardware": {"chip": "h100-sxm", "tensor_parallel": 4},
        "speculation": {
            "method": "draft-model",
            "num_speculative_tokens": TOKENS,
            "draft": {"model": "llama-3.2-1b", **draft},
            "acceptance": {"alpha": alpha},
        },
        "workload": {"arrivals": {"process": "burst"}, "input_tokens": 1, "output_tokens": 1, "num_requests": 1},
    }
    return scenario_from(data, "pool")


def most(*curves: list[PoolGain]) -> str:
    """Verifiers that one drafter may serve, in words, with the range."""
    words = []
    for gains in curves:
        found = break_even(gains)
        more = f"more than {gains[-1].verifiers_per_drafter:g}"
        words.append("none" if found is None else f"{found:.1f}" if found < float("inf") else more)
    middle, low, high = words
    return middle if low == middle == high else f"{middle} ({low} to {high})"


def main() -> None:
    """Print the table and the conclusion, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verifiers", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64], help="per drafter")
    parser.add_argument("--page", type=Path, help="HTML page with the figures")
    options = parser.parse_args()
    findings, said = {}, []
    for ahead in (False, True):
        curves = []
        for chip, draft in DRAFTERS.items():
            for batch in BATCHES:
                own = own_chips_gain(scenario({}, ACCEPTED[0]), batch, CONTEXT)
                middle, low, high = (
                    pool_gains(pool_prices(scenario(draft, a), batch, CONTEXT), options.verifiers, MAX_BATCH, ahead)
                    for a in ACCEPTED
                )
                curves.append(PoolCurve(f"{chip}, batch {batch}", *map(tuple, (middle, low, high))))
                gains = " ".join(f"{gain.gain:5.2f}" for gain in middle)
                way = "drafting ahead" if ahead else "waiting"
                words = most(middle, low, high)
                print(f"{chip:9} batch {batch:2} {way:14} {gains}   pays for {words}; own chips {own:.2f}x")
                said.append(f"{chip} {way} at batch {batch} {words}")
        title = "Drafting ahead of the verdict" if ahead else "Drafting after the verdict"
        caption = f"70B on 4 H100, K = {TOKENS}, up to {MAX_BATCH} verifiers in a pass; bands: acceptance 0.6 to 0.8"
        count = len(curves)
        sentence = "Verifiers per drafter up to which it pays: " + "; ".join(said[-count:]) + "."
        findings["ahead" if ahead else "after"] = Finding(
            pool_figure(PoolData(title, caption, tuple(curves))), sentence
        )
    print("Verifiers per drafter up to which it pays: " + "; ".join(said))
    if options.page is not None:
        notes = {
            "verifiers": "steady batches of equal sequences; arrivals are left out",
            "drafters": "hold the KV of their verifiers' sequences; as many verifiers as wait are drafted for at once",
        }
        lead = "Tokens per second over the same verifiers without drafts, by how many share one drafter."
        page = findings_html("How many verifiers can share a drafter?", "Disaggregated drafting", lead, findings, notes)
        options.page.write_text(page, encoding="utf-8")
        print(options.page)


if __name__ == "__main__":
    main()
