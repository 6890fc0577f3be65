from simulator.running.plugin_checks import check_admission as check_admission
from simulator.running.plugin_checks import check_eviction as check_eviction
from simulator.running.plugin_checks import check_reader as check_reader
from simulator.running.plugin_checks import check_router as check_router
from simulator.running.plugin_checks import check_scheduler as check_scheduler
from simulator.speculation.policies import check_policy as check_policy
from simulator.timing.drafter_check import check_drafter as check_drafter
