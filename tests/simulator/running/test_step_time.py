"""The time of a step as other simulators import it."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forerun as fr
from simulator.llm.load import architecture_names
from simulator.timing import StepWork

CHIPS = ("h100-sxm", "mi300x", "tt-p150", "a100-sxm-80gb")
FRAMEWORKS = ("vllm", "sglang", "trtllm")
DRAFT = {"model": "llama-3.2-1b"}
PLAIN = fr.StepTime("llama-3.1-8b", "h100-sxm")
DRAFTING = fr.StepTime(
    "llama-3.1-8b",
    "h100-sxm",
    speculation={"method": "draft-model", "num_speculative_tokens": 4, "draft": DRAFT, "acceptance": {"alpha": 0.7}},
)
chunks = st.lists(st.tuples(st.integers(1, 900), st.integers(0, 100_000)), max_size=4)
contexts = st.lists(st.integers(0, 100_000), max_size=60)


def timed(model, chip="h100-sxm", **fields):
    """Step time of a model on as many chips as it needs; None if none of these counts holds it."""
    for chips in (1, 8, 32):
        try:
            return fr.StepTime(model, chip, tensor_parallel=chips, **fields)
        except fr.ForerunError:
            continue
    return None


@pytest.mark.parametrize("model", architecture_names())
def test_every_model_is_timed_and_its_kernels_sum_to_the_step(model):
    step = timed(model) or timed(model, "b300-sxm", weights_dtype="fp8")
    assert step is not None
    for prefill, decode, sampled in (((), [700] * 5, None), ([(300, 40), (64, 0)], [10, 5000], 1), ([(17, 0)], [], 0)):
        seconds = step.seconds(prefill, decode, sampled=sampled)
        kernels = step.kernels(prefill, decode, sampled=sampled)
        assert seconds > 0
        assert sum(kernel.step_s for kernel in kernels) == pytest.approx(seconds, rel=1e-3)  # decode is interpolated


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("step", [PLAIN, DRAFTING], ids=["plain", "drafting"])
def test_it_is_the_price_of_the_engine(framework, step):
    step = fr.StepTime.of(step.scenario.with_values({"engine.framework": framework}))
    oracle = fr.StepTime.of(step.scenario.with_values({"engine.stepping": "exact-steps"}))

    @settings(max_examples=25, deadline=None)
    @given(chunks, contexts)
    def equal(prefill, decode):
        assert step.seconds(prefill, decode) == oracle.seconds(prefill, decode)

    equal()


@settings(max_examples=25, deadline=None)
@given(contexts.filter(bool), st.integers(0, 4))
def test_draft_tokens_are_verified_and_drafted_where_there_is_a_drafter(decode, drafts):
    alone, both = PLAIN.seconds((), decode, drafts), DRAFTING.seconds((), decode, drafts)
    assert both > alone if drafts else both < DRAFTING.seconds((), decode, 4)
    assert DRAFTING.seconds((), decode) == DRAFTING.seconds((), decode, 4)


def test_arrays_are_taken_and_many_decode_steps_are_priced_at_once():
    assert PLAIN.seconds(np.array([[512, 0]]), np.array([100, 200])) == PLAIN.seconds([(512, 0)], [100, 200])
    assert PLAIN.seconds(decode=100) == PLAIN.seconds(decode=[100])
    grid = PLAIN.seconds_of_decodes(np.array([[1], [8]]), np.array([100, 1000, 9000]))
    assert grid.shape == (2, 3)
    assert grid[1, 2] == PLAIN.seconds(decode=[9000] * 8)


def test_work_of_a_run_is_that_of_the_lists():
    work, _ = PLAIN._work([(4, 6)], [1000, 10], 1, None)
    assert isinstance(work, StepWork)
    assert (work.prefill_pairs, work.decode_kv_tokens, work.sampled_kv_tokens) == ((34,), (1014,), (11,))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"decode": [-1]}, "decode"),
        ({"prefill": [(0, 5)]}, "prefill"),
        ({"prefill": [5]}, "prefill"),
        ({"prefill": [(5, 0)], "sampled": 2}, "sampled"),
        ({"decode": [1], "draft_tokens": -1}, "draft_tokens"),
        ({"decode": [1] * 9000}, ",000 tokens"),
        *(({"decode": [bad]}, "decode") for bad in (float("nan"), float("inf"), 1e30, 1000.7, "1000", True, None, [5])),
        *(({"decode": bad}, "decode") for bad in (5.5, "1000", {5: 1}, None, np.array([5.5]), b"ab")),
        *(({"decode": [bad, 5]}, "67108864") for bad in (2**31, 10**12, 10**20, np.int64(2**31))),
        *(({"prefill": [(100, bad)]}, "prefill") for bad in (float("nan"), 0.5, "0", None, -1)),
        *(({"prefill": bad}, "prefill") for bad in ((2048, 0), 5, [(1, 2, 3)], np.array([5]), [(0.5, 3)])),
        ({"prefill": [(100, 10**20)]}, "67108864"),
        *(({"decode": [5], "draft_tokens": bad}, "draft_tokens") for bad in (1.5, "1", float("nan"), True, 10**20)),
        *(({"prefill": [(5, 0)], "sampled": bad}, "sampled") for bad in (0.5, "1", -1, True)),
    ],
)
def test_a_step_that_cannot_be_is_refused_in_one_line(arguments, named):
    PLAIN.seconds([(100, 5)], [5])  # its path is recorded: numbers of another kind then reach the compiled prices
    for call in (PLAIN.seconds, PLAIN.kernels, DRAFTING.seconds):
        with pytest.raises(fr.ForerunError, match=named) as error:
            call(**arguments)
        assert "\n" not in str(error.value)


def test_what_no_deployment_or_grid_of_steps_has_is_refused():
    with pytest.raises(fr.ForerunError, match="at most 4"):
        DRAFTING.seconds(decode=[1], draft_tokens=5)
    with pytest.raises(fr.ForerunError, match="workload"):
        fr.StepTime("llama-3.1-8b", "h100-sxm", workload={})
    with pytest.raises(fr.ForerunError, match="request_rate: a step's time"):
        fr.StepTime("llama-3.1-8b", "h100-sxm", request_rate=8)
    with pytest.raises(fr.ForerunError, match=r"StepTime: too many positional"):
        fr.StepTime("llama-3.1-8b", "h100-sxm", 2)
    for sizes, contexts, named in (
        ([-8], [1000], "sequences"),
        ([0], [1000], "sequences"),
        ([1.5], [1000], "sequences"),
        ([10**12], [1000], "sequences"),
        ([8], [np.nan], "decode"),
        ([1, 2], [1, 2, 3], "broadcast"),
        ([8], [-1], "decode"),
    ):
        with pytest.raises(fr.ForerunError, match=named):
            PLAIN.seconds_of_decodes(sizes, contexts)


def test_numbers_of_other_kinds_are_taken_as_whole():
    assert PLAIN.seconds([(np.int64(512), 0)], (np.uint64(100), 200)) == PLAIN.seconds([(512, 0)], [100, 200])
    assert PLAIN.seconds(decode=np.array([])) == PLAIN.seconds() < 0.001


def test_notes_name_the_kernels_that_were_not_measured():
    step = fr.StepTime("qwen3-30b-a3b", "h100-sxm", tensor_parallel=8)
    assert step.evidence == "extrapolated"
    assert "7% of usual steps' device time is extrapolated: qkv_proj, o_proj, router" in step.notes


def test_pipelines_and_attention_groups_have_a_step_time():
    stages = fr.StepTime("llama-3.1-8b", "h100-sxm", hardware={"pipeline_parallel": 2})
    assert stages.seconds(decode=[1000] * 8) > PLAIN.seconds(decode=[1000] * 8)
    groups = fr.StepTime("qwen3-30b-a3b", "h100-sxm", hardware={"attention_data_parallel": 2})
    assert groups.seconds(decode=[1000] * 8) == groups.seconds(decode=[1000] * 7)  # four sequences in the larger group


def test_numpy_pydantic_and_a_yaml_reader_are_all_that_it_imports():
    code = (
        "import sys, forerun; step = forerun.StepTime('llama-3.1-8b', 'h100-sxm'); step.seconds(decode=[9]);"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    )
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    own = {"__main__", "forerun", "hwprofiles", "simulator", "traces"}
    parts = {"numpy", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "yaml"}
    others = {name for name in names if not name.startswith(("_", "cython"))} - own - parts
    assert others == set()


def test_the_import_leaves_out_what_runs_many_requests():
    code = "import sys, forerun; forerun.StepTime; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "simulator.serving.fleet.pool" in names
    others = {f"simulator.{name}" for name in ("serving.fleet.fleet", "serving.log", "workload.generate", "studies")}
    assert not others & set(names)


def test_a_field_of_a_section_is_suggested_as_python_takes_it():
    with pytest.raises(fr.ForerunError, match=r'did you mean hardware=\{"expert_parallel": \.\.\.\}\?'):
        fr.StepTime("llama-3.1-8b", "h100-sxm", expert_parallel=8)
