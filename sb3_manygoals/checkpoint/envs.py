"""
The state of environments: captured, and restored into others that are built in the same way.

    state = get_env_state(env)
    ...
    env = make_the_same_environment()
    set_env_state(env, state)

From then on ``env`` does what the first would have: the same actions lead to the same observations, rewards, ends and infos,
bit for bit, through all later resets and random draws. It need not have been reset.

An environment is taken apart into its wrappers, down to the innermost. Each of these objects is asked in one of two ways.

1. By its own methods ``get_checkpoint_state()`` and ``set_checkpoint_state(state)``, where it has them. What they pass is a
   tree of plain data and random number generators, of the object's own state only: what it wraps is asked by itself, and so
   are its spaces, whose random numbers are part of the state. The tree may refer to live arrays, which are copied; what
   ``set_checkpoint_state`` gets belongs to it. It may raise a ValueError if the object was built otherwise. A class that
   inherits the methods and adds attributes must extend them.
2. Else by its attributes, which must be plain: None, numbers, strings, bytes, enumerations, NumPy arrays and torch tensors,
   random number generators, spaces, and lists, tuples, dicts, sets and deques of these; or objects with the methods above.
   Functions, classes, specs and metadata are taken not to change. Anything else is refused with its name.

Known to be special:

- Monitor and VecMonitor go on with their statistics. Their results file is not part of the state: rows go to the file that
  the new wrapper was built with, which Monitor overwrites unless it is given ``override_existing=False``, and VecMonitor
  always does. Times, there and in RecordEpisodeStatistics, go on without the pause.
- DummyVecEnv and SyncVectorEnv are captured whole. Around each environment of a SubprocVecEnv or an AsyncVectorEnv there must
  be a :class:`StatefulEnv`, outermost.
- AtariEnv is captured by ALE with its random numbers, if its own actions are not sticky. ALE does not save the screen: a game
  that leaves some of it undrawn may show other remains in the first frames.
- Those of AtariVecEnv are played again from their beginnings, if their actions are not sticky.
- Worlds of MiniGrid are captured with the objects in them; those of BabyAI are refused.
- The goal buffer is left out: environments and learner share it, and it is to be saved once, by its own methods.
- Pictures that Gymnasium's environments draw are left out, and drawn anew when they are asked for.

What an environment keeps elsewhere, in closures, class attributes, modules or NumPy's global generator, is not seen.
"""

from __future__ import annotations

import inspect
import io
import signal
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Space
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from stable_baselines3.common.vec_env import SubprocVecEnv

from sb3_manygoals.checkpoint.handlers import PARTS, attributes, inside, is_environment
from sb3_manygoals.checkpoint.tree import CheckpointError, check_tree, copy_tree, load_tree, tree_bytes

Node = dict[str, Any]
_KINDS = ("spaces", "parts", "values", "special")  # of attributes


def get_env_state(env: Any) -> Any:
    """
    Capture the state of an environment, and leave it as it is.

    :param env: a gymnasium.Env, an SB3 VecEnv or a gymnasium VectorEnv, wrapped or not
    :return: a plain tree that shares nothing with ``env``
    :raises CheckpointError: if something in it cannot be saved; the message names it
    """
    if not is_environment(env):
        raise CheckpointError(f"env must be an environment, got {type(env).__name__}")
    return copy_tree(_capture(env, {id(env)}))


def set_env_state(env: Any, state: Any) -> None:
    """
    Restore a state. If it does not fit, which is found out before anything is changed where that is possible, an environment
    must not be used any more unless it is reset.

    :param env: built as the environment that the state is of
    :param state: from :func:`get_env_state`; it is not changed, and may be used again
    :raises CheckpointError: if ``env`` was built otherwise; the message says where
    """
    node = copy_tree(state)
    try:
        expected = _chain_of_state(node)
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"this is not the state of an environment: {error!r}") from error
    found = _chain(env, {id(env)})
    if expected != found:
        raise CheckpointError(f"the environment was built otherwise: the state is of {expected}, and this is {found}")
    _restore(env, node, {id(env)})


class StatefulEnv(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """
    To be put around each environment of a SubprocVecEnv or AsyncVectorEnv, outermost, so that :func:`get_env_state` and
    :func:`set_env_state` reach it in its worker. It changes nothing else.

    :param env: the environment
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self._ended = False
        # Workers remember two things out of reach. That the next step of an AsyncVectorEnv is to be a reset; and what came
        # with the last reset, which a worker of a SubprocVecEnv sends along with each step.
        self._reset_is_due = False
        self._reset_info: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"<StatefulEnv {self.env}>"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's."""
        if self._reset_info is not None:
            info, self._reset_info = self._reset_info, None
            return None, info
        self._ended = self._reset_is_due = False
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's."""
        if self._reset_is_due:
            observation, info = self.reset()
            return observation, 0, False, False, info  # as from the worker
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._ended = bool(terminated or truncated)
        return observation, reward, terminated, truncated, info

    def get_checkpoint_state(self) -> Any:
        """:return: the state of the environment inside, and whether its episode has ended"""
        return {"env": get_env_state(self.env), "ended": self._ended}

    def set_checkpoint_state(self, state: Any) -> None:
        """:param state: from :meth:`get_checkpoint_state`"""
        set_env_state(self.env, state["env"])
        self._ended = state["ended"]

    def checkpoint_in_worker(self, state: Any = None, next_step: bool = False, reset_info: Any = None) -> tuple[Any, str]:
        """
        Get the state, or set it, in a worker; an error is returned, since to raise one would end the worker. From then on the
        worker leaves Ctrl-C to the process that trains, which still needs it for a last checkpoint.

        :param state: to be set; None to get it
        :param next_step: whether the worker resets an environment that has ended at the next step
        :param reset_info: what the next :meth:`reset` is to return, without a reset; None for none
        :return: the state or None, and what went wrong, "" if nothing did
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells all processes
        try:
            if state is None:
                return tree_bytes(self.get_checkpoint_state()), ""
            if next_step and self._ended:
                raise CheckpointError("an environment of an AsyncVectorEnv has ended and waits for its reset: build it anew")
            self.set_checkpoint_state(load_tree(io.BytesIO(state)))
            self._reset_is_due = next_step and self._ended
            self._reset_info = reset_info
        except Exception as error:
            return None, str(error) if isinstance(error, CheckpointError) else repr(error)
        return None, ""


def _inner(env: Any, seen: set[int]) -> Iterator[Any]:
    """The environments in the attributes of one; none twice, though wrappers may refer to one further in."""
    for _, value, _ in attributes(env):
        for one in inside(value, is_environment).values():
            if id(one) not in seen:
                seen.add(id(one))
                yield one


def _class(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _chain(env: Any, seen: set[int]) -> str:
    """How an environment is built: its classes from the outermost, and how many there are."""
    return _describe(_class(env), getattr(env, "num_envs", None), [_chain(one, seen) for one in _inner(env, seen)])


def _chain_of_state(node: Node) -> str:
    return _describe(node["class"], node["num_envs"], [_chain_of_state(one) for one in node["inner"]])


def _describe(name: str, num_envs: int | None, inner: list[str]) -> str:
    if len(set(inner)) == 1:
        inner = inner[:1]  # the number of environments says how often
    return f"{name}{'' if num_envs is None else f' of {num_envs}'}{''.join(f' ({one})' for one in inner)}"


def _own_method(thing: Any, name: str) -> Callable[..., Any] | None:
    """A method that is not some inner environment's: wrappers forward what they have not."""
    if isinstance(thing, StatefulEnv) or inspect.getattr_static(thing, name, None) is None:
        return None
    method: Callable[..., Any] = getattr(thing, name)
    return method


def _is_part(value: Any) -> bool:
    return isinstance(value, PARTS) or _own_method(value, "get_checkpoint_state") is not None


def _is_space(value: Any) -> bool:
    return isinstance(value, Space)


def _capture(thing: Any, seen: set[int]) -> Node:
    """The state of an environment or a part of one, some of it its own memory."""
    name = type(thing).__name__
    node: Node = {"class": _class(thing), "num_envs": getattr(thing, "num_envs", None), "workers": None}
    node["inner"] = [_capture(one, seen) for one in _inner(thing, seen)]
    if isinstance(thing, (SubprocVecEnv, AsyncVectorEnv)):
        node["workers"] = [load_tree(io.BytesIO(state)) for state in _ask_workers(thing, [()] * thing.num_envs)]
    node |= {kind: {} for kind in _KINDS}
    get_state = _own_method(thing, "get_checkpoint_state")
    node["state"] = None if get_state is None else get_state()
    check_tree(node["state"], f"{name}.get_checkpoint_state()")
    if get_state is None and any(set(getattr(base, "__slots__", ())) - {"__weakref__"} for base in type(thing).__mro__):
        raise CheckpointError(f"{name} has __slots__, which are not looked into: give it the method get_checkpoint_state()")
    for attribute, value, special in attributes(thing):
        place = f"{name}.{attribute}"
        if spaces := inside(value, _is_space):
            node["spaces"][attribute] = {key: _capture_space(space, place) for key, space in spaces.items()}
        elif get_state is not None or inside(value, is_environment):
            continue
        elif parts := inside(value, _is_part):
            node["parts"][attribute] = {key: _capture(part, seen) for key, part in parts.items()}
        else:
            kind, value = ("values", value) if special is None else ("special", special[0](thing))
            check_tree(value, place)
            node[kind][attribute] = value
    return node


def _restore(thing: Any, node: Node, seen: set[int]) -> None:
    name = type(thing).__name__
    for one, inner in zip(_inner(thing, seen), node["inner"], strict=True):
        _restore(one, inner, seen)
    if node["workers"] is not None:
        _restore_workers(thing, [tree_bytes(state) for state in node["workers"]], node["values"].get("reset_infos"))
    present = {attribute: (value, special) for attribute, value, special in attributes(thing)}
    for attribute, spaces in node["spaces"].items():
        mine = inside(present.get(attribute, (None,))[0], _is_space)
        _restore_spaces(mine, spaces, f"{name}.{attribute}")
    set_state = _own_method(thing, "set_checkpoint_state")
    if set_state is not None:
        try:
            set_state(node["state"])
        except (TypeError, ValueError, KeyError) as error:
            raise CheckpointError(f"the state does not fit {name}: {error}") from error
        return
    for attribute, parts in node["parts"].items():
        mine = inside(present.get(attribute, (None,))[0], _is_part)
        _check_places(f"{name}.{attribute}", parts, mine)
        for key, part in parts.items():
            _restore(mine[key], part, seen)
    for attribute, value in node["special"].items():
        special = present.get(attribute, (None, None))[1]
        if special is None:
            raise CheckpointError(f"{name} has no {attribute}: was it built otherwise?")
        special[1](thing, value)
    vars(thing).update(node["values"])
    # what the environment came to have since it was built, and the other did not
    for attribute in present.keys() - set().union(*(node[kind] for kind in _KINDS)):
        value = present[attribute][0]
        if value is not None and not inside(value, is_environment):
            del vars(thing)[attribute]


def _inner_spaces(space: Space[Any]) -> dict[str, Space[Any]]:
    found = {name: inside(value, _is_space) for name, value in vars(space).items()}
    return {f"{name}.{key}": one for name, ones in found.items() for key, one in ones.items()}


def _capture_space(space: Space[Any], name: str) -> Node:
    generator = vars(space)["_np_random"]  # np_random would make one
    check_tree(generator, f"the random number generator of {name}")
    return {"rng": generator, "inner": {key: _capture_space(one, name) for key, one in _inner_spaces(space).items()}}


def _restore_spaces(spaces: dict[str, Space[Any]], nodes: dict[str, Node], name: str) -> None:
    _check_places(name, nodes, spaces)
    for key, node in nodes.items():
        vars(spaces[key])["_np_random"] = node["rng"]
        _restore_spaces(_inner_spaces(spaces[key]), node["inner"], name)


def _check_places(name: str, expected: dict[str, Any], found: dict[str, Any]) -> None:
    if expected.keys() != found.keys():
        raise CheckpointError(f"{name} was built otherwise: expected {list(expected)} in it, found {list(found)}")


def _ask_workers(env: Any, arguments: list[Any]) -> list[Any]:
    """Call ``checkpoint_in_worker`` with the arguments given for each environment, () for none."""
    name = type(env).__name__
    subproc = isinstance(env, SubprocVecEnv)
    if env.waiting if subproc else env._state is not AsyncState.DEFAULT:
        raise CheckpointError(f"{name} is in the middle of a step: wait for it first")
    if not subproc and not env.shared_memory and env.autoreset_mode is AutoresetMode.DISABLED:
        raise CheckpointError("the workers of AsyncVectorEnv keep observations out of reach: use shared_memory=True")
    # Any object can tell this; what its worker does not find, it dies of.
    outermost = env.env_method("__str__") if subproc else env.call("__str__")
    if not all(str(one).startswith("<StatefulEnv ") for one in outermost):
        raise CheckpointError(
            f"the environments of {name} cannot be reached in their workers: put a StatefulEnv around each, outermost, as in "
            f"{name}([lambda: StatefulEnv(make_env())] * n)"
        )
    if subproc:
        answers = [env.env_method("checkpoint_in_worker", *given, indices=row)[0] for row, given in enumerate(arguments)]
    else:
        for pipe, given in zip(env.parent_pipes, arguments, strict=True):
            pipe.send(("_call", ("checkpoint_in_worker", given, {})))
        env._state = AsyncState.WAITING_CALL
        answers = list(env.call_wait())
    for row, (_, error) in enumerate(answers):
        if error:
            raise CheckpointError(f"environment {row} of {name}: {error}")
    return [state for state, _ in answers]


def _restore_workers(env: Any, states: list[Any], reset_infos: Any) -> None:
    if isinstance(env, SubprocVecEnv):
        _ask_workers(env, [(state, False, info) for state, info in zip(states, reset_infos, strict=True)])
        for remote in env.remotes:
            remote.send(("reset", (None, {})))
        for remote in env.remotes:
            remote.recv()
    else:
        next_step = env.autoreset_mode is AutoresetMode.NEXT_STEP
        _ask_workers(env, [(state, next_step) for state in states])
