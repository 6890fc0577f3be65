"""One replica's engine, step by step: queue, batch, KV blocks, preemption, prompts in chunks, drafts, tokens.

The rules are written once, as one reads them in a serving engine's scheduler. Cython compiles all parts together as
``simulator.serving._engine``; ``simulator.serving.compiled`` lists them and chooses between the two. Interpreted they
give the same results, bit for bit: the oracle of the compiled engine.

The life of a request: ``Engine.collect`` puts it in the queue, ``Scheduler.plan`` gives it blocks and tokens of a step,
``Prices.seconds`` says how long the step lasts, ``Engine.commit`` hands out its tokens and lets it go at the last.
"""

from simulator.serving.engine.acceptance import Budget as Budget
from simulator.serving.engine.acceptance import Draws as Draws
from simulator.serving.engine.acceptance import Thresholds as Thresholds
from simulator.serving.engine.caching.eviction import Belady as Belady
from simulator.serving.engine.caching.eviction import Eviction as Eviction
from simulator.serving.engine.caching.eviction import EvictionOrder as EvictionOrder
from simulator.serving.engine.caching.eviction import LargestFirst as LargestFirst
from simulator.serving.engine.caching.eviction import PinUntilReturn as PinUntilReturn
from simulator.serving.engine.caching.eviction import SessionAware as SessionAware
from simulator.serving.engine.caching.eviction import SmallestFirst as SmallestFirst
from simulator.serving.engine.caching.eviction import TimeToLive as TimeToLive
from simulator.serving.engine.caching.prefix_cache import NoPrefixCache as NoPrefixCache
from simulator.serving.engine.caching.prefix_cache import PrefixCache as PrefixCache
from simulator.serving.engine.caching.stores import Copies as Copies
from simulator.serving.engine.caching.stores import Lane as Lane
from simulator.serving.engine.caching.stores import Store as Store
from simulator.serving.engine.caching.stores import Tier as Tier
from simulator.serving.engine.common import EXACT_S as EXACT_S
from simulator.serving.engine.common import SOURCE as SOURCE
from simulator.serving.engine.common import cython as cython
from simulator.serving.engine.drafting import Drafting as Drafting
from simulator.serving.engine.hash_blocks import HashBlocks as HashBlocks
from simulator.serving.engine.hash_blocks import Prompts as Prompts
from simulator.serving.engine.lockstep import Lockstep as Lockstep
from simulator.serving.engine.loop import Engine as Engine
from simulator.serving.engine.pipeline import PipelinedEngine as PipelinedEngine
from simulator.serving.engine.pipeline import StagedBatch as StagedBatch
from simulator.serving.engine.policies import EntropyGate as EntropyGate
from simulator.serving.engine.policies import Forerun as Forerun
from simulator.serving.engine.policies import Gate as Gate
from simulator.serving.engine.policies import Goodput as Goodput
from simulator.serving.engine.policies import MovingAverage as MovingAverage
from simulator.serving.engine.policies import MovingAverageSlot as MovingAverageSlot
from simulator.serving.engine.policies import PositionRates as PositionRates
from simulator.serving.engine.prefix_index import HolderIndex as HolderIndex
from simulator.serving.engine.prefix_index import SentPrefixes as SentPrefixes
from simulator.serving.engine.prices import Prices as Prices
from simulator.serving.engine.prices import Program as Program
from simulator.serving.engine.prices import RecordedPrices as RecordedPrices
from simulator.serving.engine.rows import Arrivals as Arrivals
from simulator.serving.engine.rows import Output as Output
from simulator.serving.engine.schedulers.grouped import GroupedScheduler as GroupedScheduler
from simulator.serving.engine.schedulers.pipelined import PipelinedScheduler as PipelinedScheduler
from simulator.serving.engine.schedulers.prefill_first import PrefillFirstScheduler as PrefillFirstScheduler
from simulator.serving.engine.schedulers.priority import PriorityScheduler as PriorityScheduler
from simulator.serving.engine.schedulers.scheduler import Scheduler as Scheduler
from simulator.serving.engine.schedulers.sglang import SglangScheduler as SglangScheduler
from simulator.serving.engine.schedulers.static import StaticScheduler as StaticScheduler
from simulator.serving.engine.schedulers.unified import NoEvictScheduler as NoEvictScheduler
from simulator.serving.engine.schedulers.unified import UnifiedScheduler as UnifiedScheduler
from simulator.serving.engine.sequence import Sequence as Sequence
from simulator.serving.engine.sequence import StepPlan as StepPlan
from simulator.serving.engine.steady import Steady as Steady
from simulator.serving.engine.work import Work as Work
