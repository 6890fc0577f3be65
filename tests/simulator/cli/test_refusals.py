"""Bad input, whatever the command: one line that names what is wrong, exit code 2, and nothing on stdout."""

import json
import shlex

import pytest
import yaml
from scenario_parts import burst, drafts
from tiny_scenario import tiny_data

DRAFTS = drafts("eagle3", 2, 0.6)
LOCAL = {
    "model": "qwen3-8b",
    "hardware": {"chip": "rtx-4090"},
    "engine": {"framework": "llama.cpp"},
    "speculation": drafts("mtp", 2, 0.8),
    "workload": burst(1, 200, 40),
}
COMPARE = "compare chat.yaml --jobs 1 --replications 2"
FILES = "--jobs 1 --crossover none --no-sensitivity"
VARY = "--vary engine.max_num_seqs=2,64"
SWEEP = "sweep chat.yaml --store kept.sweep"
PLAN = "plan chat.yaml --jobs 1 --requests 50"
SLO = "--slo p99_ttft_ms=1000"
KERNEL = "predict --chip h100-sxm"
HEADS = "num_heads=8 num_kv_heads=8 head_dim=64"

REFUSED = [
    ("run", "SCENARIO"),
    ("run none.yaml", "none.yaml: no such"),
    ("run none.yaml --sed 1", "--sed"),
    ("run none.yaml --seed -1", "--seed"),
    ("run none.yaml --replications 0", "--replications"),
    ("report nowhere", "nowhere"),
    ("nothing", "nothing"),
    ("run chat.yaml --set model=llama-3.1-8", "llama-3.1-8"),
    ("run chat.yaml --set hardware.chip=h10-sxm", "hardware.chip: no chip 'h10-sxm'; did you mean 'h100-sxm'"),
    ("run chat.yaml --set hardware.replica=2", "did you mean 'replicas'"),
    ("run broken.yaml", "broken.yaml"),
    ("run chat.yaml --out chat.yaml", "is a file, name a folder"),
    ("tune tune.yaml --measured 43", "--measured: is of llama.cpp"),
    ("tune tune.yaml --emit tgi", "no such engine or file (vllm, sglang, llama.cpp, vllm-schedule, trtllm"),
    ("run tab.yaml", "indent with spaces"),
    ("run chat.yaml --set workload.input_tokens=200000", "shorten them or raise engine.max_model_len"),
    ("run chat.yaml --set rate=8", "rate: unknown field; did you mean 'workload.arrivals.request_rate'?"),
    ("replay kernels result.json --chip h100-sxm", "(benchmark results: replay requests)"),
    (COMPARE, "there is nothing to compare"),
    (f"{COMPARE} --vary engine.max_seqs=1,2", "engine.max_seqs: unknown field"),
    (f"{COMPARE} --vary engine.max_num_seqs=0,2", "max_num_seqs"),
    (f"{COMPARE} --vary hardware.chip=h100-sxm,h10", "chat.yaml: hardware.chip: no chip 'h10'"),
    (f"{COMPARE} {VARY} --metric mean_latency", "no metric 'mean_latency'"),
    (f"{COMPARE} {VARY} --metric request_goodputt", "did you mean 'request_goodput'"),
    (f"{COMPARE} {VARY} --crossover engine.scheduler", "crossover"),
    (f"{COMPARE} {VARY} --crossover engine.max_seqs=1..4", "max_seqs"),
    (f"compare chat.yaml chat.yaml {FILES}", "the same file is given twice"),
    (f"compare chat.yaml tiny.yaml {VARY} {FILES}", "--vary: works on one scenario"),
    (f"compare tiny.yaml --vary a.b {FILES}", "write PATH=V1,V2"),
    (f"compare tiny.yaml tune.yaml --metric output_thruput {FILES}", "did you mean 'output_throughput'"),
    (
        f"compare tiny.yaml tune.yaml --metric request_goodput --replications 1 {FILES}",
        "--metric: tiny does not measure request_goodput",
    ),
    (SWEEP, "there is nothing to sweep"),
    (f"{SWEEP} --vary engine.max_seqs=1,2", "engine.max_seqs: unknown field"),
    (f"{SWEEP} {VARY} --design sobol", "one of grid, random, latin-hypercube"),
    (f"{SWEEP} {VARY} --design random", "--design: random says nothing without samples"),
    (f"{SWEEP} {VARY} --samples 3", "--samples: a grid"),
    (f"{SWEEP} {VARY} --metric speed", "no metric 'speed'"),
    (f"{PLAN} --rate 2 {SLO} --vary hardware.tensor_parallel=", "write PATH=V1,V2"),
    (f"{PLAN} --rate 2 {SLO} --vary hardware.replicas=0", "whole numbers from 1"),
    (f"{PLAN} --rate 2 {SLO} --vary engine.seqs=3", "unknown field"),
    (f"{PLAN} --rate 2 --max-rate {SLO}", "give one of the two"),
    (f"{PLAN} --rate -1 {SLO}", "--rate"),
    (f"{PLAN} --rate 1 --confidence 1 {SLO}", "--confidence: must lie between 0 and 1"),
    (f"{PLAN} --rate 1 --confidence 0 {SLO}", "--confidence: must lie between 0 and 1"),
    (f"{PLAN} --rate 4 --power-budget 1e4 {SLO}", "--power-budget: a positive number of watts"),
    (f"{PLAN} --max-rate --power-budget -1 {SLO}", "--power-budget: a positive number of watts"),
    (f"{PLAN} --max-rate --carbon nowhere.csv {SLO}", "--carbon: nowhere.csv is neither"),
    (f"{PLAN} --trace nowhere.csv {SLO}", "nowhere.csv"),
    (f"{PLAN} --rate 2 --set slo={{}}", "at least one limit"),
    (f"{PLAN} --rate 2 {SLO} --emit vlm", "--emit: vlm: no such artefact; did you mean 'vllm'"),
    ("tune tune.yaml --batch 0", "--batch: 0: must be whole numbers from 1"),
    ("tune tune.yaml --batch 65", "engine.max_num_seqs is 64"),
    ("tune tune.yaml --context 1,x", "--context: x"),
    ("tune tune.yaml --emit vlm", "--emit: vlm: no such engine or file; did you mean 'vllm'?"),
    ("tune tune.yaml --tokens 2000", "--tokens: 2000"),
    ("tune tune.yaml --set speculation.method=none", "there is no drafter to tune"),
    ("tune tune.yaml --set speculation.method=eagle2 --emit vllm", "vLLM has no eagle2"),
    ("tune study.yaml", "tune takes one scenario"),
    ("tune local.yaml --measured fast", "--measured: fast: write tokens per second, or DRAFT_TOKENS:TOKENS_PER_S"),
    ("tune local.yaml --p-min 2", "--p-min: 2: write numbers from 0 to below 1"),
    ("tune local.yaml --emit vllm --measured 3", "--measured: is of llama.cpp, not of --emit vllm"),
    ("tune local.yaml --from-log absent.log", "absent.log: no such file"),
    ("tune local.yaml --set speculation.method=none", "there is no drafter to tune"),
    ("plan tune.yaml --rate 8rps", "--rate: must be a number without a unit; write 8 (got '8rps')"),
    ("replay tune.yaml", "No such command 'tune.yaml'; write forerun replay kernels or requests or steps"),
    ("plan tune.yaml --rate 10k", "write 10000 (got '10k')"),
    ("run tune.yaml --seed 1k", "--seed: must be a whole number without a unit; write 1000 (got '1k')"),
    ("tune tune.yaml --batch 1k", "--batch: 1k: must be whole numbers from 1 to 4,194,304, such as"),
    ("plan tune.yaml --rate 4 --slo p99_ttft_ms=1s", "must be a positive number without a unit; write 1000 (got '1s')"),
    ("tune tune.yaml --set speculation.method=eagel3", "no method 'eagel3'; did you mean 'eagle3'"),
    (f"{KERNEL} gem m=1", "did you mean 'gemm'"),
    (f"{KERNEL} gemm m=1 n=2", "k missing"),
    (f"{KERNEL} gemm m=1 n=2 k=2 kk=3", "no key 'kk'"),
    (f"{KERNEL} gemm m=1 m=2 n=2 k=2", "twice"),
    (f"{KERNEL} gemm m n=2 k=2", "KEY=VALUE"),
    (f"{KERNEL} gemm m=0 n=2 k=2", "m=0"),
    (f"{KERNEL} gemm m=1.5 n=2 k=2", "m=1.5"),
    (f"{KERNEL} gemm m=1 n=2 k=2 dtype=bf17", "bf17"),
    (f"{KERNEL} attention_decode batch=1 q_len=9 kv_len=8 {HEADS}", "is below q_len=9"),
    (f"{KERNEL} attention_decode batch=1 q_len=1 kv_len=8 num_heads=9 num_kv_heads=8 head_dim=64", "multiple"),
    (f"{KERNEL} moe tokens=1 num_experts=2 experts_per_token=3 hidden=8 intermediate=8", "exceeds num_experts"),
    (f"{KERNEL} all_reduce message_bytes=8 world_size=1", "world_size"),
    ("chips check h100-sxm", "no such file"),
    ("plan plan.yaml --tp 2", "no option --tp; write --set hardware.tensor_parallel=VALUE"),
    ("run plan.yaml --request-rate 3", "no option --request-rate; write --set workload.arrivals.request_rate=VALUE"),
    ("run plan.yaml --replication 3", "no option --replication; did you mean '--replications'?"),
    ("run plan.yaml --frob", "no option --frob (forerun run --help)"),
    ("chips show --model x", "no option --model (forerun chips show --help)"),
    *((f"{group} {verb} h10-llama-azure", "h10-llama-azure") for group in ("chips", "models", "workloads")
      for verb in ("show", "check")),
    *((group, "Missing command") for group in ("chips", "models", "workloads")),
    ("workloads fit-acceptance other.log", "other.log: has no counts of accepted draft tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[words for words, _ in REFUSED])
def test_bad_input_is_one_line(forerun, scenario_file, monkeypatch, words, message):
    folder = scenario_file.parent
    monkeypatch.chdir(folder)
    tuned = tiny_data() | {"engine": {"max_num_seqs": 64}, "speculation": DRAFTS}
    study = {"scenario": "tune.yaml", "vary": {"speculation.method": ["none", "eagle3"]}}
    for name, data in {"tiny": tiny_data(), "tune": tuned, "local": LOCAL, "study": study}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(data))))
    (folder / "broken.yaml").write_text("not: [closed\n")
    (folder / "tab.yaml").write_text("model: llama-3.1-8b\nhardware:\n\tchip: h100-sxm\n")
    (folder / "result.json").write_text('{"mean_ttft_ms": 20.0}')
    (folder / "other.log").write_text("nothing\n")
    outcome = forerun(*shlex.split(words))
    assert message in outcome.error_line
    assert outcome.out == ""
    assert not (folder / "kept.sweep").exists()
