"""Manifests: what of Kubernetes, KServe, Dynamo, llm-d, Compose and benchmark recipes becomes a scenario."""

from contextlib import suppress

import pytest
import yaml

from forerun.errors import ForerunError
from simulator.launch.reading import read_launch
from simulator.running.scenario import load_scenario

POD = """
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
      containers:
      - name: server
        image: vllm/vllm-openai:v0.11.0
        env: [{name: TP, value: "2"}]
        args: ["--model=Qwen/Qwen3-32B", "--tensor-parallel-size=$(TP)", "--max-num-seqs", "64"]
        resources: {limits: {nvidia.com/gpu: 2}}
"""
MANIFESTS = {
    "deployment": f"apiVersion: apps/v1\nkind: Deployment\nspec:\n  replicas: 3\n  template:\n    spec:{POD}---\n"
    "apiVersion: v1\nkind: Service\nspec: {ports: [{port: 80}]}\n",
    "stateful set": f"apiVersion: apps/v1\nkind: StatefulSet\nspec:\n  replicas: 3\n  template:\n    spec:{POD}",
    "leader and workers": """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec:
  replicas: 3
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
        - image: vllm/vllm-openai:v0.11.0
          command: [sh, -c, "ray start --head; vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-num-seqs 64"]
          resources: {limits: {nvidia.com/gpu: "1"}}
        nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-80gb}
    workerTemplate:
      spec: {containers: [{image: "vllm/vllm-openai:v0.11.0", command: [sh, -c, "ray start --address=$LEADER"]}]}
""",
    "compose": """
services:
  chat:
    image: vllm/vllm-openai:v0.11.0
    command: --model Qwen/Qwen3-32B --tensor-parallel-size 2 --max-num-seqs 64
    scale: 3
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
  proxy: {image: nginx}
""",
    "inference service": """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
spec:
  predictor:
    minReplicas: 3
    model:
      modelFormat: {name: vLLM}
      storageUri: hf://Qwen/Qwen3-32B
      args: [--tensor-parallel-size=2, --max-num-seqs=64]
      resources: {limits: {nvidia.com/gpu: 2}}
""",
    "llm inference service": """
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
spec:
  model: {uri: "hf://Qwen/Qwen3-32B", name: Qwen/Qwen3-32B}
  replicas: 3
  parallelism: {tensor: 2}
  template:
    containers:
    - name: main
      env: [{name: VLLM_ADDITIONAL_ARGS, value: --max-num-seqs 64}]
      resources: {limits: {nvidia.com/gpu: 2}}
""",
    "dynamo": """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
spec:
  services:
    Frontend: {componentType: frontend, replicas: 1, extraPodSpec: {mainContainer: {image: "x/vllm-runtime:1"}}}
    VllmWorker:
      componentType: worker
      replicas: 3
      resources: {limits: {gpu: "2"}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.0.0
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-32B, --tensor-parallel-size, "2", --max-num-seqs, "64", --connector, nixl]
""",
    "model service": """
modelArtifacts: {name: Qwen/Qwen3-32B, uri: "hf://Qwen/Qwen3-32B"}
decode:
  replicas: 3
  parallelism: {tensor: 2}
  containers: [{name: vllm, modelCommand: vllmServe, args: [--max-num-seqs, "64"]}]
prefill: {create: false}
""",
    "production stack": """
servingEngineSpec:
  modelSpec:
  - {name: chat, repository: vllm/vllm-openai, tag: v0.8.5, modelURL: Qwen/Qwen3-32B, replicaCount: 3, requestGPU: 2,
     vllmConfig: {tensorParallelSize: 2, maxNumSeqs: 64, extraArgs: [--disable-log-requests]}}
""",
    "variables": """
services:
  chat:
    image: vllm/vllm-openai
    command: --model ${MODEL:-Qwen/Qwen3-32B} --tensor-parallel-size ${TP:-2} --max-num-seqs ${SEQS:-64}
    deploy: {replicas: 3, resources: {reservations: {devices: [{capabilities: [gpu], device_ids: ["0,1"]}]}}}
""",
    "config": "model: Qwen/Qwen3-32B\ntensor-parallel-size: 2\nmax-num-seqs: 64\nport: 80\n",
    "trtllm file": "# trtllm-serve Qwen/Qwen3-32B --extra_llm_api_options THIS_FILE\ntensor_parallel_size: 2\n"
    "max_batch_size: 64\nprint_iter_log: true\n",
    "recipe of vLLM": """
meta: {title: Qwen3-32B}
model: {model_id: Qwen/Qwen3-32B, base_args: [--max-num-seqs, '64']}
features: {tool_calling: {args: [--enable-auto-tool-choice]}, spec_decoding: {args: [--spec-tokens, '3']}}
variants: {default: {precision: bf16, extra_args: [--tensor-parallel-size, '2']}, fp8: {model_id: Qwen/Qwen3-32B-FP8}}
""",
    "matrix": """
qwen3-fp8-h100-vllm:
  image: vllm/vllm-openai:v0.11.0
  model: Qwen/Qwen3-32B
  runner: h100
  framework: vllm
  scenarios: {fixed-seq-len: [{isl: 1024, osl: 64, search-space: [{tp: 2, conc-start: 4, conc-end: 64}]}]}
""",
}
ALONE = ("recipe of vLLM", "config", "trtllm file", "matrix")


def loaded(text, tmp_path, *settings):
    file = tmp_path / "manifest.yaml"
    file.write_text(text, encoding="utf-8")
    return load_scenario(file, settings)


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_manifest_is_a_scenario(kind, tmp_path):
    names_chip = kind in ("deployment", "stateful set", "leader and workers", "matrix")
    scenario = loaded(MANIFESTS[kind], tmp_path, *([] if names_chip else ["hardware.chip=h100-sxm"]))
    hardware = scenario.hardware
    assert (hardware.chip, hardware.tensor_parallel) == ("h100-sxm", 2)
    assert hardware.replicas == (1 if kind in ALONE else 3)
    assert scenario.model == "Qwen/Qwen3-32B"
    if kind != "matrix":
        assert scenario.engine.max_num_seqs == 64
    else:
        assert scenario.workload.arrivals.max_concurrency == 4
        assert any("the first point of 1 is taken" in note for note in scenario.notes)
    assert not any("the manifest gives" in note for note in scenario.notes)


DISAGGREGATED = {
    "llm-d scenario": """
scenario:
- name: pd
  model: {name: Qwen/Qwen3-32B, maxModelLen: 16000}
  decode: {replicas: 1, parallelism: {tensor: 4}, vllm: {additionalFlags: [--max-num-seqs, "256"]}}
  prefill: {replicas: 4, parallelism: {tensor: 1}}
""",
    "llm inference service": """
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
spec:
  model: {uri: "hf://Qwen/Qwen3-32B"}
  replicas: 1
  parallelism: {tensor: 4}
  prefill: {replicas: 4}
""",
    "dynamo": """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
spec:
  services:
    Pre: &worker
      subComponentType: prefill
      replicas: 4
      extraPodSpec: {mainContainer: {image: "x/sglang-runtime:1", command: [python3, -m, dynamo.sglang],
        args: [--model-path, Qwen/Qwen3-32B, --disaggregation-mode, prefill]}}
    Dec:
      subComponentType: decode
      extraPodSpec: {mainContainer: {image: "x/sglang-runtime:1", command: [python3, -m, dynamo.sglang],
        args: [--model-path, Qwen/Qwen3-32B, --tp, "4", --disaggregation-mode, decode]}}
""",
    "recipe": """
name: one
model: {path: qwen, container: "lmsysorg/sglang:v0.5.12", precision: fp8}
resources: {gpu_type: h100, prefill_workers: 4, gpus_per_prefill: 1, decode_workers: 1, gpus_per_decode: 4}
backend:
  type: sglang
  sglang_config:
    prefill: {served-model-name: Qwen/Qwen3-32B, model-path: /model/, disaggregation-mode: prefill}
    decode: {served-model-name: Qwen/Qwen3-32B, trust-remote-code: true, disaggregation-mode: decode, tp-size: 4}
benchmark: {type: sa-bench, isl: 1024, osl: 128, concurrencies: "4x8"}
""",
    "script": """
# prefill
vllm serve Qwen/Qwen3-32B --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}' &
# decode
vllm serve Qwen/Qwen3-32B -tp 4 --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}' &
""",
}


@pytest.mark.parametrize("kind", DISAGGREGATED)
def test_prefill_and_decode_workers_are_pools(kind, tmp_path):
    scenario = loaded(DISAGGREGATED[kind], tmp_path, "hardware.chip=h100-sxm")
    pools = {pool.role: name for name, pool in scenario.pools.items()}
    assert {*pools} == {"prefill", "decode"}
    sizes = {role: scenario.pool_section(name, "hardware") for role, name in pools.items()}
    assert (sizes["prefill"].tensor_parallel, sizes["decode"].tensor_parallel) == (1, 4)
    assert (sizes["prefill"].replicas, sizes["decode"].replicas) == ((1, 1) if kind == "script" else (4, 1))


def test_manifests_that_leave_something_open_are_refused_by_name(tmp_path):
    service = "{image: vllm/vllm-openai, command: Qwen/"
    two = f"services:\n  a: {service}Qwen3-8B}}\n  b: {service}Qwen3-32B}}\n"
    for text, remark in {
        two: "starts engines with different models (Qwen/Qwen3-32B, Qwen/Qwen3-8B); keep one of them",
        "apiVersion: v1\nkind: Deployment\nspec: {{ .Values.spec }}\n": "render it first",
        "apiVersion: v1\nkind: Service\nspec: {ports: [{port: 80}]}\n": "unknown field",
        MANIFESTS["matrix"] + MANIFESTS["matrix"].replace("qwen3-fp8", "other"): "holds 2 configurations",
    }.items():
        with pytest.raises(ForerunError, match=remark.replace("(", r"\(").replace(")", r"\)")):
            loaded(text, tmp_path, "hardware.chip=h100-sxm")


@pytest.mark.parametrize("kind", [kind for kind in MANIFESTS if kind not in ("deployment", "trtllm file")])
def test_a_manifest_with_a_value_of_another_type_is_refused_in_one_line_or_read(kind, tmp_path):
    def places(part):
        for key in [*part] if isinstance(part, dict) else range(len(part)):
            yield part, key
            if isinstance(part[key], dict | list):
                yield from places(part[key])

    for number in range(len(list(places(yaml.safe_load(MANIFESTS[kind]))))):
        for value in (None, 1.5, [None]):
            document = yaml.safe_load(MANIFESTS[kind])
            part, key = [*places(document)][number]
            part[key] = value
            with suppress(ForerunError):
                read_launch(yaml.safe_dump(document), tmp_path, "manifest", {"hardware.chip": "h100-sxm"})


def test_chips_that_a_manifest_gives_and_the_command_leaves_idle_are_noted(tmp_path):
    text = MANIFESTS["compose"].replace("count: 2", "count: 8")
    notes = loaded(text, tmp_path, "hardware.chip=h100-sxm").notes
    assert any("the manifest gives 8 chips to a replica, and the command uses 2" in note for note in notes)


def test_pools_called_prefill_and_decode_have_these_roles():
    data = {"prefill": {}, "decode": {}}
    scenario = load_scenario("vllm serve Qwen/Qwen3-32B", ["hardware.chip=h100-sxm", f"pools={data}"])
    assert {name: pool.role for name, pool in scenario.pools.items()} == {"prefill": "prefill", "decode": "decode"}


def test_replicas_without_a_gateway_are_behind_a_service_that_draws(tmp_path):
    drawn = read_launch(MANIFESTS["deployment"], tmp_path, "x")
    assert drawn.data["engine"]["routing"] == "random"
    assert any("Kubernetes Service" in note for note in drawn.notes)
    given = read_launch(MANIFESTS["deployment"], tmp_path, "x", {"engine.routing": "prefix-aware"})
    alone = read_launch(MANIFESTS["deployment"].replace("replicas: 3", "replicas: 1"), tmp_path, "x")
    for other in (given, alone):
        assert "routing" not in other.data["engine"]
