"""Dataclasses whose methods come later behave as those of the standard library."""

import copy
import dataclasses
import pickle
import threading
from dataclasses import field
from typing import Any, ClassVar

import pytest

from forerun.dataclass import _Later, dataclass


def declared(decorator):
    """A few classes, made by one of the two decorators."""

    @decorator(frozen=True, slots=True)
    class Base:
        """A base."""

        unit: ClassVar[str] = "s"
        first: int
        second: float = 2.0
        names: list[str] = field(default_factory=list, compare=False)

        @property
        def double(self) -> int:
            return 2 * self.first

    @decorator(frozen=True, slots=True, kw_only=True)
    class Derived(Base):
        third: Any = None
        sum: float = field(init=False, default=0.0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "sum", self.first + self.second)

    @decorator(slots=True)
    class Loose:
        value: int
        known: bool = field(init=False, default=False, repr=False)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Loose)

    @decorator(frozen=True, slots=True, eq=False)
    class Identity:
        value: int

    return Base, Derived, Loose, Identity


OURS, THEIRS = declared(dataclass), declared(dataclasses.dataclass)


def outcome(call):
    """What a call returns, as text without the memory address, or the error it raises."""
    try:
        return repr(call()).partition(" object at ")[0]
    except Exception as error:
        return type(error)


@pytest.mark.parametrize(
    "call",
    [
        lambda base, *_: base(1),
        lambda base, *_: base(1, second=3.0, names=["a"]),
        lambda base, *_: base(),
        lambda base, *_: base(1, 2, 3, 4),
        lambda base, *_: base(1) == base(1, 2.0, ["other"]),
        lambda base, *_: base(1) == base(2),
        lambda base, derived, *_: base(1) == derived(1),
        lambda base, *_: hash(base(1)) == hash(base(1, names=["b"])),
        lambda base, *_: base.unit,
        lambda base, *_: base(4).double,
        lambda base, *_: setattr(base(1), "first", 2),
        lambda base, *_: delattr(base(1), "first"),
        lambda base, *_: dataclasses.replace(base(1), second=5.0),
        lambda base, derived, *_: dataclasses.replace(derived(1), first=5),
        lambda base, derived, *_: dataclasses.asdict(derived(1, third=base(2))),
        lambda base, derived, *_: [(one.name, one.kw_only) for one in dataclasses.fields(derived)],
        lambda base, derived, *_: derived(1, 2.0, ["a"], third=3),
        lambda base, derived, *_: derived(1, 2.0, ["a"], 3),
        lambda base, derived, *_: (derived.__slots__, base.__slots__, derived.__match_args__, base.__doc__),
        lambda base, derived, *_: copy.deepcopy(derived(1, names=["a"])),
        lambda base, derived, loose, _: loose(1),
        lambda base, derived, loose, _: loose(1) == loose(2),
        lambda base, derived, loose, _: hash(loose(1)),
        lambda base, derived, loose, _: loose(1).known,
        lambda base, derived, loose, _: setattr(loose(1), "value", 2),
        lambda base, derived, loose, _: setattr(loose(1), "other", 2),
        lambda base, derived, loose, identity: identity(1) == identity(1),
        lambda base, derived, loose, identity: isinstance(hash(identity(1)), int),
        lambda base, derived, loose, identity: dataclasses.is_dataclass(identity),
    ],
)
def test_both_do_the_same(call):
    assert outcome(lambda: call(*OURS)) == outcome(lambda: call(*THEIRS))


@dataclass(frozen=True, slots=True)
class Sent:
    """One that travels between processes."""

    value: int
    more: tuple[int, ...] = ()


def test_it_can_be_pickled():
    assert pickle.loads(pickle.dumps(Sent(1, (2,)))) == Sent(1, (2,))


def test_methods_come_when_the_first_is_used():
    (base, *_) = declared(dataclass)
    assert isinstance(vars(base)["__init__"], _Later)
    base(1)
    assert not isinstance(vars(base)["__init__"], _Later)


def test_many_threads_may_be_first():
    (base, *_) = declared(dataclass)
    made, start = [], threading.Barrier(8)

    def make():
        start.wait()
        made.append(base(1, names=["a"]))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == 8 * [base(1)]
