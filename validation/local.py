"""Local engines: llama.cpp's rates on cards and laptops against class defaults, and against fits that left a chip out.

    python -m validation.local --data DIR --out docs/validation/local.md

DIR holds tables ``llama_bench.csv``, ``metal_batch.csv``, ``qwen38_mtp_configs.csv`` and ``qwen38_mtp_sweeps.csv``; a
second folder of the same names (whole chips kept back) may follow. ``--model`` is the config.json of the 27B model.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError
from forerun.tables import Table, Value
from forerun.version import VERSION
from hwprofiles import ProfileError, chip_names, load_chip
from hwprofiles.catalogue import local_backends
from hwprofiles.dtypes import dtype_bytes, shares_of
from simulator import simulate
from simulator.running.build import build_replica
from simulator.running.metrics import summarise
from simulator.running.scenario import Scenario, scenario_from
from simulator.speculation.confidence import threshold_chain
from simulator.speculation.level_decay import fit_acceptance_lengths
from simulator.studies.steady_state.prices import decode_steps
from simulator.studies.tune.machine import MachinePrices, fit_machine
from simulator.timing import ModelTimer
from validation.page import ROWS_FILE, by_title, read_rows, rows_text

CHIPS = {"Radeon 8060S": "strix-halo", "A100 80GB": "a100-pcie-80gb", "M1 Pro 14-core": "apple-m1-pro-14",
         "Tesla V100": "v100-pcie", "Tesla V100 16GB SXM2": "v100-sxm", "Ryzen AI Max+ 395 CPU": "strix-halo-cpu",
         "RTX PRO 6000 Blackwell": "rtx-pro-6000", "RTX PRO 6000 Blackwell Max-Q": "rtx-pro-6000-max-q",
         "RTX A6000": "rtx-a6000", "H100 PCIe 80GB": "h100-pcie", "Radeon 890M": "strix-point"}  # fmt: skip
"""Names of the tables that are not the catalogue's own with another spelling."""
TODAY = (("gemma-3-4b", "q4_0", 16, 144.30), ("gpt-oss-20b", "mxfp4_moe", 16, 132.79),
         ("gpt-oss-120b", "mxfp4_moe", 16, 88.71), ("qwen2.5-7b", "q8_0", 16, 76.35),
         ("qwen2.5-7b", "q8_0", 1040, 74.68))  # fmt: skip
"""Rates of an M2 Ultra by model, format and context, of builds that the tables lack. From llama.cpp's pull requests
15857 (September 2025) and 19555 (February 2026), tg32."""
MODELS = (
    (r"^(llama|llama 2|llama-2)[ -]7b(?!.*v0)", "llama-2-7b"), (r"^llama-3-8b|llama 8b", "llama-3-8b"),
    (r"^llama[ -]3.1[ -]8b", "llama-3.1-8b"), (r"^llama-3-70b|llama 70b", "llama-3-70b"),
    (r"qwen2\.5(-coder)?[ -]7b|qwen2 7b", "qwen2.5-7b"), (r"qwen2(\.5)?[ -]14b", "qwen2.5-14b"),
    (r"qwen2(\.5)?[ -]32b", "qwen2.5-32b"), (r"gemma3[ -]4b", "gemma-3-4b"), (r"qwen3-8b", "qwen3-8b"),
    (r"qwen3-0\.6b", "qwen3-0.6b"), (r"qwen3-1\.7b", "qwen3-1.7b"), (r"mistral-7b-v0\.3", "mistral-7b"),
    (r"mistral-7b v0\.1", "mistral-7b-v0.1"), (r"tinyllama", "tinyllama-1.1b"), (r"llama 3b", "llama-3.2-3b"),
    (r"llama 1b", "llama-3.2-1b"), (r"gpt-oss[ -]20b", "gpt-oss-20b"), (r"gpt-oss[ -]120b", "gpt-oss-120b"),
    (r"qwen3-coder 30b|qwen3[ -]?(moe )?30b", "qwen3-30b-a3b"),
)  # fmt: skip
"""Catalogue models by what the tables call them; others (pruned, merged, unnamed) are left out."""
MIXTURES = ("gpt-oss-20b", "gpt-oss-120b", "qwen3-30b-a3b")
VECTOR_EXPERTS = 7800
"""Build from which several rows of a mixture are vectors to each expert, as one row is. In llama.cpp 18958 for CUDA and
ROCm, 18918 for Vulkan, January 2026. Before, two rows took the tiles of prompts, and twice to five times as long."""
QUANTS = {"mxfp4": "mxfp4_moe"} | {f"q{bits}_k_xl": f"ud-q{bits}_k_xl" for bits in (2, 3, 4, 5, 6, 8)}
OLD = ("master of 2024", "10491", "4239", "PR 5351")
"""Builds before today's kernels for few rows: Metal's of November 2024, ROCm's of mid-2024."""
SERIAL = ("8e672efe", "May 2024", "2023-08", "10581", "discussion 4167")
"""Builds and threads before Metal ran independent operations together. llama.cpp 15929, September 2025; the thread
compares commit 8e672efe."""
SERIAL_LAUNCH_S = 2.4e-5
"""Seconds that a product cost more on Metal before, at the reference clock. Fitted on those rows."""
ANSWER = 400
"""Context taken half-way through an answer of a served request, in tokens."""
SHORT = 2100
"""Longest context, in tokens: beyond it attention decides."""
FORMATS = ("16-bit", "q8_0", "q4_0", "q4_k", "q6_k", "q3_k", "iq", "iq4_nl")
GROUP_ROWS = {"apple": 5}
"""Rows that one kernel multiplies at most, by maker."""
_GROUPS = {"q4_1": "q4_0", "q5_0": "q4_0", "q5_1": "q4_0", "iq4_xs": "iq4_nl", "mxfp4": "iq4_nl",
           "q5_k": "q4_k", "q2_k": "q3_k"}  # fmt: skip
REFERENCE_HZ = {"apple": 1.398e9, "nvidia": 2.3e9}
"""Clock at which a maker's launch times are stated; AMD's are taken alike at every clock."""
START = {"apple": (5, 10, 14, 18, 18, 22, 25, 16), "nvidia": (4, 6, 5, 7, 8, 9, 10, 5),
         "amd": (4, 8, 8, 14, 14, 16, 16, 8)}  # fmt: skip
"""Operations per weight and row from which a fit starts, and to which formats that no row holds return."""


class Rate(NamedTuple):
    """One measured step."""

    chip: str
    model: str
    quant: str
    rows: int
    streams: int
    context: int
    seconds: float
    backend: str
    serial: bool = False
    """True if a build ran one operation after the other (Metal)."""
    flash: bool = True
    """True if attention is one kernel; llama-bench's default was that it is not."""
    tiled: bool = False
    """True if a build took a matrix kernel for several rows of a mixture."""


@dataclass(frozen=True, slots=True)
class Step:
    """A measured step, what it takes beside its products, and these."""

    rate: Rate
    maker: str
    shipped_s: float
    other_s: float
    products: tuple[tuple[float, float, float, float, str], ...]
    """(times, weights, their bytes, bytes of activations, format)."""
    limits: tuple[float, float, float, float, float]
    """Limits of the device: vector operations, bandwidth, cores times clock, launch cycles over this clock's, on-chip
    bytes."""


@cache
def card_chip(name: str) -> str | None:
    """The catalogue's name of a chip; None where it has none."""
    plain = re.sub(r"geforce |nvidia |tesla |radeon ai pro |radeon ", "", name.lower())
    plain = re.sub(r"[^a-z0-9.]+", "-", plain.replace(" gb", "gb")).strip("-")
    plain = f"apple-{plain}" if re.match(r"m[1-5]\b", plain) else plain
    name_of_chip = CHIPS.get(name, plain)
    return name_of_chip if name_of_chip in chip_names() else None


def file_model(name: str) -> str | None:
    """The catalogue's name of a model; None where it is not one of ``MODELS``."""
    return next((model for pattern, model in MODELS if re.search(pattern, name.lower())), None)


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    """A table of a folder; empty where it has none."""
    path = folder / name
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def measured(folder: Path) -> Iterator[Rate]:
    """Steps of one row, and of up to 8, on one chip."""
    for name, quant, context, speed in TODAY:
        yield Rate("apple-m2-ultra", name, quant, 1, 1, context, 1 / speed, "metal")
    for row in rows_of(folder, "llama_bench.csv"):
        chip, model, rate = card_chip(row["chip"]), file_model(row["model"]), _number(row["tg_tok_s"])
        tokens = _number(row["tg_tokens"])
        if row["engine"] == "llama.cpp" and row["n_chips"] == "1" and chip and model and rate and tokens:
            context = int((_number(row["depth_tokens"]) or 0) + tokens / 2)
            flash = row["flash_attn"] == "1"
            yield Rate(chip, model, _quant(row["quant"]), 1, 1, context, 1 / rate, row["backend"], _serial(row), flash)
    for row in rows_of(folder, "speculation_llamacpp.csv"):
        chip, model, rate = card_chip(row["chip"]), file_model(row["target_model"]), _number(row["baseline_tok_s"])
        if row["engine"] == "llama.cpp" and row["n_chips"] == "1" and chip and model and rate:
            yield Rate(chip, model, _quant(row["target_quant"]), 1, 1, ANSWER, 1 / rate, row["backend"])
    for row in rows_of(folder, "community_decode.csv"):
        chip, model, rate = card_chip(row["chip"]), file_model(row["model"]), _number(row["decode_tok_s"])
        named = re.search(r"-(i?q\d[a-z0-9_]*|mxfp4|f16|bf16)\.gguf$", row["model"].lower())
        if row["engine"] == "llamacpp" and chip and model and rate and named:
            yield Rate(chip, model, _quant(named[1]), 1, 1, ANSWER, 1 / rate, "community")
    for row in rows_of(folder, "metal_batch.csv"):
        chip, model, rate = card_chip(row["chip"]), file_model(row["model"]), _number(row["tok_s"])
        count = int(float(row["batch"]))
        if chip and model and rate and count <= 8 and not any(old in row["build"] for old in OLD):
            prompt = re.search(r"prompt (\d+) tokens", row["note"])
            streams = count if row["metric"] == "batched_bench_decode" else 1
            context = int(prompt[1]) if prompt else 64
            quant, backend = _quant(row["quant"]), row["backend"]
            tiled = count > 1 and model in MIXTURES and backend != "metal" and _build(row) < VECTOR_EXPERTS
            seconds = count / rate
            yield Rate(chip, model, quant, count, streams, context, seconds, backend, _serial(row), tiled=tiled)


def _serial(row: dict[str, str]) -> bool:
    return row["backend"] == "metal" and any(old in f"{row['build']} {row['source']}" for old in SERIAL)


def _build(row: dict[str, str]) -> int:
    """Number of a build of llama.cpp; that of today where the table tells none."""
    number = re.search(r"\((\d{4,5})\)|\bb(\d{4,5})\b", row["build"])
    return int(number[1] or number[2]) if number else VECTOR_EXPERTS


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) and value > 0 else None


def _quant(text: str) -> str:
    return QUANTS.get(text.lower(), text.lower())


def local_scenario(chip: str, model: str, quant: str, **hardware: object) -> Scenario:
    """One user of llama.cpp."""
    data = {
        "model": model,
        "weights_dtype": quant,
        "hardware": {"chip": chip, **hardware},
        "engine": {"framework": "llama.cpp", "max_num_seqs": 16, "max_num_batched_tokens": 512, "num_kv_blocks": 4096},
        "workload": {"arrivals": {"process": "burst"}, "input_tokens": 64, "output_tokens": 128, "num_requests": 1},
    }
    return scenario_from(data, "local")


@cache
def _timer(chip: str, model: str, quant: str, flash: bool, backend: str) -> ModelTimer:
    known = backend if backend in local_backends(load_chip(chip)) else None
    engine = {"engine.flash_attention": flash, "engine.backend": known}
    timer = build_replica(local_scenario(chip, model, quant).with_values(engine)).main.timer
    assert isinstance(timer, ModelTimer)
    return timer


def step_of(rate: Rate) -> Step:
    """A measured step with the parts of its price."""
    timer = _timer(rate.chip, rate.model, rate.quant, rate.flash, rate.backend)
    query = rate.rows // rate.streams
    work = decode_steps(timer.windows, np.array([rate.streams]), query, np.array([rate.context + query]))
    costs = timer.costs(work)
    total = float((costs.device_s + costs.host_s)[0])
    products, in_products = [], 0.0
    for kernel in timer.kernels(work):
        times = float(np.ravel(kernel.times)[0])
        if kernel.family == "gemm" and times:
            weights = float(kernel.sizes["n"]) * float(kernel.sizes["k"])
            activations = 2.0 * rate.rows * (float(kernel.sizes["n"]) + float(kernel.sizes["k"]))
            for plain, share in shares_of(kernel.dtype).items():
                group = "iq" if re.match(r"iq[123]", plain) else _GROUPS.get(plain, plain)
                group = group if group in FORMATS else "16-bit"
                products.append((times * share, weights, dtype_bytes(plain) * weights, activations, group))
            in_products += times * float(np.ravel(kernel.seconds)[0])
    chip = timer.target.deployment.chip
    limits = (
        timer.target.deployment.kernels.limits("fp32").vector_flops,
        chip.memory.bandwidth_bytes_per_s,
        chip.compute.usable_cores * (chip.compute.clock_hz or 0.0),
        REFERENCE_HZ.get(chip.vendor, chip.compute.clock_hz or 1.0) / (chip.compute.clock_hz or 1.0),
        chip.on_chip.capacity_bytes,
    )
    maker = "cpu" if chip.kind == "cpu" else chip.vendor
    waited = rate.serial * SERIAL_LAUNCH_S * limits[3] * sum(product[0] for product in products)
    return Step(rate, maker, total + waited, total - in_products, tuple(products), limits)


def fitted_s(step: Step, x: FloatArray) -> float:
    """Seconds of steps under parameters in logarithms. Launch, efficiency (logit), overlap - 1, core bytes, host, the
    extra cost of a launch of a serial build, under ROCm over Vulkan odds of the efficiency and a launch; a row's
    operations of each format."""
    launch, overlap, core, host = np.exp(x[0]), 1.0 + np.exp(x[2]), np.exp(x[3]), np.exp(x[4])
    vector, bandwidth, cycles, slower, on_chip = step.limits
    rocm = step.rate.backend == "rocm"
    reach = bandwidth / (1.0 + np.exp(-x[1] - x[6] * rocm))
    reach = min(reach, core * cycles) if cycles else reach
    total = step.other_s - 3.0e-4 + host
    launch = launch * np.exp(x[7] * rocm) + np.exp(x[5]) * step.rate.serial
    groups = np.ceil(step.rate.rows / GROUP_ROWS.get(step.maker, 8))
    rows = groups * np.ceil(step.rate.rows / groups)
    for times, weights, held, activations, kind in step.products:
        busy = weights * (groups + np.exp(x[8 + FORMATS.index(kind)]) * rows) / vector
        stream = (held * (groups if held > on_chip else 1.0) + activations) / reach
        total += times * (launch * slower + (busy**overlap + stream**overlap) ** (1.0 / overlap))
    return float(total)


def fit_class(steps: Sequence[Step], maker: str) -> FloatArray:
    """Class defaults of one maker from some of its chips. A chip with many rows of a kind counts as one with few."""
    start = np.log([4e-6, np.e**2, 1.0, 6.0, 3e-4, 1e-5, 1.0, 1.0, *START[maker]])
    counts: dict[tuple[str, str, str, bool], int] = {}
    for step in steps:
        counts[_kind(step)] = counts.get(_kind(step), 0) + 1
    weights = np.array([counts[_kind(step)] ** -0.5 for step in steps])
    ridge = np.array([0.05, 0.05, 0.05, 0.02, 0.05, 0.05, 0.08, 0.08, *[0.08] * len(FORMATS)])

    def residuals(x: FloatArray) -> FloatArray:
        errors = np.log([fitted_s(step, x) / step.rate.seconds for step in steps]) * weights
        penalties: FloatArray = np.concatenate([np.arcsinh(errors / 0.1) * 0.1, ridge * (x - start)])
        return penalties

    from scipy.optimize import least_squares

    fitted: FloatArray = least_squares(residuals, start).x
    return fitted


def _kind(step: Step) -> tuple[str, str, str, bool]:
    return step.rate.chip, step.rate.model, step.rate.quant, step.rate.rows > 1


def scores(errors: Sequence[float]) -> str:
    """Count, median and 90th centile of absolute errors."""
    if not errors:
        return "0 | |"
    sizes = np.abs(errors)
    return f"{len(errors)} | {np.median(sizes):.1%} | {np.percentile(sizes, 90):.1%}"


SELECTIONS: dict[str, Callable[[Rate], bool]] = {
    "1": lambda rate: rate.rows == 1,
    "1, of 16, 8 or 4 bits": lambda rate: rate.rows == 1 and re.match("b?f|q8|(ud-)?q4|mxfp4", rate.quant) is not None,
    "2 to 8": lambda rate: rate.rows > 1 and not rate.tiled,
    "2 to 8, mixtures by builds of 2025": lambda rate: rate.tiled,
}
"""Steps by their rows."""


def class_lines(steps: Sequence[Step]) -> Iterator[str]:
    """Errors by maker: as shipped, each chip by a fit without it, and after one measured number of the chip."""
    yield "| maker | rows of a step | shipped: n | median | p90 | chip left out: n | median | p90 |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    shipped = {step: step.shipped_s / step.rate.seconds - 1 for step in steps}
    unseen: dict[Step, float] = {}
    for maker in START:
        dense = [step for step in steps if step.maker == maker and not _experts(step)]
        for chip in sorted({step.rate.chip for step in dense}):
            fitted = fit_class([step for step in dense if step.rate.chip != chip and step.rate.context <= SHORT], maker)
            own = [step for step in dense if step.rate.chip == chip]
            unseen |= {step: fitted_s(step, fitted) / step.rate.seconds - 1 for step in own}
    for makers in (*((maker,) for maker in START), tuple(START)):
        for name, counts in SELECTIONS.items():
            errors = [[e for s, e in of.items() if s.maker in makers and counts(s.rate)] for of in (shipped, unseen)]
            yield f"| {', '.join(makers)} | {name} | {scores(errors[0])} | {scores(errors[1])} |"


def _experts(step: Step) -> bool:
    return step.rate.model in MIXTURES


def one_number_lines(steps: Sequence[Step]) -> Iterator[str]:
    """Errors of one-row steps after one measured rate of the same chip, each other row of it in turn."""
    before, after = [], []
    ones = [step for step in steps if step.rate.rows == 1]
    for step in ones:
        others = [o for o in ones if o.rate.chip == step.rate.chip and o.rate != step.rate and o.maker == step.maker]
        if not others:
            continue
        before.append(step.shipped_s / step.rate.seconds - 1)
        other = min(others, key=lambda o: abs(np.log(o.rate.seconds / step.rate.seconds)))
        machine = fit_machine([(other.shipped_s, other.shipped_s, other.rate.seconds)])
        after.append(machine.seconds(step.shipped_s, step.shipped_s) / step.rate.seconds - 1)
    yield "| one-row steps of chips with several rows | n | median | p90 |"
    yield "|---|---:|---:|---:|"
    yield f"| class defaults | {scores(before)} |"
    yield f"| after one measured rate of the chip | {scores(after)} |"


def local_steps(steps: Sequence[Step]) -> Table:
    """Every measured step, the worst of each chip, model and format."""
    columns = ("chip", "model", "format", "backend", "rows", "context", "measured ms", "predicted ms", "error %")
    lines: list[list[Value]] = []
    for step in sorted(steps, key=lambda s: (s.maker, s.rate)):
        rate, ms = step.rate, [round(1e3 * one, 2) for one in (step.rate.seconds, step.shipped_s)]
        error = round(100 * (step.shipped_s / rate.seconds - 1))
        lines.append([rate.chip, rate.model, rate.quant, rate.backend, rate.rows, rate.context, *ms, error])
    return Table("Steps on laptops and consumer cards", columns, lines)


class Rig(NamedTuple):
    """One configuration of the 27B model."""

    name: str
    chips: str
    scenario: Scenario
    baseline: float


RIG_QUANTS = {
    "IQ3_S/IQ3_XXS mix (third-party)": "iq3_s",
    "Q4-XYZ-v2 (third-party)": "iq4_xs",
    "IQ3_XXS (third-party)": "iq3_xxs",
    "Q4_K_M of a LoRA-merged model": "q4_k_m",
}


def rigs(folder: Path, model: str) -> Iterator[Rig]:
    """Rigs that can be built and hold all weights; of unlike cards the one with the least memory stands first."""
    for row in rows_of(folder, "qwen38_mtp_configs.csv"):
        chips = [card_chip(card) for card in row["chips"].split("+")]
        cards = sorted((name for name in chips if name), key=lambda name: load_chip(name).memory.capacity_bytes)
        baseline = _number(row["baseline_tok_s"])
        if len(cards) < len(chips) or row["offload"] != "full" or baseline is None:
            continue
        tensor = len(cards) if row["split"] == "tensor" else 1
        hardware: dict[str, object] = {"tensor_parallel": tensor, "pipeline_parallel": len(cards) // tensor}
        if len(set(cards)) > 1:
            others = {"tensor_chips": cards[1:]} if tensor > 1 else {"layers_on": [{"chip": one} for one in cards[1:]]}
            hardware |= {"pipeline_parallel": 1} | others
        if len(cards) > 1:
            hardware["link"] = "pcie4-x16"
        if row["power_limit_w"]:
            hardware["power_limit_w"] = float(row["power_limit_w"])
        kv = {"q4_0": "q4_0", "q8_0": "q8_0"}.get(row["kv_type"], "bf16")
        plain = local_scenario(cards[0], model, RIG_QUANTS.get(row["quant"], _quant(row["quant"])), **hardware)
        values = {
            "kv_cache_dtype": kv,
            "engine.max_model_len": 8192,
            "speculation": {"method": "mtp", "num_speculative_tokens": 2, "acceptance": {"alpha": 0.8}},
        }
        scenario = plain.with_values(values)
        if _runs(scenario):
            yield Rig(row["config_id"], row["chips"], scenario, baseline)


def _runs(scenario: Scenario) -> bool:
    """True if a rig can be built: no unknown format, and heads that divide evenly among its cards."""
    try:
        build_replica(scenario)
    except (ForerunError, ProfileError):
        return False
    return True


def stream_lines(folder: Path, model: str) -> Iterator[str]:
    """One to four streams of long prompts on one rig, with three draft tokens and without, prompts included."""
    rig = next((one for one in rigs(folder, model) if one.name == "q25"), None)
    measured_at: dict[tuple[int, int], float] = {}
    for row in rows_of(folder, "qwen38_mtp_sweeps.csv"):
        if row["section_id"] == "2x5060ti_concurrency":
            measured_at[int(row["streams"]), int(row["n_max"])] = float(row["aggregate_tok_s"])
    if rig is None or not measured_at:
        return
    yield "| streams | measured gain of all | predicted |"
    yield "|---:|---:|---:|"
    for streams in (1, 2, 4):
        rates = []
        for drafted in (0, 3):
            values: dict[str, object] = {"workload.num_requests": streams, "workload.input_tokens": 16_384}
            values |= {"workload.output_tokens": ANSWER, "engine.max_model_len": 20_000, "engine.num_kv_blocks": 8192}
            values |= {"engine.enable_prefix_caching": False, "speculation.method": "mtp" if drafted else "none"}
            values |= {"speculation.num_speculative_tokens": 3, "speculation.acceptance": {"acceptance_length": 2.68}}
            rates.append(summarise(simulate(rig.scenario.with_values(values)))["output_throughput"])
        seen = measured_at[streams, 3] / measured_at[streams, 0]
        yield f"| {streams} | {seen:.2f} | {rates[1] / rates[0]:.2f} |"


def rig_lines(folder: Path, model: str) -> Iterator[str]:
    """Baselines and gains of drafting, with the acceptance that each row states."""
    known = {rig.name: rig for rig in rigs(folder, model)}
    bases, gains, lines = [], [], []
    for row in rows_of(folder, "qwen38_mtp_configs.csv"):
        rig = known.get(row["config_id"])
        if rig is None:
            continue
        drafted, threshold = int(float(row["n_max"])), float(row["p_min"] or 0)
        plain, step = MachinePrices(rig.scenario).seconds(1, 250, drafted)
        bases.append(1 / plain / rig.baseline - 1)
        ends = [float(row[key]) for key in ("acc_low", "acc_high") if row[key]]
        share = float(row["acc_mean"]) if row["acc_mean"] else float(np.mean(ends)) if ends else None
        rate = _number(row["mtp_tok_s"])
        speedup = "| |"
        if (
            share is not None
            and rate is not None
            and not threshold
            and not re.search("not a paired|easy bench", row["note"])
        ):
            gain, seen = (1 + share * drafted) * plain / step, rate / rig.baseline
            gains.append(gain / seen - 1)
            speedup = f"{seen:.2f} | {gain:.2f} |"
        lines.append(
            f"| {row['config_id']} | {row['chips'].replace('+', ' + ')} | {row['split']} | {row['quant']} | "
            f"{rig.baseline:.1f} | {1 / plain:.1f} | {drafted} | {speedup}"
        )
    yield f"Baseline: n, median, p90 of the error {scores(bases).replace(' |', ',')}. Gain of drafting: "
    yield f"{scores(gains).replace(' |', ',')}."
    yield ""
    yield "| rig | cards | split | format | tok/s measured | predicted | n-max | gain measured | predicted |"
    yield "|---|---|---|---|---:|---:|---:|---:|---:|"
    yield from lines


def sweep_lines(folder: Path, model: str) -> Iterator[str]:
    """The best n-max of every sweep without threshold over one stream. By prices and one curve of acceptance for all of
    its rows.

    As tuning has it: what single rows state is often the middle between the least and the most accepted request."""
    known = {rig.name: rig for rig in rigs(folder, model)}
    sweeps: dict[str, dict[int, tuple[float, float | None]]] = {}
    of: dict[str, Rig] = {}
    for row in rows_of(folder, "qwen38_mtp_sweeps.csv"):
        rate, rig = _number(row["tok_s_overall"]), known.get(row["baseline_config_id"])
        if rig is None or rate is None or float(row["p_min"] or 0) > 0 or row["streams"] != "1" or not row["n_max"]:
            continue
        if not re.search(r"nmax|split$|q4km$|dyn3", row["section_id"]):
            continue
        tensor = rig.scenario.hardware.tensor_parallel > 1
        if row["split"] in ("tensor", "layer") and (row["split"] == "tensor") != tensor:
            continue
        name = f"{row['section_id']} {rig.name}"
        of[name] = rig
        ends = [float(row[key]) for key in ("acc_low", "acc_high") if row[key]]
        share = float(row["acc_mean"]) if row["acc_mean"] else float(np.mean(ends)) if ends else None
        sweeps.setdefault(name, {})[int(float(row["n_max"]))] = (rate, share)
    yield "| sweep | best measured | predicted best | it measures of the best | speed-ups measured | predicted |"
    yield "|---|---:|---:|---:|---|---|"
    hits = []
    for name, gains in sweeps.items():
        drafts = {k: one for k, one in gains.items() if k}
        shares = {k: share for k, (_, share) in drafts.items() if share is not None}
        if len(drafts) < 2 or not shares:
            continue
        prices = MachinePrices(of[name].scenario)
        model_ = fit_acceptance_lengths({k: 1.0 + share * k for k, share in shares.items()}).model
        predicted = {}
        for k in drafts:
            plain, step = prices.seconds(1, 250, k)
            predicted[k] = model_.acceptance_length(k) * plain / step
        best, chosen = max(drafts, key=lambda k: drafts[k][0]), max(predicted, key=lambda k: predicted[k])
        part = drafts[chosen][0] / drafts[best][0]
        hits.append(part >= 0.97)
        seen = ", ".join(f"{k}: {rate / of[name].baseline:.2f}" for k, (rate, _) in sorted(drafts.items()))
        predicted_gains = ", ".join(f"{k}: {gain:.2f}" for k, gain in sorted(predicted.items()))
        yield f"| {name} | {best} | {chosen} | {part:.1%} | {seen} | {predicted_gains} |"
    yield ""
    yield f"Right, or within 3 % of the best: {sum(hits)} of {len(hits)} sweeps."


def threshold_lines(folder: Path, model: str) -> Iterator[str]:
    """Gain of a confidence threshold on a card short of arithmetic and on two fast ones. At n-max 4, p-min 0.6,
    acceptance 0.78."""
    rates = [0.85, 0.8, 0.78, 0.75]
    yield "| rig | n-max 4 | with p-min 0.75 | gain |"
    yield "|---|---:|---:|---:|"
    for rig in rigs(folder, model):
        if rig.name not in ("q41", "q36", "q25", "q53"):
            continue
        prices = MachinePrices(rig.scenario)
        steps = np.array([prices.seconds(1, 250, k)[1] for k in range(5)])
        looks = np.array([2.5e-3 * min(k + 1, 4) for k in range(5)])
        free, cut = threshold_chain(rates, 0.0), threshold_chain(rates, 0.75)
        plain, threshold = free.length / steps[4], cut.length / float(cut.chances @ (steps + looks))
        yield f"| {rig.name} {rig.chips} | {plain:.1f} tok/s | {threshold:.1f} tok/s | {threshold / plain - 1:+.0%} |"


HEAD = """# Laptops and consumer cards

Written by `python -m validation.local` of Forerun VERSION from collected measurements of others (llama.cpp's own
threads and benchmarks, community tables; they do not ship). Errors are predicted over measured seconds, less one.
**Shipped** are the class defaults that users get; they were fitted on these rows, and some set by hand with the 27B
table in view, so its scores are no test. **Chip left out** predicts each chip
by a fit of the same form that has not seen it: what to expect of a card that nobody measured. Both know which back end
a Radeon ran (`engine.backend`). Until January 2026 several rows of a mixture ran in the tiles of prompts (llama.cpp
18918 and 18958): these rows are no test of today's builds and stand apart. On a build of 2026 a Strix Halo takes 65 ms
for eight sequences of Qwen3-Coder-Next under Vulkan (llama.cpp 25356), where 62 are predicted (22 and 16 for one).
Metal's rows by builds before September 2025 carry what a product cost more there.
"""


def page(folders: Sequence[Path], model: str) -> tuple[str, Table]:
    """The page in Markdown, and its rows."""
    rates = [rate for folder in folders for rate in measured(folder)]
    steps, refused = [], 0
    for rate in dict.fromkeys(rates):
        try:
            steps.append(step_of(rate))
        except (ForerunError, ProfileError):
            refused += 1
    short = [step for step in steps if step.maker in START and step.rate.context <= SHORT]
    parts: list[tuple[str, Iterator[str]]] = [
        ("Steps of one to eight rows", class_lines(short)),
        ("One number of the machine", one_number_lines(short)),
    ]
    for folder in folders:
        parts += [
            ("A 27B hybrid model with MTP", rig_lines(folder, model)),
            ("The best n-max", sweep_lines(folder, model)),
            ("Confidence threshold", threshold_lines(folder, model)),
            ("Several streams", stream_lines(folder, model)),
        ]
    lines = [HEAD.replace("VERSION", VERSION)]
    for title, made in parts:
        lines += [f"## {title}", "", *made, ""]
    if refused:
        lines.append(f"{refused} rows name a format or a model that cannot be run as named.")
    return "\n".join(lines) + "\n", local_steps(short)


def main() -> None:
    """Score a folder and write the page."""
    parser = argparse.ArgumentParser(prog="python -m validation.local", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, action="append", required=True, metavar="DIR", help="folder of tables")
    parser.add_argument("--model", required=True, metavar="CONFIG", help="config.json of the 27B model")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="page to write")
    options = parser.parse_args()
    text, steps = page(options.data, options.model)
    rows = options.out.with_name(ROWS_FILE)
    options.out.write_text(text, encoding="utf-8")
    rows.write_text(rows_text(read_rows(rows) | by_title(steps)), encoding="utf-8")


if __name__ == "__main__":
    main()
