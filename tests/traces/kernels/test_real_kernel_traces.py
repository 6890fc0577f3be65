"""Every kernel file of the shared measurements is read, and no row disappears without a reason."""

import pyarrow.parquet as pq
import pytest

from traces import TraceError
from traces.kernels import read_kernels
from validation import tables as tables  # lets read_kernels read them


def test_every_aiconfigurator_table_accounts_for_all_its_rows(shared_data):
    folder = shared_data / "kernels" / "aiconfigurator" / "h100_sxm"
    files = sorted(folder.rglob("*.parquet"))
    assert len(files) > 30
    for path in files:
        table = read_kernels(path)
        assert len(table) + sum(table.skipped.values()) == pq.read_metadata(path).num_rows, path


def test_the_decode_table_has_the_documented_meaning(shared_data):
    path = next(
        (shared_data / "kernels/aiconfigurator/h100_sxm/attention/vllm").rglob("generation_attention_perf.parquet")
    )
    table = read_kernels(path)
    assert table.ops == ("attention_decode",)
    assert set(table.size("q_len")) == {1}
    large = (table.size("batch") * table.size("kv_len") > 1 << 20) & (table.size("window") == 0)
    kv_bytes = 4 * table.size("batch") * table.size("kv_len") * table.size("num_kv_heads") * table.size("head_dim")
    rate = (kv_bytes / table.measured_s)[large & table.word("kv_dtype").equals("bf16")]
    assert 1.5e12 < sorted(rate)[len(rate) // 2] < 3.35e12


@pytest.mark.parametrize("folder", ["vidur", "llmservingsim", "blis"])
def test_other_measurers_files(shared_data, folder):
    rows = 0
    files = [
        path for path in sorted((shared_data / "kernels" / folder).rglob("*.csv*")) if "cpu_overheads" not in str(path)
    ]
    for path in files:
        table = read_kernels(path)
        assert len(table) > 0, path
        rows += len(table)
    assert rows > 800


def test_files_that_are_no_kernel_traces_are_refused(shared_data):
    path = next((shared_data / "kernels/vidur/cpu_overheads").glob("*.csv"))
    with pytest.raises(TraceError, match="no kernel trace"):
        read_kernels(path)


def test_profiler_samples(shared_data):
    folder = shared_data / "workloads" / "kernel_traces"
    qwen = read_kernels(folder / "hf_qwen1.5-0.5b_prefill_h100.json.gz")
    assert len(qwen) == 1465
    assert qwen.measured_s.sum() == pytest.approx(45.4e-3, rel=0.01)
    assert qwen.word("op").texts().tolist().count("gemm") == 168
    graph = read_kernels(folder / "vllm_decode_full_mi300x.json.gz")
    assert graph.measured_s.sum() == pytest.approx(10.67e-3, rel=0.01)
    clip = read_kernels(folder / "tt_ops_perf_wormhole_b0_clip_encoder.head620.csv")
    assert clip.word("op").texts().tolist().count("gemm") > 100
