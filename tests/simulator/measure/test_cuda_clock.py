"""Timing on a GPU, with a made-up GPU in torch's place: what is cold is cold, what is left out says why."""

from collections import OrderedDict
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from forerun.errors import ForerunError
from simulator.replay.measure import KernelShape, clocks, measure, record
from simulator.replay.measure.clocks import MIN_REPEATS, CudaClock, MetalClock
from simulator.replay.measure.machine import check_device

L2_BYTES = 1 << 20
HIT_S, MISS_S = 1e-6, 10e-6


class Gpu:
    """A GPU whose kernels take ``HIT_S`` where an LRU cache holds their operands, and ``MISS_S`` where not."""

    OutOfMemoryError = type("OutOfMemoryError", (Exception,), {})
    __version__ = "9.9"

    def __init__(self):
        self.now_s, self.made, self.ran_eagerly = 0.0, 0, 0
        self._cached, self._capturing = OrderedDict(), None
        self.cuda = SimpleNamespace(
            get_device_properties=lambda index: SimpleNamespace(L2_cache_size=L2_BYTES),
            get_device_name=lambda index: "A GPU",
            synchronize=lambda: None,
            Stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
            current_stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
            stream=nullcontext,
            graph=self._capture,
            CUDAGraph=lambda: SimpleNamespace(calls=[], replay=None),
            Event=self._event,
        )
        self.mps = SimpleNamespace(Event=self._event, synchronize=lambda: None)
        self.version = SimpleNamespace(hip=None)

    def kernel(self, operand_bytes):
        """A call on operands of its own."""
        self.made += 1
        key = self.made

        def run():
            self.now_s += HIT_S if key in self._cached else MISS_S
            self._cached[key] = operand_bytes
            self._cached.move_to_end(key)
            while sum(self._cached.values()) > L2_BYTES:
                self._cached.popitem(last=False)

        def call():
            if self._capturing is None:
                self.ran_eagerly += 1
                run()
            else:
                self._capturing.append(run)

        return call

    @contextmanager
    def _capture(self, graph):
        self._capturing = []
        yield
        calls, self._capturing = self._capturing, None
        graph.replay = lambda: [run() for run in calls]

    def _event(self, enable_timing):
        assert enable_timing
        event = SimpleNamespace(at_s=None)
        event.record = lambda: setattr(event, "at_s", self.now_s)
        event.elapsed_time = lambda end: 1e3 * (end.at_s - event.at_s)
        return event

    def inference_mode(self):
        return nullcontext()

    def ones(self, *sizes, device):
        return None

    def mm(self, a, b):
        return None

    def set_num_threads(self, count):
        pass

    def get_num_threads(self):
        return 1

    def Generator(self, device):
        return SimpleNamespace(manual_seed=lambda seed: None)


@pytest.mark.parametrize("operand_bytes", [L2_BYTES // 100, L2_BYTES // 3, 2 * L2_BYTES])
def test_cold_operands_have_left_the_cache_and_warm_ones_have_not(operand_bytes):
    gpu = Gpu()
    cold = CudaClock(gpu).time(lambda: gpu.kernel(operand_bytes), operand_bytes, False, 0.0)
    assert cold.median_s == pytest.approx(MISS_S)
    assert cold.std_s == pytest.approx(0.0, abs=1e-12)
    assert cold.repeats == MIN_REPEATS
    assert gpu.made * operand_bytes > 3 * L2_BYTES
    gpu = Gpu()
    warm = CudaClock(gpu).time(lambda: gpu.kernel(operand_bytes), operand_bytes, True, 0.0)
    assert gpu.made == 1
    assert warm.median_s == pytest.approx(HIT_S if operand_bytes <= L2_BYTES else MISS_S)
    assert gpu.ran_eagerly == 1, "libraries choose their kernels before the graph is captured"


def test_operands_too_small_to_be_cold_are_not_timed():
    gpu = Gpu()
    assert CudaClock(gpu).time(lambda: gpu.kernel(1024), 1024, False, 0.0) is None
    assert gpu.made == 0


def test_metal_queues_kernels_where_there_are_no_graphs(monkeypatch):
    monkeypatch.setattr(clocks, "SYSTEM_CACHE_BYTES", L2_BYTES)
    gpu = Gpu()
    size = L2_BYTES // 3
    cold = MetalClock(gpu).time(lambda: gpu.kernel(size), size, False, 0.0)
    assert cold.median_s == pytest.approx(MISS_S)
    assert gpu.made * size > 3 * L2_BYTES
    assert MetalClock(gpu).time(lambda: gpu.kernel(size), size, True, 0.0).median_s == pytest.approx(HIT_S)
    assert gpu.ran_eagerly > MIN_REPEATS


def test_cold_operands_leave_amds_infinity_cache_too(monkeypatch):
    monkeypatch.setattr(clocks, "INFINITY_CACHE_BYTES", 4 * L2_BYTES)
    gpu = Gpu()
    gpu.version.hip = "6.4"
    CudaClock(gpu).time(lambda: gpu.kernel(L2_BYTES), L2_BYTES, False, 0.0)
    assert gpu.made > 3 * 4


@pytest.mark.parametrize(("device", "named"), [("cuda", "cuda"), ("rocm", "cuda"), ("mps", "mps")])
def test_a_measurement_on_a_gpu_says_what_it_left_out(monkeypatch, device, named):
    gpu = Gpu()
    for size in ("INFINITY_CACHE_BYTES", "SYSTEM_CACHE_BYTES"):
        monkeypatch.setattr(clocks, size, L2_BYTES)
    gpu.version.hip = "6.4" if device == "rocm" else None

    def make(torch, shape, device, generator):
        assert device == named
        if shape.sizes.get("m") == 4096:
            raise gpu.OutOfMemoryError
        return gpu.kernel(shape.operand_bytes)

    monkeypatch.setattr(record, "load_torch", lambda: gpu)
    monkeypatch.setattr(record, "check_device", lambda torch, device: None)
    monkeypatch.setattr(record, "device_name", lambda torch, device: "A GPU")
    monkeypatch.setattr(record, "make_call", make)
    monkeypatch.setitem(record.BUDGET_S, True, 0.0)
    shapes = [KernelShape("gemm", "gemm", "bf16", False, {"m": m, "n": 1024, "k": 1024}) for m in (16, 4096)]
    shapes.append(KernelShape("memcpy", "elementwise", "bf16", False, {"bytes_moved": 1024}))
    result = measure(shapes, device, quick=True)
    assert [shape for shape, _ in result.rows] == shapes[:1]
    assert result.skipped == {"gemm: not enough memory": 1, "memcpy: too small for cold operands": 1}
    assert result.complete
    table = result.table()
    assert table.measured_s.tolist() == [MISS_S]
    assert table.word("device").names == ("A GPU",)
    assert "thread" not in table.word("source").names[0]


@pytest.mark.parametrize("device", ["cuda", "rocm", "mps"])
def test_a_machine_without_a_gpu_is_reported_so(device):
    gpu = Gpu()
    gpu.cuda.is_available = lambda: False
    gpu.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
    with pytest.raises(ForerunError, match=f"--device {device}"):
        check_device(gpu, device)
    check_device(gpu, "cpu")


def test_cards_of_amd_are_not_taken_for_nvidias():
    gpu = Gpu()
    gpu.cuda.is_available = lambda: True
    gpu.version.hip = "6.4"
    check_device(gpu, "rocm")
    with pytest.raises(ForerunError, match="--device cuda: torch sees no CUDA device"):
        check_device(gpu, "cuda")
