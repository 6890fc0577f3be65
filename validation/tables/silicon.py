"""NVIDIA's served TTFT and TPOT of AIConfigurator's validation (``silicon_sample.csv``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from traces.benchmark_results import MeasuredRun, PromptPool, closed_loop_throughput, latencies_ms, register_table
from traces.fields import Cells
from validation.tables.recipes import inferencex_flags, limits_of, settings_of

SIGNATURE = frozenset({"silicon_ttft_ms", "silicon_tpot_ms", "backend", "system", "isl", "osl", "batch_size"})
SPREAD = 0.1
"""Assumed relative spread of output lengths of SGLang's Llama-3.1-8B, whose requests would else stay in step. The other
engines' rows keep it as part of their name, so that each stays on its side of the split; their requests have none."""
_OWN = "source_file=data/"
"""Beginning of the origin of AIConfigurator's own runs: servers started by its generator, requests of equal lengths."""
_DYNAMO, _FRONTEND = re.compile("^source_file=(data/|.*gap-analysis)"), {"engine.api_server_count": 8}
"""Origins of runs behind Dynamo, which AIConfigurator's generator starts, and their servers: Dynamo's frontend takes
requests in on all its threads. Eight are assumed; four or sixteen move the mean error of TTFT by a point."""
_PROMPT_EXCESS, _BLOCK = 1500, 32
"""Tokens of its servers' steps beyond one prompt and one for each place, and their multiple under TensorRT-LLM.

Source: ai-dynamo/aiconfigurator, ``generator/backends/trtllm.py`` of 2025 and ``rule_plugin/{trtllm,vllm}.rule``
    (Apache-2.0): ``max_num_tokens = bs + isl + 1500``, without chunked prefill under TensorRT-LLM; requests by
    genai-perf with a standard deviation of 0 (``eval/benchmarks/genai_perf_runner.py``)."""
_NODE = 8
"""Most chips that split every matrix of InferenceX's aggregated runs. Its GB200 rows of 20 to 72 chips with unsplit
experts count those of prefill and decode pools: no model has heads for 20, 28, 36 or 52, and its recipes are pools."""
_EMPTY_SLOT = ("trtllm", "1.0.0rc3", "llama-3.1-8b-instruct")
"""Engine, version and model of the file in whose rows one request waits despite enough places. Mean TTFT exceeds a
prefill by latency / concurrency at every TP and length, which by Little's law is one request. Rows of other models of
the same engine show nothing of the kind."""
_INFERENCEX = re.compile(r"^db-dump/|; model=.*; wip=")
"""Origins that are exports of InferenceX: 23 of their rows stand in its published results too, with equal means."""
_INFERENCEX_SHARE = 0.8
"""InferenceX draws lengths uniformly from this share of the nominal one up to it."""
_CACHED = re.compile(r"^source_file=data/(h200_sxm/vllm/|.*/vllm/.*gtl_job_id=)")
"""Origins of AIConfigurator's runs under vLLM whose prompts repeat. They pass more prompt tokens per second than the
chips multiply (118 k of Llama-3.1-8B on one H200), the more so the more requests are sent."""
_ENTRIES = 100
"""Prompts that GenAI-Perf and AIPerf make and send in turn, unless ``--num-dataset-entries`` names another number."""
_CONNECTIONS, _CONNECTED = 100, "; measured=2025-12-0"
"""Connections of aiohttp's client by default, and origins of InferenceX's runs whose client kept to them. All four of
vLLM with more streams in these days have 88 to 98 of 512 decoding by Little's law."""
_WAVES = 10
"""Requests for each place, of InferenceX's client and of AIConfigurator's."""
_DRAFTED = 0.8
"""Maximum ratio of a run's TPOT to the slowest of its configuration at which it is assumed to use speculation."""
_DRAFTED_RELEASE = "1.2.0rc6.post3"
"""Release of TensorRT-LLM in the exports whose runs of DeepSeek all speculate. 36 of 57 are that much faster than those
of the release before, as no run of another model is between releases."""
_BLACKWELL = ("b200", "b300", "gb200", "gb300")
_KEYS = {"mean_ttft_ms": "silicon_ttft_ms", "mean_tpot_ms": "silicon_tpot_ms"}


def silicon_runs(rows: Iterable[Cells]) -> Iterator[MeasuredRun]:
    """Runs of the table: closed loops of ``batch_size`` requests per attention group.

    Lengths are fixed, or drawn as InferenceX does. The engine is set up for as many sequences as the client sends; one
    of AIConfigurator's own for about one prompt a step (``_PROMPT_EXCESS``), so that few prompts are computed together.
    The output throughput is not in the table; it follows from the two means (see ``closed_loop_throughput``).

    InferenceX keeps KV in FP8 under TensorRT-LLM (``kv_cache_config`` of its recipes), under vLLM on Blackwell
    (``kv-cache-dtype`` there), and for Llama-3.1-70B on H200 (NVIDIA's checkpoint, which requests it; on H100 latency
    and capacity show 16 bits).

    Outputs of SGLang's own runs of Qwen3 are all equally long: their mean TTFT is that of a prompt batch of every place
    at once, whatever the output length, so requests stay in step.

    InferenceX measures DeepSeek with and without MTP, which its exports do not say: of two runs of one configuration a
    fifth of difference the faster speculates (those of them that stand in its published results too, with equal means,
    all do).

    Raises:
        TraceError: a cell that is no number.
    """
    rows = list(rows)
    slowest: dict[tuple[str | None, ...], float] = {}
    for cells in rows:
        tpot = latencies_ms(cells, _KEYS).get("mean_tpot_ms", 0.0)
        slowest[_drafting(cells)] = max(tpot, slowest.get(_drafting(cells), 0.0))
    for cells in rows:
        measured = latencies_ms(cells, _KEYS)
        drafted = cells.text("backend_version") == _DRAFTED_RELEASE
        drafted |= measured.get("mean_tpot_ms", 0.0) < _DRAFTED * slowest[_drafting(cells)]
        places, output = cells.count("batch_size"), cells.count("osl")
        concurrency = None if places is None else places * (cells.several("attention_dp_size") or 1)
        origin = cells.text("silicon_data_source") or ""
        public = _INFERENCEX.search(origin) is not None
        tensor, groups, experts = _layout(cells, public)
        waiting = (cells.text("backend"), cells.text("backend_version"), _tail(cells.text("model_path")))
        empty = 1 if waiting == _EMPTY_SLOT else 0
        prompt = cells.count("isl")
        weights = cells.text("precision") or cells.text("gemm_quant_mode")
        facts = (cells.text("backend"), cells.text("model_path"), cells.text("system"), weights)
        flags = inferencex_flags(*facts, tensor, (prompt, output), concurrency or 0) if public else {}
        backend = cells.text("backend")
        equal = backend == "sglang" and (_tail(cells.text("model_path")) or "").startswith("qwen3-")
        cached = _CACHED.search(origin) is not None and prompt is not None
        limited = public and cells.text("backend") == "vllm" and _CONNECTED in origin
        seats = min(concurrency, _CONNECTIONS) if concurrency and limited else concurrency
        lengths = None
        if not public and backend != "sglang" and prompt and output and concurrency:
            ones = np.ones(_WAVES * concurrency, dtype=np.int64)
            lengths = (prompt * ones, output * ones)
        budget = generator_budget(backend, places, prompt) if origin.startswith(_OWN) else None
        if len(measured) == 2 and concurrency and output and output > 1:
            tokens = output * (1 + _INFERENCEX_SHARE) / 2 if public else output
            measured["output_throughput"] = closed_loop_throughput(
                concurrency, tokens, measured["mean_ttft_ms"], measured["mean_tpot_ms"]
            )
        yield MeasuredRun(
            name=cells.text("id") or "",
            place=cells.place,
            model=cells.text("model_path"),
            chip=cells.text("system"),
            framework=cells.text("backend"),
            framework_version=cells.text("backend_version"),
            tensor_parallel=tensor,
            pipeline_parallel=cells.several("pp_size"),
            expert_parallel=experts,
            data_parallel_attention=groups,
            weights_dtype=weights,
            process="closed-loop",
            max_concurrency=concurrency,
            kv_cache_dtype=flags.get("kv-cache-dtype") or ("fp8" if public and _narrow_cache(cells) else None),
            input_tokens=_drawn(prompt) if public else prompt,
            output_tokens=_drawn(output) if public else output if equal else _spread(output),
            num_requests=_WAVES * concurrency if concurrency and (public or lengths) else None,
            lengths=lengths,
            prefix_caching=cached,
            pool=PromptPool(_ENTRIES, _ENTRIES, prompt) if cached and prompt else None,
            settings=settings_of(flags, groups) | (_FRONTEND if backend == "vllm" and _DYNAMO.search(origin) else {}),
            measured=measured,
            derived=("output_throughput",) if "output_throughput" in measured else (),
            chunked_prefill=False if backend == "trtllm" and origin.startswith(_OWN) else None,
            unusable="disaggregated prefill and decode"
            if cells.text("mode") == "disagg" or (public and not experts and (tensor or 1) > _NODE)
            else "speculation that is not recorded"
            if public and drafted and "deepseek" in (_tail(cells.text("model_path")) or "")
            else None,
            **limits_of(flags, cells.place)
            | ({"max_num_batched_tokens": budget} if budget else {})
            | ({} if seats is None else {"max_num_seqs": max(1, seats - empty)}),
        )


def generator_budget(backend: str | None, places: int | None, prompt: int | None) -> int | None:
    """Most tokens of a step of a server that AIConfigurator's generator started; None where it sets none."""
    if places is None or prompt is None or backend not in ("trtllm", "vllm"):
        return None
    tokens = places + prompt + _PROMPT_EXCESS
    return -(-tokens // _BLOCK) * _BLOCK if backend == "trtllm" else tokens


def _drafting(cells: Cells) -> tuple[str | None, ...]:
    """Key of a configuration, independent of the engine's patch release."""
    version = (cells.text("backend_version") or "").split(".post")[0]
    tensor, groups, experts = _layout(cells, True)
    model = (_tail(cells.text("model_path")) or "").split("-")[0]
    names = ("mode", "backend", "system", "precision", "isl", "osl", "silicon_data_source")
    *facts, source = (cells.text(name) for name in names)
    streams = re.search(r"silicon_concurrency=(\d+)", source or "")
    return (model, version, *facts, f"{tensor} {groups} {experts}", streams and streams.group(1))


def _layout(cells: Cells, public: bool) -> tuple[int | None, int | None, int | None]:
    """Tensor parallel size, attention groups and expert parallel size of a row.

    InferenceX states ``tp`` and ``ep`` over the same chips, and attention groups as ``tp`` of them. Two exports of it
    multiply the two where both are n (n x n chips of experts, n x n or 1 of attention; or n groups of n chips with
    n x n separate experts), though their row names say ``tp8_ep8`` and a third export has the same means on n chips.
    AIConfigurator's own rows state no attention groups: there are as many as its experts have chips beyond ``tp``.
    """
    tensor, groups, experts = cells.count("tp_size"), cells.several("attention_dp_size"), cells.several("moe_ep_size")
    chips, beside = (tensor or 1) * (groups or 1), cells.several("moe_tp_size")
    if not public and (over := (beside or 1) * (experts or 1) // chips) > 1:
        return tensor, over, experts
    multiplied = (experts == beside) if beside else (groups == tensor)
    if not (public and experts and multiplied and chips == (beside or tensor or 1) ** 2):
        return tensor, groups, experts
    each = beside or tensor
    return (1, each, each) if groups else (each, None, each)


def _tail(name: str | None) -> str | None:
    return None if name is None else name.rsplit("/", 1)[-1].lower()


def _narrow_cache(cells: Cells) -> bool:
    system = cells.text("system") or ""
    if cells.text("backend") == "vllm":
        own = system.startswith("h200") and _tail(cells.text("model_path")) == "llama-3.1-70b"
        return own or system.startswith(_BLACKWELL)
    return cells.text("backend") == "trtllm"


def _drawn(tokens: int | None) -> tuple[int, int] | None:
    return None if tokens is None else (max(1, int(tokens * _INFERENCEX_SHARE)), tokens)


def _spread(tokens: int | None) -> tuple[int, int] | None:
    if tokens is None:
        return None
    return (max(1, round(tokens * (1 - SPREAD))), max(1, round(tokens * (1 + SPREAD))))


register_table(
    "silicon",
    "served TTFT and TPOT of AIConfigurator's validation (CSV)",
    SIGNATURE,
    lambda rows, file: silicon_runs(rows),
)
