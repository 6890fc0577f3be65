"""Parts of scenarios as plain data, each in one line."""

from simulator.running.scenario import scenario_from


def uniform(low, high):
    return {"distribution": "uniform", "min": low, "max": high}


def lognormal(mean, cv, most):
    return {"distribution": "lognormal", "mean": mean, "cv": cv, "max": most}


def poisson(rate, requests, prompts, answers, **more):
    """A workload of Poisson arrivals."""
    return _workload({"process": "poisson", "request_rate": rate}, requests, prompts, answers, more)


def constant(rate, requests, prompts, answers, **more):
    """A workload of arrivals at equal distances."""
    return _workload({"process": "constant", "request_rate": rate}, requests, prompts, answers, more)


def closed_loop(concurrency, requests, prompts, answers, **more):
    """A workload of so many clients that each wait for their answer."""
    return _workload({"process": "closed-loop", "max_concurrency": concurrency}, requests, prompts, answers, more)


def burst(requests, prompts, answers, **more):
    """A workload of requests that arrive at once."""
    return _workload({"process": "burst"}, requests, prompts, answers, more)


def _workload(arrivals, requests, prompts, answers, more):
    lengths = {"input_tokens": prompts, "output_tokens": answers}
    return {"arrivals": arrivals, **lengths, "num_requests": requests, **more}


def drafts(method="eagle3", tokens=3, alpha=0.7, **more):
    """A ``speculation`` block; ``more`` may hold another ``acceptance``."""
    return {"method": method, "num_speculative_tokens": tokens, "acceptance": {"alpha": alpha}} | more


def h100_data(workload, **sections):
    """Llama 3.1 8B on one H100, with other sections or some of these replaced."""
    return {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}, "workload": workload} | sections


def on_h100(workload, **sections):
    """The scenario of ``h100_data``."""
    return scenario_from(h100_data(workload, **sections), "test")
