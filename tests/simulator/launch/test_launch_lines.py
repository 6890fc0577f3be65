"""Launch lines: what each option becomes, what a shell's text may look like, and what is refused."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from round_trip import WRITTEN, differences
from scenario_search.search import placed, scenario_of

from forerun.errors import ForerunError
from simulator.launch.reading import read_launch
from simulator.launch.tables import ENGINES, find, known_flags, table
from simulator.running.scenario import load_scenario, scenario_from
from simulator.studies.engine_flags import launch_flags

H100 = ["hardware.chip=h100-sxm"]
QWEN = "vllm serve Qwen/Qwen3-32B"


def read(text, tmp_path=None, *settings):
    """The scenario of a line as plain data."""
    return load_scenario(text, [*H100, *settings]).model_dump(mode="json", exclude_unset=True)


def at(data, path):
    for key in path.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data


LINES = {
    QWEN: {"model": "Qwen/Qwen3-32B", "engine.framework": "vllm", "workload.input_tokens": 1024},
    f"{QWEN} -tp 2 --max_model_len=32k --gpu-memory-util 0.8": {
        "hardware.tensor_parallel": 2,
        "engine.max_model_len": 32000,
        "engine.gpu_memory_utilization": 0.8,
    },
    f"{QWEN} --max-model-len 32K --enforce-eager --no-enable-prefix-caching": {
        "engine.max_model_len": 32768,
        "engine.cuda_graphs": False,
        "engine.enable_prefix_caching": False,
    },
    f"{QWEN} -O0 --kv-cache-dtype fp8_e4m3 --dtype half": {"engine.cuda_graphs": False, "kv_cache_dtype": "fp8"},
    "vllm serve Qwen/Qwen3-30B-A3B -dp 4 -ep": {
        "hardware.attention_data_parallel": 4,
        "hardware.expert_parallel": 4,
        "hardware.replicas": None,
    },
    f"{QWEN} --swap-space 0 --kv-offloading-size 0 < prompts > log": {"engine": {"framework": "vllm"}},
    f"""{QWEN} --speculative-config '{{"method": "eagle3", "num_speculative_tokens": 3,
    "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}}'""": {
        "speculation.acceptance": {"acceptance_length": 2.5}
    },
    f"{QWEN} --no-scheduler-reserve-full-isl": {"engine.scheduler_reserve_full_isl": False},
    f"{QWEN} -tp 2 --kv-offloading-size 64": {"engine.kv_offloading_bytes": 32 * 2.0**30},
    f"{QWEN} -tp 2 --kv-offloading-size 64 --kv-offloading-backend lmcache": {
        "engine.kv_stores": [{"bytes": 2.0**36, "saves": "computed", "loads": "background"}]
    },
    QWEN
    + """ --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both",
    "kv_connector_extra_config":{"cpu_bytes_to_use":8000000000}}'""": {
        "engine.kv_stores": [{"bytes": 8e9, "saves": "computed", "loads": "background"}]
    },
    f"LMCACHE_LOCAL_CPU=False LMCACHE_LOCAL_DISK=file:///x LMCACHE_MAX_LOCAL_DISK_SIZE=1 {QWEN} -tp 2 "
    '--kv-transfer-config {"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}': {
        "engine.kv_stores": [
            {
                "bytes": 2.0**31,
                "medium": "disk",
                "read_bytes_per_s": 6e9,
                "write_bytes_per_s": 3e9,
                "saves": "computed",
            }
        ]
    },
    "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 --enable-hierarchical-cache --hicache-size 30 "
    "--hicache-write-policy write_back": {"engine.kv_stores": [{"bytes": 6e10, "saves": "evicted"}]},
    f"{QWEN} --data-parallel-size 4": {"hardware.replicas": 4, "hardware.attention_data_parallel": None},
    f"{QWEN} --quantization fp8": {"weights_dtype": "fp8"},
    "vllm serve Qwen/Qwen3-32B-FP8 --quantization fp8": {"model": "Qwen/Qwen3-32B-FP8", "weights_dtype": None},
    f"{QWEN} --speculative-config.method ngram --speculative-config.num_speculative_tokens 4": {
        "speculation.method": "ngram",
        "speculation.num_speculative_tokens": 4,
    },
    f'{QWEN} --speculative-config {{"method":"eagle3","model":"x/head","num_speculative_tokens":2}}': {
        "speculation.method": "eagle3",
        "speculation.num_speculative_tokens": 2,
    },
    "python3 -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 64": {
        "engine.max_num_seqs": 64
    },
    "vllm serve meta-llama/Llama-3.1-8B-Instruct --api-server-count 4": {"engine.api_server_count": 4},
    "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --tokenizer-worker-num 4": {
        "engine.api_server_count": 4
    },
    "python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B --tp 8 --dp 4 --enable-dp-attention --ep-size 8 "
    "--chunked-prefill-size 4096 --cuda-graph-max-bs 4": {
        "hardware.tensor_parallel": 2,
        "hardware.attention_data_parallel": 4,
        "hardware.expert_parallel": 8,
        "engine.max_num_batched_tokens": 4096,
        "engine.cuda_graph_sizes": [1, 2, 4],
    },
    "python -m sglang.launch_server --model Qwen/Qwen3-32B --dp-size 2 --disable-radix-cache": {
        "hardware.replicas": 2,
        "engine.enable_prefix_caching": False,
    },
    "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path x/head --speculative-num-steps 3 --speculative-eagle-topk 4 "
    "--speculative-num-draft-tokens 16": {
        "speculation.method": "eagle3",
        "speculation.tree": {"depth": 3, "top_k": 4, "nodes": 15},
    },
    "trtllm-serve Qwen/Qwen3-30B-A3B --tp_size 4 --ep_size 4 --max_batch_size 64 "
    "--kv_cache_free_gpu_memory_fraction 0.8": {
        "engine.framework": "trtllm",
        "hardware.tensor_parallel": 4,
        "hardware.expert_parallel": 4,
        "engine.max_num_seqs": 64,
        "engine.gpu_memory_utilization": 0.8,
    },
    "./build/bin/llama-server -m models/Qwen3-8B-Q4_K_M.gguf -ngl 30 -c 32768 -np 4 -fa off -ctk q8_0 -ctv q8_0": {
        "model": "qwen3-8b",
        "weights_dtype": "q4_k_m",
        "engine.max_model_len": 8192,
        "engine.flash_attention": False,
        "kv_cache_dtype": "q8_0",
        "hardware.layers_on": [{"chip": "cpu-ddr5-2ch", "layers": 7, "part": None}],
    },
    "llama-server -hf ggml-org/gpt-oss-20b-GGUF:MXFP4_MOE --n-cpu-moe 12 --jinja": {
        "hardware.layers_on": [{"chip": "cpu-ddr5-2ch", "layers": 12, "part": "experts"}]
    },
    "docker run --gpus all -p 8000:8000 -e HF_TOKEN=x vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-32B -tp 4": {
        "engine.framework": "vllm-0.11",
        "engine.release": "0.11.0",
        "hardware.tensor_parallel": 4,
    },
    "docker run --rm lmsysorg/sglang:v0.5.12 python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B": {
        "engine.framework": "sglang",
        "engine.release": "0.5.12",
    },
}


@pytest.mark.parametrize("line", LINES)
def test_a_launch_line_is_a_scenario(line):
    data = read(line)
    for path, expected in LINES[line].items():
        matched = at(data, path)
        if path == "hardware.layers_on":
            matched = [{**one, "part": one.get("part")} for one in matched]
        assert matched == expected, path


TEXTS = {
    "prompt": f"$ {QWEN} \\\n    --tensor-parallel-size 2  # two chips\n",
    "export": "export TP=2\nMODEL=Qwen/Qwen3-32B\n"
    "vllm serve $MODEL --tensor-parallel-size ${TP} > log 2>&1 &\nsleep 3\n",
    "default": "vllm serve Qwen/Qwen3-32B --tensor-parallel-size ${TP:-2} --port ${PORT}",
    "quotes": "vllm serve “Qwen/Qwen3-32B” –-tensor-parallel-size 2",
    "dashes": "vllm serve Qwen/Qwen3-32B —tensor-parallel-size 2",
    "shell": 'bash -c "cd /app && exec vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2"',
    "comment": "#!/bin/bash\n# it's a server\nset -e\n"
    "vllm serve Qwen/Qwen3-32B \\\n  # --tensor-parallel-size 8 \\\n  -tp 2\n",
    "array": 'ARGS=(--tensor-parallel-size 2)\nARGS+=(--port 1)\nvllm serve Qwen/Qwen3-32B "${ARGS[@]}"\n',
    "words": 'EXTRA="--tensor-parallel-size 2 --port 9"\nvllm serve Qwen/Qwen3-32B $EXTRA\n',
    "heredoc": "cat > c.yaml << 'EOF'\ntensor-parallel-size: 2\nno-enable-prefix-caching: true\nEOF\n"
    "vllm serve Qwen/Qwen3-32B --config c.yaml\n",
    "fence": "```bash\nvllm serve Qwen/Qwen3-32B -tp 2\n```",
    "arrays": 'TP_ARGS=(--tp "2")\nCMD=(\n  vllm serve\n'
    '  Qwen/Qwen3-32B\n  "${TP_ARGS[@]}"\n)\n"${CMD[@]}" > log 2>&1 &\n',
    "branches": "LEN=4096\nTP=2\nif [ $EVAL ]; then TP=$OTHER; fi\n"
    "sizes+=( $(seq 1 2 $N))\nvllm serve Qwen/Qwen3-32B -tp $TP",
    "makefile": "serve:\n\tvllm serve Qwen/Qwen3-32B \\\n\t\t--tensor-parallel-size 2\n",
    "path": "/opt/venv/bin/vllm serve Qwen/Qwen3-32B -tp=2",
    "environment": "VLLM_USE_V1=1 CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen3-32B -tp 2",
    "snapshot": "vllm serve /root/.cache/huggingface/hub/models--Qwen--Qwen3-32B/snapshots/abc -tp 2",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_line_is_read_in_the_forms_of_a_shell(kind, tmp_path):
    file = tmp_path / "start.sh"
    file.write_text(TEXTS[kind], encoding="utf-8")
    for source in (file, TEXTS[kind]):
        data = read(source)
        assert data["model"] == "Qwen/Qwen3-32B"
        assert data["hardware"]["tensor_parallel"] == 2


STARTS = {
    "vllm": "vllm serve Qwen/Qwen3-30B-A3B",
    "sglang": "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B",
    "trtllm": "trtllm-serve Qwen/Qwen3-30B-A3B",
    "llama.cpp": "llama-server -m Qwen3-8B-Q4_K_M.gguf",
}


def test_every_flag_of_every_engine_becomes_one_option():
    """None is dropped, and each has a kind and words for it."""
    for engine in ENGINES:
        base = len(read_launch(STARTS[engine], None, "line", {"hardware.chip": "h100-sxm"}).options)
        for name, flag in known_flags(engine).items():
            if flag.meaning and not (flag.no_effect or flag.not_modelled):
                continue
            value = " 1" if flag.takes else ""
            launch = read_launch(f"{STARTS[engine]} --{name}{value}", None, "line", {"hardware.chip": "h100-sxm"})
            assert len(launch.options) == base + 1, name
            assert launch.options[-1].kind in ("no effect on time", "not modelled"), name
            assert launch.options[-1].why, name
        for name in table(engine)["aliases"].values():
            assert name in known_flags(engine), (engine, name)
        for name in (*table(engine)["since"], *table(engine)["until"]):
            assert name in known_flags(engine), (engine, name)


@pytest.mark.parametrize("value", ["abc", "-1", "[1]", "{}", "1.5", "null", "1,2", "'{\"method\": 3}'"])
def test_a_value_of_another_type_is_refused_in_one_line_or_read(value):
    for engine, start in STARTS.items():
        for name, flag in known_flags(engine).items():
            if flag.meaning:
                with suppress(ForerunError):
                    read_launch(f"{start} --{name} {value}", Path(), "line", {"hardware.chip": "h100-sxm"})


def test_options_are_used_without_effect_not_modelled_or_unknown():
    launch = read_launch(
        f"{QWEN} -tp 2 --port 80 --attention-backend FLASHINFER --warp-speed 9 --max-num-seqs $CONC",
        None,
        "line",
        {"hardware.chip": "h100-sxm"},
    )
    kinds = {option.text: option.kind for option in launch.options}
    assert kinds == {
        "Qwen/Qwen3-32B": "used",
        "-tp 2": "used",
        "--port 80": "no effect on time",
        "--attention-backend FLASHINFER": "not modelled",
        "--warp-speed 9": "unknown",
        "--max-num-seqs $CONC": "unknown",
    }
    assert any("--warp-speed 9: unknown" in note for note in launch.notes)
    assert any("the load is assumed: 1024 + 256 tokens" in note for note in launch.notes)


def test_a_flag_or_format_that_is_nearly_known_is_noted_first():
    for written, words in (
        ("--kv-cache-dtyp fp8", "no flag of this name is known here; did you mean '--kv-cache-dtype'?"),
        ("--max-model-ln 100", "no flag of this name is known here; did you mean '--max-model-len'?"),
        ("--kv-cache-dtype fp9", "no format of this name is known here"),
    ):
        launch = read_launch(f"vllm serve Qwen/Qwen3-8B {written}", None, "line", {"hardware.chip": "h100-sxm"})
        assert launch.notes[0] == f"launch line: {written}: unknown, {words}"
    with pytest.raises(ForerunError, match=r"hardware\.tensor_parallel: a whole number is expected \(got two\)"):
        read_launch("vllm serve Qwen/Qwen3-8B -tp two", None, "line", {"hardware.chip": "h100-sxm"})


def test_a_file_type_that_is_not_named_is_what_llama_server_loads():
    data = read("llama-server -hf unsloth/Qwen3-8B-GGUF -ngl 99 --flash-attn")
    assert at(data, "model") == "unsloth/Qwen3-8B-GGUF:Q4_K_M"
    assert any("llama-server loads Q4_K_M" in note for note in data["notes"])
    assert at(read("llama-server -hf ggml-org/gpt-oss-120b-GGUF --n-cpu-moe 3"), "model") == "gpt-oss-120b"


def test_processes_of_one_server_on_several_nodes_are_one_server():
    start = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --nnodes 2 --node-rank"
    data = read(f"# node 1\n{start} 0\n\n# node 2\n{start} 1\n")
    assert (at(data, "hardware.tensor_parallel"), at(data, "pools")) == (16, None)
    assert any("1 further commands start the same server's other processes" in note for note in data["notes"])


def test_flags_that_the_image_does_not_have_are_noted():
    old, new = (f"docker run vllm/vllm-openai:v{release} --model Qwen/Qwen3-8B" for release in ("0.6.0", "0.11.0"))
    given = {"hardware.chip": "h100-sxm"}
    notes = read_launch(f"{old} --async-scheduling", None, "line", given).notes
    assert any("--async-scheduling is a flag of vllm from 0.10 on; the image is 0.6.0" in note for note in notes)
    notes = read_launch(f"{new} --num-scheduler-steps 4", None, "line", given).notes
    assert any("--num-scheduler-steps is a flag of vllm up to 0.9; the image is 0.11.0" in note for note in notes)


REFUSED = {
    "ollama run qwen3": "'ollama' starts no engine that is read",
    "python train.py --lr 3": "'python' starts no engine that is read",
    "vllm serve 'Qwen/Qwen3-8B": "a single quote is opened and not closed",
    'vllm serve Qwen/Qwen3-8B --speculative-config "{': "quote is opened",
    "vllm serve $MODEL -tp 2": "its model $MODEL has no value in the text; give --set model=NAME",
    "docker run vllm/vllm-openai --model <MODEL> --host 0": "its model $MODEL has no value in the text; give",
    'vllm serve "<your model>" -tp 2': "its model $your_model has no value in the text",
    "vllm serve Nobody/Nothing-9B": "no model 'Nobody/Nothing-9B'",
    "vllm serve Qwen/Qwen3-8B --speculative-config 3": "a JSON object is expected",
    "vllm bench serve --model Qwen/Qwen3-8B": "'vllm' starts no engine that is read",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_no_launch_line_is_refused_in_one_line(line, forerun):
    outcome = forerun("run", line, "--chip", "h100-sxm")
    assert outcome.code == 2
    assert REFUSED[line] in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_line_without_a_chip_asks_for_it(forerun, tmp_path):
    for command in ("run", "import", "tune"):
        outcome = forerun(command, QWEN)
        assert (outcome.code, "names no chip; give --chip" in outcome.err) == (2, True), command
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    assert "is empty; a scenario is a mapping" in forerun("run", empty).err
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    assert "cannot be read as text" in forerun("run", tmp_path / "binary").err


def test_import_writes_a_scenario_that_runs(forerun, tmp_path):
    line = "vllm serve Qwen/Qwen3-8B -tp 2 --port 80 --warp-speed 9"
    outcome = forerun("import", line, "--chip", "h100-sxm", "--rate", "3", "--output", tmp_path / "chat.yaml")
    assert outcome.code == 0
    text = (tmp_path / "chat.yaml").read_text()
    for remark in ("-tp 2: used, hardware", "--port 80: no effect on time, address", "--warp-speed 9: unknown"):
        assert f"#   {remark}" in text
    assert yaml.safe_load(text)["workload"]["arrivals"] == {"process": "poisson", "request_rate": 3.0}
    first = json.loads(forerun("run", tmp_path / "chat.yaml", "--set", "workload.num_requests=5", "--json", "-").out)
    again = ("run", line, "--chip", "h100-sxm", "--rate", "3", "--set", "workload.num_requests=5", "--json", "-")
    second = json.loads(forerun(*again).out)
    assert first["summary"] == second["summary"]
    assert any("--warp-speed 9" in note for note in second["notes"])
    assert "is a scenario already" in forerun("import", tmp_path / "chat.yaml").err


def test_commands_take_lines_traces_and_several_of_them(forerun):
    outcome = forerun(
        "compare", "vllm serve Qwen/Qwen3-8B -tp 2", "vllm serve Qwen/Qwen3-8B", "--chip", "h100-sxm", "--rate", "2",
        "--set", "workload.num_requests=12", "--crossover", "none", "--json", "-",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert [one["name"] for one in json.loads(outcome.out)["variants"]] == ["line 1", "line 2"]
    traced = forerun(
        "run",
        QWEN,
        "--chip",
        "h100-sxm",
        "--trace",
        "azure-conv-2023",
        "--set",
        "workload.num_requests=5",
        "--json",
        "-",
    )
    workload = json.loads(traced.out)["scenario"]["workload"]
    assert (workload["trace"], workload["num_requests"], workload.get("input_tokens")) == ("azure-conv-2023", 5, None)


def test_a_shortcut_leaves_an_option_of_a_study_as_it_is(forerun, tmp_path):
    """plan has a --rate and a --trace of its own, which are no fields of the scenario."""
    (tmp_path / "chat.yaml").write_text(
        "model: llama-3.1-8b\nhardware: {chip: h100-sxm}\nworkload: {trace: azure-conv-2023, num_requests: 40}\n"
    )
    outcome = forerun(
        "plan", tmp_path / "chat.yaml", "--rate", "2", "--slo", "p99_ttft_ms=5000", "--jobs", "1", "--json", "-"
    )
    workload = json.loads(outcome.out)["scenario"]["workload"]
    assert (workload["trace"], workload.get("arrivals")) == ("azure-conv-2023", None)


def test_hints_for_engine_flags_come_from_the_tables():
    for field, meant in {
        "engine.enforce_eager": "engine.cuda_graphs: false",
        "hardware.tensor_parallel_size": "hardware.tensor_parallel",
        "engine.mem_fraction_static": "engine.gpu_memory_utilization",
        "engine.attention_backend": "not modelled (other attention kernels than those that were fitted)",
    }.items():
        with pytest.raises(ForerunError, match=re.escape(f"it is {meant} here")):
            load_scenario(QWEN, [*H100, f"{field}=1"])


@pytest.mark.parametrize("block", range(4))
def test_what_emit_writes_is_read_as_the_same_scenario(block):
    """Drawn scenarios, pools included; where a remark says that a command lacks something, that is left out."""
    read_back = 0
    for seed in range(40_000 + 12 * block, 40_000 + 12 * block + 12):
        try:
            scenario = scenario_from(placed(scenario_of(seed)), "drawn")
        except ForerunError:
            continue
        for name in WRITTEN:
            matched = differences(name, scenario)
            assert not matched, (seed, name)
            read_back += matched is not None
    assert read_back > 20


def test_a_prefix_or_a_negation_of_a_flag_is_that_flag():
    assert find("vllm", "--gpu-memory-util")[0] == "gpu-memory-utilization"
    assert find("vllm", "--no-enable-chunked-prefill")[1].constant is False
    assert find("llama.cpp", "--gpu") is None
    assert find("vllm", "--max") is None


HOST = {"bytes": 6.4e10, "saves": "computed"}
BACKGROUND = HOST | {"loads": "background"}
DISK = {"bytes": 2.0**40, "medium": "disk", "read_bytes_per_s": 6e9, "write_bytes_per_s": 3e9, "saves": "computed"}


@pytest.mark.parametrize(
    ("engine", "stores"),
    [
        ("vllm", [BACKGROUND]),
        ("vllm", [{**BACKGROUND, "bytes": 2.0**36}, DISK]),
        ("vllm", [DISK]),
        ("sglang", [HOST]),
        ("sglang", [HOST | {"saves": "evicted"}]),
    ],
)
def test_kv_stores_are_written_as_flags_and_read_back(engine, stores):
    changes = {"engine.framework": engine, "hardware.tensor_parallel": 2, "engine.kv_stores": stores}
    line = launch_flags(scenario_from(read(QWEN), "line").with_values(changes))[engine]
    assert "#" not in line
    assert read(line)["engine"]["kv_stores"] == stores


def test_a_store_without_a_flag_is_a_remark():
    changes = {"engine.framework": "sglang", "engine.kv_stores": [DISK]}
    lines = launch_flags(scenario_from(read(QWEN), "line").with_values(changes))
    assert "add the KV stores that this answer has: disk 1,100 GB" in lines["sglang"]
    assert "lmcache.max_local_disk_size" in lines["vllm"]
