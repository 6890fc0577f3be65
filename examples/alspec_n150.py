"""Attention-level speculation: eight n150 of the paper's time and today's, and eight H100, with every range.

Run: python examples/alspec_n150.py [--output alspec.html]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar

from alspec_report import Finding, LeverData, RateData, attention_report_html, lever_figure, rate_figure
from dashboards.figures.attention import (
    GainData,
    context_gain_data,
    context_gain_figure,
    gain_figure,
    gantt_data,
    gantt_figure,
    sensitivity_data,
    sensitivity_figure,
    token_grid,
)
from simulator.running.metrics.files import write_text_atomically
from simulator.speculation.attention_level import (
    READINGS,
    ConsistencySet,
    compare_layouts,
    consistency_set,
    crossover_range,
    sensitivity,
)
from simulator.speculation.attention_level.consistency import group_layer
from simulator.speculation.attention_level.hit_rates import error_model, published_hit_rate, rate_range
from simulator.studies.alspec import Gain, StepPricer, at_range_end, gains, layout, lever_gains

K = 1024
BATCHES = (1, 4, 16, 64)
LONG = (128 * K, 256 * K, 512 * K, 1024 * K)
WINDOWS = (64, 128, 512, 2048, 4096, 8192)
TILE = 64
"""Tokens to which the best S is rounded."""
TOLERANCES = (0.02, 0.05, 0.1, 0.2, 0.3)
EAGLE3 = {
    "method": "eagle3",
    "num_speculative_tokens": 3,
    "acceptance": {"per_position": [0.73, 0.52, 0.35]},
}
EVERY_HEAD_DIVIDES = (
    "Its 8 KV heads divide over 8 chips and a split KV axis fills each of them, so TP 8 halves attention by itself."
)
HEADS_RUN_OUT = "Its 4 KV heads do not divide over 8 chips: TP 8 reads every key twice, and halves nothing."
ENGINE = {"framework": "vllm", "max_num_seqs": 64, "max_num_batched_tokens": 2048}


def consistency_findings(parameters: ConsistencySet) -> dict[str, Finding]:
    """The published result from one documented parameter set; prints the tables too."""
    published = parameters.published
    contexts, rates = published["contexts"], published["hit_rates"]
    context, rate = published["context_tokens"], published["hit_rate"]
    print(f"{parameters.description}\n{parameters.label}\n")
    print("TP 4 x SP 2 over TP 8: speedup (attention-overhead reduction)")
    print("hits    " + "".join(f"{token_grid(c):>16}" for c in contexts))
    for each in rates:
        row = compare_layouts(parameters, np.array(contexts, dtype=np.float64), each)
        cells = zip(row.speedup, row.overhead_reduction, strict=True)
        print(f"{each:6.1%}  " + "".join(f"{gain:7.2f}x ({cut:4.2f}x)" for gain, cut in cells))
    print(f"\nAt {token_grid(context)} and {rate:.1%} hits, by reading:")
    for reading in READINGS:
        result = compare_layouts(parameters, context, rate, reading)
        print(f"  {reading:<15} {result.speedup:.2f}x, overhead cut {result.overhead_reduction:.1f}x")
    print("\nOther plausible parameters there:")
    cases = sensitivity(parameters, context, rate)
    for case in cases:
        print(f"  {case.speedup:.2f}x, overhead cut {case.overhead_reduction:.1f}x  {case.name}")
    custom, low, high = cases[0], min(c.speedup for c in cases), max(c.speedup for c in cases)
    where, first, last = crossover_range(parameters, rate)
    at_1k = compare_layouts(parameters, contexts[0], rate).speedup
    today = layout_gains("llama-3.1-8b", "n150", "bfp8", rate, 8, batches=(1,), contexts=(context,))[0][0]
    best = (
        f"At {token_grid(context)} and {rate:.1%} hits TP 4 x SP 2 gives {custom.speedup:.2f}x over TP 8 (published: "
        f"{published['max_speedup']}x) and cuts attention overhead {custom.overhead_reduction:.1f}x (published: "
        f"{published['max_overhead_reduction']:g}x): consistency, not validation. Other plausible parameters give "
        f"{low:.2f}x to {high:.2f}x. "
        f"Today's kernels have left {today.speedup:.2f}x of it ({today.low:.2f} to {today.high:.2f}): launches and "
        f"collectives became faster, attention did not, so that less of it hides behind them."
    )
    crossing = (
        f"TP 8 wins at 1K ({1 / at_1k:.2f}x); at {rate:.1%} hits two groups pay from {token_grid(where)} tokens on "
        f"({token_grid(first)} to {token_grid(last)})."
    )
    print(f"\n{best}\n{crossing}")
    gantt = gantt_data(group_layer(parameters, context, parameters.values()), "next-attention", own_basis(parameters))
    return {
        "layer": Finding(
            gantt_figure(gantt),
            "On a hit the receiver's kernels and the sender's exact attention overlap; on a miss the layer takes as "
            "long as without speculation, plus verification and synchronisation.",
        ),
        "speedup": Finding(context_gain_figure(context_gain_data(parameters)), crossing),
        "sensitivity": Finding(sensitivity_figure(sensitivity_data(parameters, context, rate)), best),
    }


def own_basis(parameters: ConsistencySet) -> str:
    """The label of a set without its reason."""
    return parameters.label.split(":")[0]


def layout_gains(
    model: str,
    chip: str,
    dtype: str,
    hit_rate: float,
    serial: int,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = LONG,
) -> tuple[list[Gain], str]:
    """TP ``serial`` against half of that with two groups, and what the times rest on."""
    base = {"model": model, "weights_dtype": dtype, "kv_cache_dtype": dtype, "engine": ENGINE}
    single = layout(base, hardware={"chip": chip, "tensor_parallel": serial})
    both = layout(
        base,
        hardware={"chip": chip, "tensor_parallel": serial // 2, "speculative_parallel": 2},
        attention_speculation={"hit_rate": hit_rate},
    )
    return gains(single, both, batches, contexts), StepPricer(both).basis


def h100_finding(model: str, why: str) -> Finding:
    """Eight H100 on NVLink 4 at 128K to 1M tokens and the hit rate of the paper's own projection."""
    rows, basis = layout_gains(model, "h100-sxm", "bf16", 0.65, 8)
    fitting = [row for row in rows if row.fits]
    low, high = min(r.low for r in fitting), max(r.high for r in fitting)
    best = max(fitting, key=lambda row: row.speedup)
    verdict = "does not pay" if high < 1 else "pays at most a little" if best.speedup < 1.2 else "pays"
    sentence = (
        f"{model} on eight H100 with NVLink 4, 65 % hits: TP 4 x SP 2 {verdict} against TP 8, {low:.2f}x to "
        f"{high:.2f}x where the KV fits; best {best.speedup:.2f}x ({best.low:.2f} to {best.high:.2f}) at "
        f"batch {best.batch} and {token_grid(best.context_tokens)} tokens. {why} Basis: {basis}."
    )
    print(sentence)
    return Finding(gain_figure(GainData("H100: TP 4 x SP 2 over TP 8", model, tuple(rows), basis)), sentence)


def eagle_finding(chip: str, model: str, dtype: str, hit_rate: float) -> Finding:
    """ALSpec and EAGLE-3, alone and together, for one user."""
    contexts = (8 * K, 32 * K, 64 * K, 128 * K - 8)
    base = {"model": model, "weights_dtype": dtype, "kv_cache_dtype": dtype, "engine": ENGINE}
    serial = {"hardware": {"chip": chip, "tensor_parallel": 8}}
    groups = {
        "hardware": {"chip": chip, "tensor_parallel": 4, "speculative_parallel": 2},
        "attention_speculation": {"hit_rate": hit_rate},
    }
    layouts = {
        "TP 8": layout(base, **serial),
        "TP 8, EAGLE-3": layout(base, **serial, speculation=EAGLE3),
        "TP 4 x SP 2": layout(base, **groups),
        "TP 4 x SP 2, EAGLE-3": layout(base, **groups, speculation=EAGLE3),
    }
    pricers = {name: StepPricer(scenario) for name, scenario in layouts.items()}
    rates = np.array([[1 / p.step(1, c).seconds_per_token for c in contexts] for p in pricers.values()])
    basis = pricers["TP 4 x SP 2, EAGLE-3"].basis
    plain, eagle = rates[0, -1], rates[1, -1]

    def with_range(name: str) -> str:
        """Speedup over TP 8 at the longest context, and the same at both ends of the assumed costs."""
        ends = [StepPricer(at_range_end(layouts[name], end)).step(1, contexts[-1]) for end in ("high", "low")]
        custom, low, high = (
            1 / step.seconds_per_token / plain for step in (pricers[name].step(1, contexts[-1]), *ends)
        )
        return f"{custom:.2f}x ({low:.2f} to {high:.2f})"

    sentence = (
        f"{model} on eight {chip}, one user, {hit_rate:.1%} hits: at {token_grid(contexts[-1])} tokens EAGLE-3 alone "
        f"gives {eagle / plain:.2f}x over TP 8, attention-level speculation alone {with_range('TP 4 x SP 2')}, both "
        f"{with_range('TP 4 x SP 2, EAGLE-3')}. "
        f"Basis: {basis}."
    )
    print(sentence)
    data = RateData(f"With EAGLE-3 on eight {chip}", contexts, tuple(pricers), rates, basis)
    return Finding(rate_figure(data), sentence)


def levers_finding(task: str, context: int) -> Finding:
    """Lambda and S on the kernels of the paper's time: hit rate, speedup and error let through, and the static foil."""
    model, rate = error_model(), published_hit_rate(task)
    base = {"model": "llama-3.1-8b", "weights_dtype": "bfp8", "kv_cache_dtype": "bfp8", "engine": ENGINE}
    serial = StepPricer(layout(base, hardware={"chip": "n150-v0.55", "tensor_parallel": 8}))
    groups = {"chip": "n150-v0.55", "tensor_parallel": 4, "speculative_parallel": 2}
    both = StepPricer(layout(base, hardware=groups, attention_speculation={"task": task}))

    def speedup(lam: float, window: int) -> float:
        return lever_gains([serial], both, (1,), (context,), [{"lambda": lam, "window_tokens": window}])[0][0].speedup

    gain = np.array([[speedup(lam, window) for lam in TOLERANCES] for window in WINDOWS])
    error = np.array([[model.error_let_through(rate, lam, window) for lam in TOLERANCES] for window in WINDOWS])
    static = np.array([model.static_error(rate, window) for window in WINDOWS])
    without = np.array([serial.step(1, context).seconds / serial.step(1, 2 * window).seconds for window in WINDOWS])
    print(f"{task} at {token_grid(context)}, kernels of the paper's time: hits, speedup, error let through")
    print("lambda  " + "".join(f"{f'S = {window}':>24}" for window in WINDOWS))
    for column, lam in enumerate(TOLERANCES):
        hits = [model.moved(rate, lam, window) for window in WINDOWS]
        cells = zip(hits, gain[:, column], error[:, column], strict=True)
        print(f"{lam:6.2f}  " + "".join(f"{f'{h:.1%} {g:.2f}x {e:.2%}':>24}" for h, g, e in cells))
    print("static  " + "".join(f"{f'{g:.2f}x {e:.2%}':>24}" for g, e in zip(without, static, strict=True)))
    ends = {"bounds": (WINDOWS[0], WINDOWS[-1]), "options": {"xatol": TILE / 4}}
    result = [minimize_scalar(lambda window, lam=lam: -speedup(lam, round(window)), **ends) for lam in TOLERANCES]
    optima = {lam: TILE * round(each.x / TILE) for lam, each in zip(TOLERANCES, result, strict=True)}
    best = optima[0.1]
    low, high = rate_range(rate, 0.1, best)
    where = ", ".join(f"{window} at lambda {lam:g}" for lam, window in optima.items())
    sentence = (
        f"The best S is {where}; a larger one takes longer than it wins. At lambda 0.1 that is "
        f"{speedup(0.1, best):.2f}x with {model.moved(rate, 0.1, best):.1%} hits ({low:.1%} to {high:.1%}). "
        f"A larger lambda is always faster, and is paid in error. "
        f"The error model is a small model's (SmolLM2-135M, examples/alspec_hit_rates.py)."
    )
    print(sentence)
    where = f"{task}, {token_grid(context)}<br>kernels of the paper's time"
    return Finding(lever_figure(LeverData(where, WINDOWS, TOLERANCES, gain, error, without, static)), sentence)


def main() -> None:
    """Print the tables and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write the figures to this HTML file")
    options = parser.parse_args()
    parameters = consistency_set("n150-llama-3.1-8b")
    findings = consistency_findings(parameters)
    print()
    findings["h100"] = h100_finding("llama-3.1-8b", EVERY_HEAD_DIVIDES)
    findings["h100-few-heads"] = h100_finding("qwen3-30b-a3b-2507", HEADS_RUN_OUT)
    findings["eagle-n150"] = eagle_finding("n150", "llama-3.1-8b", "bfp8", 0.875)
    findings["eagle-h100"] = eagle_finding("h100-sxm", "qwen3-30b-a3b-2507", "bf16", 0.65)
    findings["levers"] = levers_finding("gsm8k", 128 * K)
    if options.output is not None:
        notes = {
            name: f"{p.what}: {p.value:g} ({p.low:g} to {p.high:g}); {p.source}"
            for name, p in parameters.parameters.items()
        }
        notes["contexts"] = "beyond what a model was published for its kernels are priced, not its answers"
        title = "Attention-level speculation on eight chips"
        write_text_atomically(
            options.output, attention_report_html(title, findings["sensitivity"].sentence, findings, notes)
        )
        print(f"Figures: {options.output}")


if __name__ == "__main__":
    main()
