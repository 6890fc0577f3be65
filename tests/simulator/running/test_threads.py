"""Caches that the threads of a dashboard share."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from forerun.recent import RecentResults
from hwprofiles import KernelLibrary, load_chip
from simulator.running.assumptions import Assumptions
from simulator.timing.kernels import _timed
from simulator.timing.step import DecodeTable
from simulator.workload import WorkloadConfig, generate_requests

THREADS = 8


@pytest.fixture(autouse=True)
def frequent_switches():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work, count):
    """What ``work`` of 0, 1, ... returns in threads that run at the same time."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(count)))


def test_results_are_shared_and_bounded():
    results = RecentResults(3)
    for number in range(5):
        results.get(number, lambda number=number: number)
    assert [results.get(number, lambda: "made again") for number in (2, 3, 4)] == [2, 3, 4]
    assert results.get(0, lambda: "made again") == "made again"


def test_threads_that_make_one_result_get_the_same():
    results = RecentResults(4)
    results_by_thread = at_once(lambda n: (n % 6, results.get(n % 6, lambda: [n % 6])), 5000)
    assert all(value == [key] for key, value in results_by_thread)


def test_traces_read_by_threads(tmp_path):
    for count in (1, 2, 3):
        rows = "".join(f"{n},100,{10 + count}\n" for n in range(count))
        (tmp_path / f"{count}.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")

    def read(number):
        count = 1 + number % 3
        workload = WorkloadConfig.model_validate({"trace": str(tmp_path / f"{count}.csv")})
        return generate_requests(workload, 0).output_tokens.tolist() == [10 + count] * count

    assert all(at_once(read, 300))


def priced(library, number):
    return _timed(library, "gemm", {"m": np.array([1 + number % 400]), "n": 64, "k": 64, "dtype": "bf16"})


@pytest.mark.parametrize(
    "price", [priced, lambda library, number: library.gemm(1 + number % 3, 64, 64, "bf16")], ids=["arrays", "gemm"]
)
def test_kernels_priced_by_threads_outlive_the_cache(monkeypatch, price):
    monkeypatch.setattr("hwprofiles.library._CACHE_ENTRIES", 2)
    library = KernelLibrary(load_chip("h100-sxm"), "vllm")
    assert all(np.all(time.seconds > 0) for time in at_once(lambda number: price(library, number), 2000))


def test_kernel_libraries_are_shared_by_threads():
    chip = load_chip("h100-sxm")
    for factor in (2.0, 3.0):
        made = Assumptions({"h100-sxm.kernels.launch_s": factor})
        assert len({id(library) for library in at_once(lambda _, made=made: made.kernels(chip, "vllm"), 200)}) == 1


def test_a_row_of_another_thread_does_not_take_values_from_a_decode_table():
    """Another thread may store a row of the same batch without them at any time; here it always does."""

    class Emptying(dict):
        def __setitem__(self, key, row):
            super().__setitem__(key, (row[0], np.full(2, np.nan)))

    table = DecodeTable(lambda seqs, query_len, keys: keys * 1e-9)
    table._rows = Emptying()
    assert table(4, 1, 100_000) == pytest.approx(1e-4)
    assert table(4, 1, np.array([100_000, 200_000])) == pytest.approx([1e-4, 2e-4])
