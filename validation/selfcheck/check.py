"""The whole chain on this machine: measure kernels, calibrate, simulate, and hold it against a real run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hwprofiles import Chip, KernelLibrary
from simulator.replay.calibrate import calibrate, profile_text
from simulator.replay.kernels import ReplayReport, replay_kernels
from simulator.replay.measure.machine import MachineLimits, last_cache_bytes
from simulator.replay.split import Split
from simulator.running.metrics.files import write_atomically, write_text_atomically
from traces.kernels import KernelTable, write_kernels
from validation.selfcheck.calibration import Acceptance, HostCosts, counted_acceptance, expected_acceptance, host_costs
from validation.selfcheck.engine import EngineRun, ReferenceEngine
from validation.selfcheck.kernels import LIBRARY, KernelSamples, NearbyModel, enlarged
from validation.selfcheck.machine import CLOCKS, clock_for, fast_dtype, machine_chip, machine_limits
from validation.selfcheck.model import Observer, PackedBatch, ReferenceModel, Segment
from validation.selfcheck.predict import COMPARED, equal_batches, predicted, scenario, write_scenario, write_trace
from validation.selfcheck.scheduler import Request
from validation.selfcheck.sizes import CheckLoad, Sizes

METHOD = "kernels inside running models of nearby sizes, medians; passes over memory and matrix products"
REFERENCE_STEPS = 5


@dataclass
class Selfcheck:
    """One check, executed by ``run``.

    Args:
        sizes: sizes of models and runs.
        folder: where trace, profile and scenarios are kept.
        threads: CPU threads.
        seed: seed of weights, requests, sampling and every fit.
        dtype: bf16, fp32, or None for the faster one here.
        progress: called with (phases done, phases, what is done now).
    """

    sizes: Sizes
    folder: Path
    threads: int = 1
    seed: int = 0
    dtype: str | None = None
    progress: Callable[[int, int, str], None] | None = None
    reference_s: list[float] = field(default_factory=list)
    """The same step of the target timed between phases: how much the machine itself drifts."""
    _equal: list[tuple[int, int]] = field(default_factory=list)
    _done: int = 0
    _round: str = ""

    def run(self) -> dict[str, Any]:
        """The document of ``forerun selfcheck``."""
        sizes = self.sizes
        torch.set_num_threads(self.threads)
        self._clock_name = clock_for(self.threads)
        self._clock = CLOCKS[self._clock_name]
        self._dtype = self.dtype or fast_dtype(self._clock)
        self._doing("limits of this machine")
        limits = machine_limits(self._clock)
        self._doing("building models")
        self._build()
        samples = KernelSamples()
        runs: dict[str, list[EngineRun]] = {"none": [], "draft-model": []}
        calibration: dict[str, list[EngineRun]] = {"none": [], "draft-model": []}
        began = time.monotonic()
        for number in range(sizes.rounds):
            if number and (time.monotonic() - began) * (number + 1) > sizes.enough_s * number:
                break
            self._round = f"round {number + 1} of at most {sizes.rounds}"
            self._reference_step()
            self._measure(samples)
            for method, served in calibration.items():
                self._doing(f"{self._round}: host costs and acceptance")
                served.append(self._serve(method, sizes.calibration_load, 1000 + number, Observer(self._clock)))
                self._step()
            self._reference_step()
            for method, served in runs.items():
                self._doing(f"{self._round}: runs that are predicted")
                served.append(self._serve(method, sizes.load, number, None))
                self._step()
            self._reference_step()
        own = KernelSamples()
        for calls in (calls for run in calibration["none"] for calls in run.calls):
            own.add(calls, sizes.target.layers)
        steps = {method: [step for run in served for step in run.steps] for method, served in calibration.items()}
        host = host_costs(steps["none"], steps["draft-model"])
        acceptance = expected_acceptance(calibration["draft-model"])
        provenance = f"forerun selfcheck, torch {torch.__version__}, {date.today().isoformat()}"
        table = samples.table(self._dtype, provenance)
        self._doing("fitting kernels, simulating")
        chip = self._calibrate(samples, table, limits, host)
        unseen = replay_kernels(own.table(self._dtype, provenance), KernelLibrary(chip, LIBRARY))
        self._step()
        comparisons = self._compare(runs, acceptance, host)
        self._step()
        return self._document(comparisons, unseen, table, runs, acceptance, host, limits)

    def _build(self) -> None:
        """The target and its first layers, with room for the longest request and its drafts; the models around it."""
        sizes = self.sizes
        loads = (sizes.load, sizes.calibration_load)
        slots = max(load.concurrency for load in loads)
        longest = max(load.longest for load in loads) + 2 * sizes.num_speculative_tokens + 1
        self._target = ReferenceModel(sizes.target, self.seed, slots, longest, self._dtype)
        draft = sizes.target.first(sizes.draft_layers)
        self._draft = ReferenceModel(draft, self.seed, slots, longest, self._dtype)
        cache = last_cache_bytes() if sizes.fill_cache else 0
        grown = [enlarged(nearby, self._dtype, cache) for nearby in sizes.nearby]
        self._nearby = [NearbyModel(sizes, size, self._dtype, self.seed) for size in grown]

    def _measure(self, samples: KernelSamples) -> None:
        for nearby in self._nearby:
            self._doing(f"{self._round}: kernels")
            nearby.measure(self.sizes.repeats, self._clock, samples)
            self._step()

    def _serve(self, method: str, load: CheckLoad, stream: int, observer: Observer | None) -> EngineRun:
        """One run of the real engine; ``stream`` names its requests."""
        drafting = method != "none"
        engine = ReferenceEngine(
            self._target,
            load.concurrency,
            load.max_num_batched_tokens,
            self._clock,
            CLOCKS["wall"],
            self._draft if drafting else None,
            self.sizes.num_speculative_tokens if drafting else 0,
            self.seed * 10_007 + stream,
            observer,
        )
        return engine.run(self._requests(load, stream), load.concurrency)

    def _requests(self, load: CheckLoad, stream: int) -> list[Request]:
        generator = np.random.default_rng([self.seed, stream])
        prompts = generator.integers(load.input_tokens[0], load.input_tokens[1] + 1, load.requests)
        answers = generator.integers(load.output_tokens[0], load.output_tokens[1] + 1, load.requests)
        vocabulary = self.sizes.target.vocabulary
        return [
            Request(index, generator.integers(0, vocabulary, int(prompt)).tolist(), int(answer))
            for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        ]

    def _reference_step(self) -> None:
        """A decode step of the target that never changes."""
        slots = self._target.slots
        segments = tuple(Segment(slot, 16, 1) for slot in range(slots))
        batch = PackedBatch([1] * slots, segments, (), range(slots))
        self._target.observer = None
        times = []
        with torch.inference_mode():
            for _ in range(REFERENCE_STEPS):
                start = self._clock()
                self._target.probabilities(batch)
                times.append(self._clock() - start)
        self.reference_s.append(float(np.median(times)))

    def _calibrate(self, samples: KernelSamples, table: KernelTable, limits: MachineLimits, host: HostCosts) -> Chip:
        """Fit the kernels, and write trace and profile.

        No row is held out and no fold fitted: kernels of the target, of which the fit saw none, judge it.
        """

        def write(staged: Path) -> None:
            write_kernels(table, staged, False)

        write_atomically(self.folder / "kernels.csv", write)
        chip = machine_chip(limits, METHOD, self.folder)
        every = Split(train=1.0)
        fitted = calibrate(table, chip, LIBRARY, every, False, self.seed, "forerun selfcheck", judge=False)
        measured = chip.host.model_copy(update={"step_s": host.step_s, "sequence_s": host.sequence_s})
        whole: Chip = samples.with_passes(fitted.chip).model_copy(update={"host": measured})
        write_text_atomically(self.folder / "profile.yaml", profile_text(replace(fitted, chip=whole), "profile.yaml"))
        return whole

    def _compare(
        self, runs: dict[str, list[EngineRun]], acceptance: Acceptance, host: HostCosts
    ) -> list[dict[str, Any]]:
        """Predicted beside measured, for each method; every round serves requests of its own."""
        comparisons = []
        for method, measured_runs in runs.items():
            drafting = method != "none"
            predictions = []
            for number, run in enumerate(measured_runs):
                lengths = [(len(request.prompt), request.output_tokens) for request in run.requests]
                trace = write_trace(lengths, self.folder / f"requests-{number}.csv")
                described = scenario(
                    self.sizes,
                    self.sizes.load,
                    self._dtype,
                    self.folder / "profile.yaml",
                    trace,
                    acceptance.per_position if drafting else None,
                    host.draft_step_s,
                )
                write_scenario(described, self.folder / f"scenario-{method}-{number}.json")
                figures, self._basis = predicted(described, self.seed)
                predictions.append(figures)
                if not drafting:
                    self._equal.append(equal_batches(described, run))
            means = {name: float(np.mean([one[name] for one in predictions])) for name in predictions[0]}
            comparisons.append({"speculation": method, "figures": self._figures(means, measured_runs, acceptance)})
        return comparisons

    def _figures(
        self, means: dict[str, float], runs: list[EngineRun], acceptance: Acceptance
    ) -> dict[str, dict[str, float | None]]:
        measured = [_measured(run) for run in runs]
        figures: dict[str, dict[str, float | None]] = {}
        for name in COMPARED:
            values = [one[name] for one in measured]
            here = float(np.mean(values))
            figures[name] = {
                "predicted": means[name],
                "measured": here,
                "error_percent": 100.0 * (means[name] / here - 1.0),
            }
        if "spec_decode_acceptance_length" in means:
            counted = counted_acceptance(runs)
            error = float(np.hypot(counted.standard_error, acceptance.standard_error))
            figures["spec_decode_acceptance_length"] = {
                "predicted": acceptance.length,
                "simulated": means["spec_decode_acceptance_length"],
                "measured": counted.length,
                "error_percent": 100.0 * (acceptance.length / counted.length - 1.0),
                "standard_error": error,
                "difference_in_standard_errors": abs(acceptance.length - counted.length) / error if error else None,
            }
        return figures

    def _document(
        self,
        comparisons: list[dict[str, Any]],
        unseen: ReplayReport,
        table: KernelTable,
        runs: dict[str, list[EngineRun]],
        acceptance: Acceptance,
        host: HostCosts,
        limits: MachineLimits,
    ) -> dict[str, Any]:
        from forerun.version import VERSION

        sizes = self.sizes
        steps = [step for served in runs.values() for run in served for step in run.steps]
        reference = np.array(self.reference_s)
        return {
            "comparisons": comparisons,
            "machine": {
                "device": limits.device,
                "torch": torch.__version__,
                "threads": self.threads,
                "clock": self._clock_name,
                "dtype": self._dtype,
                "drift_percent": 100.0 * float(reference.max() / reference.min() - 1.0),
                "reference_step_s": self.reference_s,
                "wall_over_clock": sum(step.wall_s for step in steps) / sum(step.seconds for step in steps),
                "limits": limits._asdict(),
            },
            "batches": {"equal": sum(same for same, _ in self._equal), "steps": sum(all_ for _, all_ in self._equal)},
            "host": host._asdict(),
            "acceptance": acceptance._asdict(),
            "calibration": {
                "rows": len(table),
                "families": [
                    {"family": one.op, "rows": one.n, "held_out_mape": one.mape}
                    for one in unseen.groups
                    if one.regime == "all"
                ],
            },
            "model": sizes.target.described(),
            "draft": {
                "layers": sizes.draft_layers,
                "num_speculative_tokens": sizes.num_speculative_tokens,
            },
            "rounds": len(runs["none"]),
            "requests": len(runs["none"]) * sizes.load.requests,
            "steps": len(steps),
            "basis": self._basis,
            "seed": self.seed,
            "folder": str(self.folder),
            "version": VERSION,
        }

    def _step(self) -> None:
        self._done += 1

    def _doing(self, words: str) -> None:
        if self.progress is not None:
            self.progress(self._done, self.sizes.rounds * (len(self.sizes.nearby) + 4) + 2, words)


def _measured(run: EngineRun) -> dict[str, float]:
    """The figures of a real run, in the definitions of ``simulator.running.metrics.summary``."""
    tpot, ttft, finished = [], [], 0.0
    for request in run.requests:
        assert request.first_token_s is not None
        assert request.finished_s is not None
        ttft.append(request.first_token_s - request.arrival_s)
        tpot.append((request.finished_s - request.first_token_s) / (request.output_tokens - 1))
        finished = max(finished, request.finished_s)
    tokens = sum(request.output_tokens for request in run.requests)
    return {
        "mean_tpot_ms": 1e3 * float(np.mean(tpot)),
        "mean_ttft_ms": 1e3 * float(np.mean(ttft)),
        "output_throughput": tokens / finished,
    }
