from simulator.workload.generate import RequestStream as RequestStream
from simulator.workload.generate import generate_requests as generate_requests
from simulator.workload.generate import usual_tokens as usual_tokens
from simulator.workload.workload_config import ArrivalsConfig as ArrivalsConfig
from simulator.workload.workload_config import LengthConfig as LengthConfig
from simulator.workload.workload_config import SessionsConfig as SessionsConfig
from simulator.workload.workload_config import WorkloadConfig as WorkloadConfig
