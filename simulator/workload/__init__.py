"""What arrives: request lengths and arrival times, synthetic or from a trace."""

from simulator.workload.config import ArrivalsConfig, LengthConfig, WorkloadConfig
from simulator.workload.generate import RequestStream, generate_requests

__all__ = ["ArrivalsConfig", "LengthConfig", "RequestStream", "WorkloadConfig", "generate_requests"]
