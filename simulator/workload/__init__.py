"""What arrives: request lengths and arrival times, synthetic or from a trace."""

from simulator.workload.config import ArrivalsConfig, LengthConfig, SessionsConfig, WorkloadConfig
from simulator.workload.generate import RequestStream, generate_requests

__all__ = ["ArrivalsConfig", "LengthConfig", "RequestStream", "SessionsConfig", "WorkloadConfig", "generate_requests"]
