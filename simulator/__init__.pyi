from forerun.errors import ForerunError as ForerunError
from forerun.errors import InvariantError as InvariantError
from forerun.result import Result as Result
from forerun.tables import Table as Table
from simulator.replay.calibrate import calibrate as calibrate
from simulator.replay.kernels import replay_kernels as replay_kernels
from simulator.replay.requests import replay_requests as replay_requests
from simulator.running.run import RunResult as RunResult
from simulator.running.run import simulate as simulate
from simulator.running.scenario import Scenario as Scenario
from simulator.running.scenario import load_scenario as load_scenario
from simulator.studies.public import *
from simulator.timing.prediction import predict as predict
