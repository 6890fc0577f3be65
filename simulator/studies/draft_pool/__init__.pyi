from simulator.studies.draft_pool.pool import run_pool as run_pool
