"""A scenario small enough to run hundreds of times, as plain data."""


def tiny_data(**workload):
    return {
        "model": "llama-3.2-1b",
        "hardware": {"chip": "h100-sxm"},
        "engine": {"max_num_seqs": 16},
        "workload": {
            "arrivals": {"process": "poisson", "request_rate": 20.0},
            "input_tokens": {"distribution": "lognormal", "mean": 200, "cv": 0.8, "max": 1000},
            "output_tokens": {"distribution": "lognormal", "mean": 30, "cv": 0.8, "max": 100},
            "num_requests": 12,
            **workload,
        },
    }
