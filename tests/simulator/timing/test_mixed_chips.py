"""Unlike chips in one machine: layers on a CPU or another card, experts on the host, ranks that differ."""

import numpy as np
import pytest
from plain_scenario import plain_scenario

from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, load_link
from hwprofiles.kernels.sparse import SparseShape
from hwprofiles.parameters import FAMILIES
from simulator import simulate
from simulator.running.build import build_replica
from simulator.studies.engine_flags import launch_flags
from simulator.studies.steady_state.prices import decode_steps
from simulator.timing.kernels import PARAMETERS
from simulator.timing.mixed_chips import SPREAD, HostKernels, SlowestKernels

DENSE, EXPERTS = "llama-3.1-8b", "gpt-oss-20b"
CPU = "cpu-ddr5-2ch"


def scenario(model=DENSE, hardware=None, **engine):
    llama_cpp = {"framework": "llama.cpp", "max_num_seqs": 2, "max_num_batched_tokens": 512, "max_model_len": 4096}
    sections = {"weights_dtype": "q4_k_m" if model == DENSE else "mxfp4", "engine": llama_cpp | engine}
    return plain_scenario(model, "rtx-4090", 40, 12, 3, hardware=hardware or {}, **sections)


def on(chip, layers=None, **more):
    return {"layers_on": [{"chip": chip} | ({} if layers is None else {"layers": layers}) | more]}


def decode_s(inputs):
    timer = build_replica(inputs).main.timer
    work = decode_steps(timer.windows, np.array([1]), 1, np.array([500]))
    costs = timer.costs(work)
    return float((costs.device_s + costs.host_s)[0])


WAYS = [
    (DENSE, on(CPU, 10)),
    (DENSE, on("rtx-3060", 8)),
    (DENSE, {"layers_on": [{"chip": CPU, "layers": 4}, {"chip": "rtx-3060", "layers": 8}]}),
    (EXPERTS, on(CPU, 12, part="experts")),
    (DENSE, {"tensor_parallel": 2, "tensor_chips": ["rtx-5080"], "chip": "rtx-3060", "link": "pcie4-x16"}),
    (DENSE, {"pipeline_parallel": 2, "link": "pcie4-x16"}),
]


@pytest.mark.parametrize(("model", "hardware"), WAYS)
def test_list_sum_and_look_up_agree(model, hardware):
    target = build_replica(scenario(model, hardware)).main.timer.target
    for seqs, query in ((1, 1), (2, 4)):
        work = decode_steps(target.windows, np.array([seqs]), query, np.array([300]))
        listed = sum(float(np.ravel(one.step_s)[0]) for one in target.kernels(work))
        assert float(target.costs(work).device_s[0]) == pytest.approx(listed, rel=1e-9)
        single = type(work)(
            *(tuple(int(x[0]) for x in v) if isinstance(v, tuple) else int(np.ravel(v)[0]) for v in work)
        )
        assert target.seconds(single) == pytest.approx(listed, rel=1e-9)


@pytest.mark.parametrize(("model", "hardware"), WAYS)
def test_compiled_and_interpreted_runs_agree(model, hardware):
    fast, exact = (simulate(scenario(model, hardware, stepping=one)) for one in ("fast", "exact-steps"))
    assert np.array_equal(fast.requests.finished_s, exact.requests.finished_s)


def test_equal_cards_in_turn_take_one_cards_time_and_the_send():
    one, two = decode_s(scenario()), decode_s(scenario(hardware=on("rtx-4090", 16) | {"link": "pcie4-x16"}))
    library = KernelLibrary("rtx-4090", "llama.cpp")
    sent = library.collective("send_recv", 4096 * 2.0, 2, load_link("pcie4-x16")).seconds
    assert two - one == pytest.approx(float(sent), rel=1e-6)
    assert decode_s(scenario(hardware={"pipeline_parallel": 2, "link": "pcie4-x16"})) == pytest.approx(two, rel=1e-12)


def test_every_layer_on_the_host_costs_and_leaves_room():
    times = [decode_s(scenario(hardware=on(CPU, layers))) for layers in (4, 8, 16, 31)]
    assert times == sorted(times)
    assert np.diff(times) == pytest.approx((times[1] - times[0]) / 4 * np.array([4, 8, 15]), rel=0.02)
    whole, split = (build_replica(scenario(hardware=one)).memory for one in (None, on(CPU, 16)))
    assert split.num_blocks > whole.num_blocks
    seventy = scenario("llama-3.1-70b", on(CPU, 50)).with_values({"weights_dtype": "q4_k_m"})
    assert build_replica(seventy).memory.num_blocks > 0
    with pytest.raises(ForerunError, match="does not fit 1 x rtx-4090"):
        build_replica(seventy.with_values({"hardware.layers_on": []}))


def test_a_host_may_run_layers_that_cache_nothing():
    """The first three layers of four keep a state of fixed size: they take no blocks, and limit none."""
    memory = build_replica(scenario("qwen3.5-27b", on(CPU, 3) | {"chip": "a100-sxm-80gb"})).memory
    assert memory.num_blocks > 0


def test_experts_on_the_host_cost_less_than_whole_layers_there():
    """Attention and the cache stay on the card (llama.cpp's --n-cpu-moe)."""
    card, experts, layers = (
        decode_s(scenario(EXPERTS, one)) for one in (None, on(CPU, 12, part="experts"), on(CPU, 12))
    )
    assert card < experts < layers


def test_without_counts_layers_go_by_memory():
    command = build_replica(scenario(hardware=on("rtx-3060"))).main.timer.target.deployment
    assert [home.architecture.num_layers for home in command.homes] == [11, 21]


def test_products_of_many_rows_fetch_their_weights_to_the_card():
    host, card, link = KernelLibrary(CPU, "llama.cpp"), KernelLibrary("rtx-4090", "llama.cpp"), load_link("pcie4-x16")
    both = HostKernels(host, card, link)
    assert both.gemm(4, 4096, 4096, "q4_k") == host.gemm(4, 4096, 4096, "q4_k")
    far = card.gemm(512, 4096, 4096, "q4_k")
    copied = far.bytes / link.bandwidth_bytes_per_s
    assert both.gemm(512, 4096, 4096, "q4_k").seconds == pytest.approx(far.seconds + copied)
    rows = both.gemm(np.array([4, 512]), 4096, 4096, "q4_k").seconds
    assert rows == pytest.approx([host.gemm(4, 4096, 4096, "q4_k").seconds, far.seconds + copied])


def test_unlike_ranks_wait_for_the_slowest():
    slow, fast = KernelLibrary("rtx-3060", "llama.cpp"), KernelLibrary("rtx-5080", "llama.cpp")
    assert SlowestKernels([slow, fast]).gemm(1, 4096, 4096, "q4_k") == slow.gemm(1, 4096, 4096, "q4_k")
    assert SlowestKernels([slow, slow]).gemm(9, 4096, 4096, "q4_k") == slow.gemm(9, 4096, 4096, "q4_k")


def test_every_kernel_family_waits_for_the_slowest_rank():
    """Families added to a library later too: nothing that it times is priced at the first rank's chip alone."""
    assert {PARAMETERS.get(name, name) for name in SPREAD} == set(FAMILIES) - {"collective"}
    assert {name for name in SPREAD if getattr(SlowestKernels, name) is getattr(KernelLibrary, name)} == set()
    slow, fast = KernelLibrary("rtx-3060", "vllm"), KernelLibrary("h100-sxm", "vllm")
    shape, sizes = SparseShape(16, 1, 576, 512, 1152.0, "bf16@dsa", most=2048), {"seqs": 4, "kv_tokens": 40_000}
    due = slow.sparse_decode(shape, q_len=1, **sizes)
    assert due.seconds > fast.sparse_decode(shape, q_len=1, **sizes).seconds
    assert SlowestKernels([fast, slow]).sparse_decode(shape, q_len=1, **sizes) == due


@pytest.mark.parametrize(
    ("model", "hardware", "words"),
    [
        (DENSE, on(CPU, 32), "has 32 layers, of which hardware.chip runs one at least; others would run 32"),
        (DENSE, on(CPU, 3, part="experts"), "has no experts; remove part: experts"),
        (DENSE, on("rtx-309", 3), "hardware.layers_on.0.chip: no chip 'rtx-309'"),
        (EXPERTS, on(CPU, part="experts"), "with how many layers' experts run there"),
        (DENSE, on(CPU, 3) | {"tensor_parallel": 2}, "layers_on: not modelled beside tensor_parallel"),
        (DENSE, {"tensor_parallel": 3, "tensor_chips": ["p100"], "link": "pcie4-x16"}, "names the 2 ranks beside chip"),
        (DENSE, {"tensor_parallel": 2, "tensor_chips": ["rtx-3060"], "link": "pcie4-x16"}, "the card with the least"),
    ],
)
def test_what_cannot_be_is_refused(model, hardware, words):
    with pytest.raises(ForerunError, match=words):
        build_replica(scenario(model, hardware))


def test_other_engines_have_no_unlike_chips():
    with pytest.raises(ForerunError, match=r"hardware\.layers_on: .* under engine\.framework: llama\.cpp"):
        build_replica(scenario(hardware=on(CPU, 3), framework="vllm"))


def test_the_command_says_what_lies_where():
    mixed = {"layers_on": [{"chip": CPU, "layers": 4}, {"chip": "rtx-3060", "layers": 8}]}
    assert (
        "--gpu-layers 29 --split-mode layer --tensor-split 8,20" in launch_flags(scenario(hardware=mixed))["llama.cpp"]
    )
    assert (
        "--gpu-layers all --n-cpu-moe 12" in launch_flags(scenario(EXPERTS, on(CPU, 12, part="experts")))["llama.cpp"]
    )
