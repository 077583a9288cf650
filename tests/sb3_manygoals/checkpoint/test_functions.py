"""What functions in an environment's attributes remember is saved, or refused by its name."""

import functools
import io
import itertools
import math
import operator
import types
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers

from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.checkpoint.envs import get_env_state, set_env_state
from sb3_manygoals.goals.selection import UniformSelector
from tests.sb3_manygoals.checkpoint.kinds import corridor, dummy, goal_vector, stateful, vector
from tests.sb3_manygoals.worlds import Corridor


class Dice:
    """A foreign object with a state."""

    def __init__(self):
        self.rolled = 0

    def roll(self):
        self.rolled += 1
        return float(self.rolled)

    def __call__(self):
        return self.roll()


class SlottedDice:
    __slots__ = ("rolled",)

    def __init__(self):
        self.rolled = 0

    roll = Dice.roll


class SavedDice(Dice):
    def get_checkpoint_state(self):
        return {"rolled": self.rolled}

    def set_checkpoint_state(self, state):
        self.rolled = state["rolled"]


class Paid(gym.Wrapper):
    """
    Pays what its function says.

    :param make_pay: makes this function, of no arguments, from the wrapper
    """

    def __init__(self, make_pay):
        super().__init__(corridor())
        self.paid = 0.0
        self.pay = make_pay(self)

    def step(self, action):
        observation, _, *ends, info = self.env.step(action)
        self.paid = float(self.pay())
        return observation, self.paid, *ends, info

    def double(self):
        self.paid = 2.0 * self.paid + 1.0
        return self.paid

    def half(self):
        return self.paid / 2.0


def rewards(env, n=8):
    """
    Return the rewards of some steps.

    :param env: the environment, which is reset when an episode ends
    :param n: number of steps; default: 8
    :return: a list of floats
    """
    found = []
    for _ in range(n):
        _, reward, terminated, truncated, _ = env.step(1)
        found.append(reward)
        if terminated or truncated:
            env.reset()
    return found


def goes_on(make):
    """
    Return whether an environment that was restored is paid as the first would have been.

    :param make: makes the environment
    :return: a bool
    """
    first = make()
    again = make()
    first.reset(seed=0)
    rewards(first, 5)
    state = get_env_state(first)
    expected = rewards(first)
    set_env_state(again, state)
    return rewards(again) == expected


# Functions of dice, which refer to these in different ways.


def roll(dice):
    return dice.roll()


def closure_of(thing):
    return lambda *given: thing.roll()


def deep_closure_of(dice):
    def inner():
        return dice.roll()

    return lambda: inner()


def default_of(dice):
    return lambda dice=dice: dice.roll()


def attribute_of(dice):
    def pay():
        return pay.dice.roll()

    pay.dice = dice
    return pay


def listed(dice):
    dices = [dice]
    return lambda: dices[0].roll()


def beside(dice):
    things = {"factor": [1.0], "roll": dice.roll}
    return lambda: things["roll"]() * things["factor"][0]


REFUSED = {
    "bound method": (lambda env: Dice().roll, r"Paid.pay.__self__ is a .*\.Dice, which cannot"),
    "slots": (lambda env: SlottedDice().roll, r"Paid.pay.__self__ is a .*SlottedDice"),
    "callable object": (lambda env: Dice(), r"Paid.pay is a .*\.Dice, which cannot be saved"),
    "partial": (lambda env: functools.partial(roll, Dice()), r"Paid.pay.args\[0\] is a .*Dice"),
    "partial by name": (
        lambda env: functools.partial(roll, dice=Dice()),
        r"Paid.pay.keywords\['dice'\] is a .*Dice",
    ),
    "partial of a method": (
        lambda env: functools.partial(Dice().roll),
        r"Paid.pay.func.__self__ is a .*Dice",
    ),
    "closure": (lambda env: closure_of(Dice()), r"the variable 'thing' of Paid.pay is a .*Dice"),
    "closure of a closure": (
        lambda env: deep_closure_of(Dice()),
        r"the variable 'dice' of the variable 'inner' of Paid.pay is a .*Dice",
    ),
    "default": (lambda env: default_of(Dice()), r"Paid.pay.__defaults__\[0\] is a .*Dice"),
    "attribute": (lambda env: attribute_of(Dice()), r"Paid.pay.dice is a .*Dice"),
    "list": (lambda env: listed(Dice()), r"the variable 'dices' of Paid.pay\[0\] is a .*Dice"),
    "dict": (lambda env: beside(Dice()), r"the variable 'things' of Paid.pay\['roll'\].*Dice"),
    "cached": (
        lambda env: functools.lru_cache(Dice().roll),
        r"Paid.pay.__wrapped__.__self__ is a .*Dice",
    ),
    "iterator": (lambda env: functools.partial(next, iter([1.0] * 99)), "list_iterator"),
    "method of an iterator": (lambda env: itertools.count().__next__, "method-wrapper"),
    "cycle": (lambda env: functools.partial(next, itertools.cycle([1, 2])), "itertools.cycle"),
    "generator": (
        lambda env: functools.partial(next, (float(i) for i in range(99))),
        r"Paid.pay.args\[0\] is a builtins.generator",
    ),
    "generator's method": (
        lambda env: np.random.default_rng(0).random,
        "Paid.pay is a method of plain data, a Generator, of which",
    ),
    "list's method": (lambda env: [1.0, 2.0].pop, "Paid.pay is a method of plain data, a list"),
    "array's method": (lambda env: np.ones(2).sum, "Paid.pay is a method of plain data, a ndarray"),
    "weakref": (lambda env: functools.partial(roll, weakref.proxy(env)), "weakref|weakproxy"),
    "another environment": (
        lambda env: Paid(lambda other: float).double,
        r"Paid.pay.__self__ is a .*Paid, which cannot be saved",
    ),
    "bound by hand": (
        lambda env: types.MethodType(closure_of(Dice()), env),
        r"the variable 'thing' of Paid.pay.__func__ is a .*Dice",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_function_of_a_foreign_object_with_a_state_is_refused_by_name(kind):
    make_pay, message = REFUSED[kind]
    env = Paid(make_pay)
    env.reset(seed=0)
    with pytest.raises(CheckpointError, match=message):
        get_env_state(env)


@pytest.mark.parametrize(
    "put",
    [
        lambda dice: wrappers.TransformReward(corridor(), lambda reward: dice.roll()),
        lambda dice: dummy(lambda: wrappers.TransformReward(corridor(), lambda r: dice.roll()), 2),
        lambda dice: vector(lambda: wrappers.TransformReward(corridor(), lambda r: dice.roll())),
        lambda dice: goal_vector(
            True, lambda: wrappers.TransformReward(Corridor(), lambda r: dice.roll())
        ),
    ],
)
def test_it_is_refused_wherever_it_is(put):
    env = put(Dice())
    env.reset()
    with pytest.raises(CheckpointError, match=r"the variable 'dice' of TransformReward.func"):
        get_env_state(env)


@pytest.mark.parametrize("put", [lambda value: [value], lambda value: {"a": value, "b": float}])
def test_it_is_refused_in_lists_and_dicts(put):
    env = corridor()
    env.rules = put(Dice().roll)
    with pytest.raises(CheckpointError, match=r"TimeLimit.rules\['.*'\].__self__ is a .*Dice"):
        get_env_state(env)


@pytest.mark.parametrize(
    "make",
    [
        lambda: itertools.cycle("ab"),
        lambda: (i for i in range(3)),
        lambda: io.StringIO("a"),
        lambda: weakref.ref(Corridor),
        lambda: map(str, [1, 2]),
        lambda: SlottedDice(),
        lambda: operator.itemgetter([1]),
    ],
)
def test_iterators_files_and_references_are_refused(make):
    env = corridor()
    value = make()
    for held in (value, [value], {"a": value}):
        env.unwrapped.thing = held
        with pytest.raises(CheckpointError, match=r"Corridor.thing"):
            get_env_state(env)


@dataclass(frozen=True)
class Frozen:
    scale: float = 3.0

    def pay(self):
        return self.scale


class Stateless:
    def pay(self):
        return 4.0


# Makers of functions that remember what a checkpoint can save.


def count_by_list(env):
    counts = [0]

    def pay():
        counts[0] += 1
        return counts[0]

    return pay


def count_by_number(env):
    count = 0

    def pay():
        nonlocal count
        count += 1
        return count

    return pay


def count_by_attribute(env):
    def pay():
        pay.count += 1
        return pay.count

    pay.count = 0
    return pay


def count_by_attribute_of_partial(env):
    def pay():
        own.count += 1
        return own.count

    own = functools.partial(pay)
    own.count = 0
    return own


def count_by_attribute_of_cache(env):
    def pay(depth):
        own.count += 1
        return own.count

    own = functools.lru_cache(maxsize=0)(pay)
    own.count = 0
    return functools.partial(own, 0)


def count_by_default(env):
    # That the defaults are kept from call to call is the point.
    def pay(counts=[0], *, more={"n": 0}):  # noqa: B006
        counts[0] += 1
        more["n"] += 2
        return counts[0] + more["n"]

    return pay


def draw(env):
    rng = np.random.default_rng(0)
    return lambda: rng.random()


def push(counts: list[float]):
    counts.append(1.0)
    return sum(counts)


def shared(env):
    env.counts = deque([0.0])
    return functools.partial(push, env.counts)


def saved(env):
    return SavedDice().roll


def saved_in_closure(env):
    dice = [SavedDice(), SavedDice()]
    return lambda: dice[0].roll() + dice[1].roll()


def recursive(env):
    def pay(depth=3):
        return env.paid + 1.0 if depth == 0 else pay(depth - 1)

    return pay


GOES_ON = {
    "function": lambda env: float,
    "of NumPy": lambda env: functools.partial(np.mean, (1.0, 2.0)),
    "of a module": lambda env: functools.partial(math.sqrt, 2.0),
    "wrapper": lambda env: functools.update_wrapper(functools.partial(push, [1.0]), push),
    "own method": lambda env: env.double,
    "own method in a partial": lambda env: functools.partial(env.double),
    "closure over itself": lambda env: lambda: env.double(),
    "method of what is inside": lambda env: lambda: env.unwrapped.cell,
    "method of a string": lambda env: functools.partial("aab".count, "a"),
    "constants": lambda env: (lambda scale, of: lambda: scale * len(of))(2.0, ("a", Path("b"))),
    "array": lambda env: functools.partial(np.sum, np.arange(3.0)),
    "frozen": lambda env: Frozen().pay,
    "stateless": lambda env: Stateless().pay,
    "class's method": lambda env: functools.partial(float.fromhex, "0x1p1"),
    "list": count_by_list,
    "number": count_by_number,
    "attribute": count_by_attribute,
    "attribute of a partial": count_by_attribute_of_partial,
    "attribute of a cache": count_by_attribute_of_cache,
    "default": count_by_default,
    "random numbers": draw,
    "shared with an attribute": shared,
    "with a checkpoint state": saved,
    "with a checkpoint state, in a list": saved_in_closure,
    "recursive": recursive,
}


@pytest.mark.parametrize("kind", GOES_ON)
def test_what_a_function_remembers_is_saved_if_it_can_be(kind):
    assert goes_on(lambda: Paid(GOES_ON[kind]))


def test_a_variable_that_nobody_assigns_to_is_that_of_the_program():
    def make(scale):
        return Paid(lambda env: lambda: scale)

    first = make(2.0)
    again = make(3.0)
    first.reset()
    set_env_state(again, get_env_state(first))
    assert rewards(again, 1) == [3.0]


class Changing(gym.Wrapper):
    """
    Which method is called is a state.

    :param pick: returns the method from the wrapper, and from 0 before and 1 after the first step
    """

    def __init__(self, pick):
        super().__init__(corridor())
        self.pick = pick
        self.mode = self.pick(self, 0)

    def step(self, action):
        observation, _, *ends, info = self.env.step(action)
        self.mode = self.pick(self, 1)
        return observation, self.mode(), *ends, info

    def walk(self):
        return 1.0

    def run(self):
        return 2.0


def test_a_method_of_its_own_is_found_again_by_its_name():
    first, again = (Changing(lambda env, i: (env.walk, env.run)[i]) for _ in range(2))
    first.reset()
    first.step(1)
    set_env_state(again, get_env_state(first))
    assert again.mode() == 2.0


def test_another_function_than_the_one_it_was_built_with_is_refused():
    first, again = (Changing(lambda env, i: (lambda: 1.0, lambda: 2.0)[i]) for _ in range(2))
    first.reset()
    first.step(1)
    with pytest.raises(CheckpointError, match=r"Changing.mode was built otherwise, or has changed"):
        set_env_state(again, get_env_state(first))


class Slotted(Corridor):
    """Pays by what is kept in a slot."""

    __slots__ = ("__hidden", "paid")

    def __init__(self):
        super().__init__()
        self.paid = 0.0
        self.__hidden = [0.0]

    def step(self, action):
        observation, _, *ends, info = super().step(action)
        self.paid += 1.0
        self.__hidden.append(self.paid)
        return observation, sum(self.__hidden), *ends, info


def test_slots_are_attributes():
    assert goes_on(Slotted)


def test_slots_that_cannot_be_saved_are_refused_by_name():
    env = Slotted()
    env.paid = Dice()
    with pytest.raises(CheckpointError, match=r"Slotted.paid is a .*Dice"):
        get_env_state(env)


class Ruled(UniformSelector):
    """
    A rule that keeps an object.

    :param rule: the object
    """

    def __init__(self, rule):
        self.rule = rule


class SlottedSelector(UniformSelector):
    __slots__ = ("chosen",)

    def __init__(self):
        self.chosen = [0]

    def select(self, goal_buffer, current_ids, rng):
        self.chosen.append(self.chosen[-1] + 1)
        return np.full(len(current_ids), self.chosen[-1] % len(goal_buffer))


@pytest.mark.parametrize("vector", [False, True])
def test_rules_for_choosing_goals_are_refused_by_name_too(vector):
    settings = {"selector_class": Ruled, "selector_kwargs": {"rule": Dice()}}
    env = goal_vector(vector, corridor, **settings)
    env.reset()
    with pytest.raises(CheckpointError, match=r"\['selector'\]\['rule'\] is a .*Dice"):
        get_env_state(env)


def test_slots_of_a_rule_for_choosing_goals_are_saved():
    first = SlottedSelector()
    again = SlottedSelector()
    first.chosen.append(7)
    again.set_checkpoint_state(first.get_checkpoint_state())
    assert again.chosen == [0, 7]
    assert again.chosen is not first.chosen


def test_constructors_of_a_vector_of_environments_are_not_its_state():
    settings = Dice()

    def make():
        settings.roll()
        return stateful()

    env = vector(make)
    env.reset(seed=0)
    get_env_state(env)


@pytest.mark.parametrize(
    "wrap",
    [
        wrappers.FlattenObservation,
        lambda env: wrappers.RescaleAction(gym.make("Pendulum-v1"), -1.0, 1.0),
        lambda env: wrappers.RescaleObservation(gym.make("MountainCar-v0"), -1.0, 1.0),
        lambda env: wrappers.ReshapeObservation(env, (1, 4)),
        lambda env: wrappers.DtypeObservation(env, np.float64),
        lambda env: wrappers.ClipReward(env, -1.0, 1.0),
        lambda env: wrappers.TransformObservation(
            env, lambda observation: observation * 2, spaces.Box(-9, 9, (4,))
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_wrappers_of_gymnasium_are_saved(wrap):
    env = wrap(gym.make("CartPole-v1"))
    env.reset(seed=0)
    set_env_state(env, get_env_state(env))
