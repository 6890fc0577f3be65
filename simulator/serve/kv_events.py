"""KV events of the replicas over ZMQ, as vLLM publishes them: blocks stored, removed and cleared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple
from zlib import crc32

from forerun.errors import ForerunError, install_hint
from simulator.serve.live import Change
from simulator.serve.tokens import Token

Event = list[object]
"""Event as vLLM's msgspec structs are encoded: its tag, then its fields in order."""


class _Block(NamedTuple):
    """A hash block with what an event says about it."""

    parent: int | None
    token_ids: tuple[int, ...]


class KnownBlocks:
    """Tokens of the hash blocks that a request has or a replica holds.

    Args:
        block_tokens: tokens per block.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._blocks: dict[int, _Block] = {}
        self._uses: dict[int, int] = {}
        self._of_slot: dict[int, Sequence[int]] = {}
        self._held: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def begin(self, slot: int, hashes: Sequence[int], tokens: Sequence[Token]) -> None:
        """Learn the blocks of a request."""
        self._of_slot[slot] = hashes
        before: int | None = None
        for place, block in enumerate(hashes):
            self._uses[block] = self._uses.get(block, 0) + 1
            if block not in self._blocks:
                part = tokens[place * self._block_tokens : (place + 1) * self._block_tokens]
                self._blocks[block] = _Block(before, tuple(map(token_id, part)))
            before = block

    def end(self, slot: int) -> None:
        """Forget the blocks of a request that nobody else has."""
        for block in self._of_slot.pop(slot, ()):
            self._drop(block)

    def events(self, changes: Iterable[Change]) -> dict[int, list[Event]]:
        """Events of each replica for changes in the order in which they happened."""
        events: dict[int, list[Event]] = {}
        for change in changes:
            of_replica, held = events.setdefault(change.replica, []), self._held.setdefault(change.replica, set())
            if change.kind == "cleared" and held:
                of_replica.append(["AllBlocksCleared"])
                for block in held:
                    self._drop(block)
                held.clear()
            elif change.kind == "removed" and change.block in held:
                held.remove(change.block)
                self._join(of_replica, "BlockRemoved", change.block)
                self._drop(change.block)
            elif change.kind == "stored" and change.block in self._blocks and change.block not in held:
                held.add(change.block)
                self._uses[change.block] += 1
                self._join(of_replica, "BlockStored", change.block, self._blocks[change.block])
        return {replica: of_replica for replica, of_replica in events.items() if of_replica}

    def _join(self, events: list[Event], tag: Literal["BlockStored", "BlockRemoved"], block: int,
              stored: _Block | None = None) -> None:  # fmt: skip
        """Add a block to the last event where it continues that one, else in an event of its own."""
        last = events[-1] if events and events[-1][0] == tag else None
        hashes = last[1] if last is not None else None
        if last is not None and isinstance(hashes, list) and (stored is None or stored.parent == hashes[-1]):
            hashes.append(block)
            if stored is not None and isinstance(last[3], list):
                last[3] += stored.token_ids
        elif stored is None:
            events.append([tag, [block], "GPU"])
        else:
            ids = list(stored.token_ids)
            events.append([tag, [block], stored.parent, ids, self._block_tokens, None, "GPU", None])

    def _drop(self, block: int) -> None:
        left = self._uses.get(block, 0) - 1
        if left > 0:
            self._uses[block] = left
        elif left == 0:
            del self._uses[block], self._blocks[block]


def token_id(token: Token) -> int:
    """Number of a token: its own if the client sent numbers, else one made of its text."""
    return token if isinstance(token, int) else crc32(token.encode("utf-8", "surrogatepass")) >> 1


class KvEvents:
    """Publisher of KV events: replica n binds the endpoint's port plus n, with topic ``kv@replica-n@MODEL``.

    Args:
        endpoint: address that replica 0 binds, such as ``tcp://*:5557``.
        model: name of the model in topics.
        replicas: number of replicas.
        block_tokens: tokens per block.

    Raises:
        ForerunError: pyzmq or msgpack is missing, or an address cannot be bound.
    """

    def __init__(self, endpoint: str, model: str, replicas: int, block_tokens: int) -> None:
        try:
            import msgpack
            import zmq
        except ImportError as error:
            hint = install_hint("kv-events")
            raise ForerunError(f"--kv-events needs pyzmq and msgpack; {hint} ({error})") from None
        address, _, port = endpoint.rpartition(":")
        if not address.startswith("tcp://") or not port.isdecimal() or not 0 < int(port) <= 65536 - replicas:
            raise ForerunError(f"--kv-events {endpoint}: an address such as tcp://*:5557 is needed")
        self._pack = msgpack.packb
        self.known = KnownBlocks(block_tokens)
        self._topics = [f"kv@replica-{index}@{model}".encode() for index in range(replicas)]
        self._numbers = [0] * replicas
        self._sockets = []
        self._context = zmq.Context()
        for index in range(replicas):
            socket = self._context.socket(zmq.PUB)
            socket.setsockopt(zmq.LINGER, 0)
            self._sockets.append(socket)
            try:
                socket.bind(f"{address}:{int(port) + index}")
            except zmq.ZMQError as error:
                self.close()
                raise ForerunError(f"--kv-events {address}:{int(port) + index}: {error}") from None

    def publish(self, changes: list[Change], at_s: float) -> None:
        """Send the changes since the last call, and clear them.

        Args:
            changes: stored, removed and cleared blocks in order.
            at_s: wall-clock time of the batch, in seconds.
        """
        for replica, events in self.known.events(changes).items():
            payload = self._pack([at_s, events, None])
            number = self._numbers[replica].to_bytes(8, "big")
            self._sockets[replica].send_multipart([self._topics[replica], number, payload])
            self._numbers[replica] += 1
        changes.clear()

    def close(self) -> None:
        """Close the sockets."""
        for socket in self._sockets:
            socket.close()
        self._context.term()
