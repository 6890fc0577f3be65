"""Kernels timed on this machine: what is timed, what a timing is, and the trace and the profile that come of it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from forerun.errors import ForerunError
from hwprofiles import load_chip, predict_kernel
from simulator.cli import main
from simulator.replay.measure import DTYPES, FAMILIES, KernelShape, MachineLimits, kernel_shapes, machine_profile
from simulator.replay.measure.clocks import MIN_REPEATS, Timing
from simulator.replay.measure.machine import cpu_name, last_cache_bytes, probe
from traces.kernels import OPS, read_kernels

LIMITS = MachineLimits("A CPU", 2, {"bf16": 4.0e11, "fp32": 2.0e11}, 4.0e10, 1.6e10, 1 << 25, 1.8e11, 2e-6)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("device", ["cpu", "cuda", "rocm", "mps"])
@pytest.mark.parametrize("quick", [True, False])
def test_shapes_are_rows_of_the_canonical_trace_without_repeats(device, quick):
    shapes = kernel_shapes(device, quick, FAMILIES, ["bf16"], 0)
    assert {shape.family for shape in shapes} == set(FAMILIES)
    for shape in shapes:
        assert set(OPS[shape.op].needed) <= set(shape.sizes)
    keys = [(shape.family, shape.warm, *sorted(shape.sizes.items())) for shape in shapes]
    assert len(keys) == len(set(keys))


def test_the_order_follows_the_seed():
    first, again, other = (kernel_shapes("cpu", True, FAMILIES, ["bf16", "fp32"], seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(map(repr, first)) == sorted(map(repr, other))


def test_work_of_a_shape_is_what_the_physics_counts():
    """Operations and bytes as the kernel library counts them for the same row of a trace, but for the pairs that a
    verify step masks, which are no work."""
    seen = set()
    for shape in kernel_shapes("cpu", True, FAMILIES, list(DTYPES), 0):
        custom = {"dtype": shape.dtype} | ({"kv_dtype": shape.dtype} if shape.op.startswith("attention") else {})
        counted = predict_kernel("cpu", shape.op, {**shape.sizes, **(custom if shape.op != "elementwise" else {})})
        masked = 0.0
        if shape.op == "attention_decode":
            masked = (shape.sizes["q_len"] - 1) / (2 * shape.sizes["kv_len"])
        assert shape.flops == pytest.approx(counted["flops"] * (1 - masked)), shape
        if shape.dtype != "fp32":  # where the library still moves queries and outputs in bf16
            assert shape.operand_bytes == pytest.approx(counted["bytes"]), shape
        seen.add(shape.family)
    assert seen == set(FAMILIES)


@pytest.mark.parametrize(
    ("families", "dtypes", "message"),
    [
        (["gem"], ["bf16"], "did you mean 'gemm'"),
        (["gemm"], ["bf61"], "did you mean 'bf16'"),
        ([], ["bf16"], "nothing"),
    ],
)
def test_unknown_names_are_refused(families, dtypes, message):
    with pytest.raises(ForerunError, match=message):
        kernel_shapes("cpu", True, families, dtypes, 0)


def test_the_profile_is_a_chip_whose_limits_are_not_below_what_was_seen(tmp_path):
    file = tmp_path / "this-machine.yaml"
    file.write_text(machine_profile(LIMITS, "a test"))
    chip = load_chip(str(file))
    assert chip.compute.cores == 2
    assert chip.peak_flops("bf16") >= 4.0e11
    assert chip.memory.bandwidth_bytes_per_s >= 4.0e10
    assert chip.sources["memory"].kind == "measured"
    assert chip.sources["power"].kind == "assumed"
    assert chip.price is None


def test_what_the_system_does_not_tell_has_a_fallback(tmp_path):
    assert last_cache_bytes(tmp_path) == 32 << 20
    assert cpu_name(tmp_path / "none")
    (tmp_path / "index0").mkdir()
    (tmp_path / "index0" / "size").write_text("1024K\n")
    assert last_cache_bytes(tmp_path) == 1 << 20


class SteadyClock:
    """Every kernel takes 1 ms, whatever it is; nothing is run."""

    device = "cpu"

    def time(self, make, operand_bytes, warm, budget_s):
        return Timing(1e-3, 0.0, MIN_REPEATS, 1e-3)


def test_no_kernel_that_was_timed_is_faster_than_the_limits(torch):
    """Peaks are those of the largest probes, unless a kernel of the trace reached more."""
    slow = probe(torch, SteadyClock(), [], 0)
    assert slow.flops_per_s == {"bf16": 2 * 4096**3 / 1e-3, "fp32": 2 * 2048**3 / 1e-3}
    assert slow.bandwidth_bytes_per_s == slow.cache_bandwidth_bytes_per_s == 6 * slow.cache_bytes / 1e-3
    product = KernelShape("gemm", "gemm", "fp16", False, {"m": 512, "n": 512, "k": 512})
    past = KernelShape("memcpy", "elementwise", "bf16", False, {"bytes_moved": slow.cache_bytes})
    inside = KernelShape("norm", "elementwise", "bf16", True, {"bytes_moved": slow.cache_bytes})
    seen = probe(torch, SteadyClock(), [(product, 1e-6), (past, 1e-5), (inside, 1e-6)], 0)
    assert seen.flops_per_s == {**slow.flops_per_s, "fp16": 2 * 512**3 / 1e-6}
    assert seen.bandwidth_bytes_per_s == slow.cache_bytes / 1e-5
    assert seen.cache_bandwidth_bytes_per_s == slow.cache_bytes / 1e-6
    assert seen.launch_s == 1e-3


def test_without_torch_one_line_names_the_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["measure", "--output", str(tmp_path / "x.csv")]) == 2
    error = capsys.readouterr().err
    assert "pip install 'forerun[measure]'" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x.csv").exists()


def test_nothing_imports_torch_before_something_is_timed(torch, project_root):
    """Not even the command: torch takes seconds to load."""
    code = "import sys; from simulator.cli import main; import simulator.cli.app, simulator.replay.measure; "
    code += "main(['measure', '--help']); sys.exit('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=project_root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Time real kernels" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "x.txt"], ".csv or .parquet"),
        (["--output", "x.csv", "--profile", "y.txt"], ".yaml"),
        (["--output", "x.csv", "--device", "tpu"], "cpu, cuda, rocm or mps"),
        (["--output", "x.csv", "--families", "gem"], "did you mean 'gemm'"),
    ],
)
def test_bad_options_are_one_line(torch, arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["measure", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.fixture
def few(monkeypatch):
    """One small kernel of every family."""
    from simulator import measure as package
    from simulator.replay.measure import kernel_shapes as every
    from simulator.replay.measure import record

    monkeypatch.setitem(record.BUDGET_S, True, 0.005)

    def smallest(*arguments):
        result = sorted(every(*arguments), key=lambda shape: (shape.operand_bytes, shape.warm))
        return [next(shape for shape in result if shape.family == family) for family in FAMILIES]

    monkeypatch.setattr(package, "kernel_shapes", smallest)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_small_measurement_makes_a_canonical_trace(torch, few, tmp_path, capsys, suffix):
    file = tmp_path / f"mine.{suffix}"
    assert main(["measure", "--quick", "--threads", "1", "--output", str(file), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["complete"]
    assert document["provenance"]["torch"] == torch.__version__
    table = read_kernels(file)
    assert len(table) == len(FAMILIES) == document["rows"]
    assert table.format == "forerun"
    assert set(table.ops) == {"gemm", "attention_prefill", "attention_decode", "elementwise"}
    assert (table.size("q_len")[table.word("op").equals("attention_decode")] > 1).sum() == 1
    assert (table.count >= 5).all()
    assert np.isfinite(table.std_s).all()
    assert set(table.word("cache").names) <= {"cold", "warm"}
    assert (file.read_bytes()[:4] == b"PAR1") == (suffix == "parquet")


def test_packed_attention_is_attention(torch):
    """A verify step over packed heads gives what plain attention over each query head gives."""
    from simulator.replay.measure.operations import make_call
    from simulator.replay.measure.shapes import KernelShape

    sizes = {"batch": 2, "q_len": 3, "kv_len": 7, "num_heads": 4, "num_kv_heads": 2, "head_dim": 128}
    shape = KernelShape("attention_verify", "attention_decode", "fp32", False, sizes)
    made = make_call(torch, shape, "cpu", torch.Generator().manual_seed(1))()
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.rand(2, 2, length, 128, generator=generator).sub_(0.5) for length in (2 * 3, 7, 7))
    for row in range(6):
        seen = 7 - 3 + row % 3 + 1
        weights = torch.softmax(q[:, :, row : row + 1] @ k[:, :, :seen].transpose(2, 3) / 128**0.5, dim=-1)
        assert torch.allclose(made[:, :, row : row + 1], weights @ v[:, :, :seen], atol=1e-5)


def test_ctrl_c_keeps_what_is_finished(torch, few, tmp_path, monkeypatch, capsys):
    from simulator.replay.measure import record

    calls = []
    real = record._time_one

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(record, "_time_one", interrupted)
    file = tmp_path / "mine.csv"
    assert main(["measure", "--quick", "--threads", "1", "--output", str(file)]) == 130
    assert len(read_kernels(file)) == 2
    assert "interrupted" in capsys.readouterr().err
