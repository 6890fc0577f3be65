"""The limits under which one replica, or each of its attention groups, schedules: tokens, sequences and KV blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hwprofiles.formulas import Num


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of one replica: work per step, KV blocks, and delays of its API server."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    watermark_blocks: int
    """Blocks that admission leaves free."""
    max_model_len: int | None
    """Longest prompt plus output, tokens; None is no limit."""
    chunked_prefill: bool
    query_len: int = 1
    """Tokens of a decoding sequence in one step: 1, or K+1 in a verify step."""
    lookahead_tokens: int = 0
    """KV slots beyond the step's own tokens, for the drafts of the next step."""
    draft_slots: int = 0
    """Extra tokens of ``max_num_batched_tokens`` that each sequence of a step takes for the drafter."""
    api_server_s: float = 0.0
    """Seconds of network and inter-process messages between sending a request and its arrival at the scheduler."""
    api_server_work_s: float = 0.0
    """Seconds that the API server works on one request; it processes requests one after another."""
    tokenisation_per_token_s: float = 0.0
    """Seconds per prompt token that the API server adds to that work: tokenisation."""
    streaming_s: float = 0.0
    """Seconds that the API server works on one request's tokens of one step, in the same queue as requests."""
    groups: int = 1
    """Attention groups that step together; the limits on sequences, tokens and blocks apply to each."""
    round_robin: bool = False
    """True if requests go to the groups round robin, rather than to the group with the fewest requests."""
    dp_wait_limit_steps: int = 0
    """Maximum steps that the prompts of a group wait until every group has prompts."""
    batch_wait_steps: int = 0
    """Maximum steps that prompts wait until the batch has ``batch_wait_tokens`` tokens."""
    batch_wait_tokens: float = 0.0
    reserve_full_isl: bool = False
    """True if a request joins the batch only when free blocks hold its whole prompt."""
    page_tokens: int = 0
    """Tokens for which whole blocks are allotted together, and after which a recurrent state is kept for the prefix
    cache; 0 = one block's."""
    window_blocks: float = 0.0
    """Blocks that each cached block adds to the prefix cache when a sliding window has passed it; 0 = none."""
    window_room: float = 0.0
    """Memory for windows of running requests, as a share of that of the blocks."""
    scheduler_steps: int = 1
    """Decode steps of a batch that run before requests are admitted again."""
    schedules_ahead: bool = False
    """True if a step is scheduled while the one before it still runs: an arrival then waits one step longer."""
    recv_interval: int = 1
    """Decode steps from one look at the queue of new requests to the next. A step with prompts ends the interval."""

    @property
    def together(self) -> EngineLimits:
        """Limits of all attention groups together."""
        return replace(
            self,
            max_num_seqs=self.groups * self.max_num_seqs,
            max_num_batched_tokens=self.groups * self.max_num_batched_tokens,
            num_blocks=self.groups * self.num_blocks,
            watermark_blocks=self.groups * self.watermark_blocks,
            groups=1,
        )

    @property
    def decode_tokens(self) -> int:
        """Tokens of the budget that a decoding sequence takes in one step."""
        return self.query_len + self.draft_slots

    def api_server_work(self, input_tokens: Num) -> Num:
        """Seconds that the API server works on a request, by its prompt tokens (a number or an array)."""
        return self.api_server_work_s + self.tokenisation_per_token_s * input_tokens

    def api_server_busy_s(self, requests: Num, input_tokens: Num, chunks: Num) -> Num:
        """Seconds of the API server's work on requests, their prompt tokens and streamed chunks, all together."""
        return (
            self.api_server_work_s * requests + self.tokenisation_per_token_s * input_tokens + self.streaming_s * chunks
        )

    @property
    def instant_api_server(self) -> bool:
        """True if the scheduler sees a request the moment it is sent."""
        return not (self.api_server_s or self.api_server_work_s or self.tokenisation_per_token_s or self.streaming_s)

    def blocks(self, tokens: int) -> int:
        """KV blocks that ``tokens`` tokens of one sequence occupy."""
        page = self.page_tokens or self.block_size
        return -(-tokens // page) * (page // self.block_size)

    def decode_blocks(self, computed_tokens: int) -> int:
        """Blocks that a sequence with ``computed_tokens`` in the cache holds during its next decode step."""
        return self.blocks(computed_tokens + self.query_len + self.lookahead_tokens)

    def refusal(self, input_tokens: int, output_tokens: int) -> str | None:
        """Reason why the replica can never serve a request, or None if it can."""
        total = input_tokens + output_tokens
        if self.max_model_len is not None and total > self.max_model_len:
            context = f"{self.max_model_len} tokens (max_model_len)"
            return f"longer than the context of {context}: shorten them or raise engine.max_model_len"
        if not self.chunked_prefill and total + self.draft_slots > self.max_num_batched_tokens:
            budget = f"max_num_batched_tokens {self.max_num_batched_tokens}"
            return f"longer than {budget} without chunked prefill: raise it or enable chunked prefill"
        most = max(self.blocks(total), self.decode_blocks(total - 2) if output_tokens > 1 else 0)
        if most > self.num_blocks - self.watermark_blocks:
            has = f"the replica has {self.num_blocks - self.watermark_blocks}"
            return f"needs {most} KV blocks, {has}: more chips or a narrower kv_cache_dtype hold more"
        return None
