from simulator.workload.config import ArrivalsConfig as ArrivalsConfig
from simulator.workload.config import LengthConfig as LengthConfig
from simulator.workload.config import SessionsConfig as SessionsConfig
from simulator.workload.config import WorkloadConfig as WorkloadConfig
from simulator.workload.generate import RequestStream as RequestStream
from simulator.workload.generate import generate_requests as generate_requests
