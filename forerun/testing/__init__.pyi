from simulator.speculation.policies import check_policy as check_policy
from simulator.timing.drafter_check import check_drafter as check_drafter
