"""The world as a Gymnasium environment."""

import copy
import operator
from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import InvalidAction, ResetNeeded
from numpy.typing import ArrayLike, NDArray

from gym_twoRooms.layout import Layout, as_layout
from gym_twoRooms.mdp import TwoRoomsMDP, compile_layout
from gym_twoRooms.oracle import TransitionModel, transition_model
from gym_twoRooms.rendering import Window, draw, write


class TwoRoomsSwitchEnv(gym.Env[NDArray[np.uint8], np.int64]):
    """
    ## Description

    Two rooms, a wall between them, a door in the wall, a switch in each room and a block to push. There is no task: the world
    is for agents that learn to reach any observation from any other. It is a finite Markov decision process in which that is
    always possible, and every state looks different. It follows the visual gridworld of the paper on many-goals reinforcement
    learning, and has exactly its 5,728 observations:

        . . . . . . . . . .
        . S . . W W . . . .       S  switch
        . . . . . . . . . .       D  door
        # # # # # # # D # #       #  wall
        . . . . . . . . . .       W  slippery floor (dark blue)
        . . B . . . . . . .       B  floor on which the block is drawn
        . . . . W W . . . .
        . . . . W W . . . .
        . . . . . . . . S .
        . . . . . . . . . .

    ## Observation Space

    `Box(0, 255, (H, W, 3), uint8)`: an RGB picture with one pixel per cell, 10 x 10 on the default map. Each thing has its own
    colour. The agent and blocks hide what is under them. Rendering never changes observations.

    ## Action Space

    `Discrete(5)`: 0 up, 1 down, 2 left, 3 right, 4 toggle. On a switch, toggle flips its door; elsewhere it does nothing.

    ## Dynamics

    - The agent walks on any free cell and through open doors. Walls, shut doors and the edge of the map stop it.
    - Moving into a block pushes it one cell, and the agent follows. Blocks only go where they touch no wall, door or edge
      (orthogonally), so they can never be wedged; a push elsewhere, or against a second block, leaves everything where it was.
    - On slippery floor, with probability `slip_probability`, the action (whichever it is) becomes a random move.
    - After every action, each open door in which nobody stands closes with probability `close_probability`.

    ## Rewards, Starting State and Episode End

    The reward is always 0. The starting state is drawn uniformly from all states, or given by
    `reset(options={"state": number})`. An episode never terminates; a `TimeLimit` (`gym.make(..., max_episode_steps=...)`)
    truncates it.

    ## Information

    `reset` and `step` return `"state"`, the number of the state, int, and `"action_mask"`, 1 where an action may do something
    (toggling only on a switch), (5,) int8. The other actions are no error.

    ## Arguments

    `gym.make("TwoRoomsSwitch-v0", slip_probability=0.0)`; `"TwoRoomsSwitchSmall-v0"` has the layout `"small"`.

    :param layout: A :class:`~gym_twoRooms.layout.Layout`, the name of one (``"paper"``, ``"small"``, ``"locks"``,
        ``"warehouse"`` or ``"mansion"``), or an ASCII map
    :param slip_probability: Probability, in [0, 1], that an action on slippery floor becomes a random move
    :param close_probability: Probability, in [0, 1], that an open, empty door closes after an action, for each door
    :param render_mode: ``"rgb_array"``: :meth:`render` returns a picture; ``"ansi"``: it returns a map in characters;
        ``"human"``: :meth:`reset` and :meth:`step` show the picture in a window, ``metadata["render_fps"]`` times a second,
        which needs pygame, until a person closes it; or None
    :param cell_size: Width and height of a cell in pictures for people, in pixels
    :raises LayoutError: If the map is not valid, or not all states can be reached from each other
    :raises ValueError: If another argument is out of range

    ## Version History

    - v0: Initial version
    """

    metadata = {"render_modes": ["rgb_array", "human", "ansi"], "render_fps": 10}  # noqa: RUF012 - as gym.Env

    def __init__(
        self,
        layout: Layout | str = "paper",
        slip_probability: float = 0.5,
        close_probability: float = 0.01,
        render_mode: str | None = None,
        cell_size: int = 32,
    ) -> None:
        check_rendering(render_mode, cell_size, self.metadata["render_modes"])
        self.mdp: TwoRoomsMDP = compile_layout(as_layout(layout), slip_probability, close_probability)
        self.observation_space = observation_space(self.mdp)
        self.action_space = spaces.Discrete(self.mdp.n_actions)
        self.render_mode = render_mode
        self.cell_size = cell_size
        self._window = Window("TwoRoomsSwitch")
        self._state: int | None = None

    @property
    def state(self) -> int:
        """
        The number of the current state.

        :raises ResetNeeded: If the environment was not reset yet
        """
        if self._state is None:
            raise _reset_needed()
        return self._state

    def get_state(self) -> int:
        """
        The number of the current state, to come back to by :meth:`set_state`. The random number generator is no part of it.

        :return: The same as :attr:`state`
        :raises ResetNeeded: If the environment was not reset yet
        """
        return self.state

    def set_state(self, state: int) -> NDArray[np.uint8]:
        """
        Put the world into a state; the random number generator is left alone.

        :param state: The number of the state
        :return: Its observation, (H, W, 3) uint8
        :raises TypeError: If ``state`` is not an integer
        :raises ValueError: If there is no such state
        """
        self._state = self._check_state(state)
        return self.mdp.observe(self._state)

    def observation_of(self, state: int) -> NDArray[np.uint8]:
        """
        The observation of a state, whichever the current one is.

        :param state: The number of the state
        :return: A new array, (H, W, 3) uint8
        :raises TypeError: If ``state`` is not an integer
        :raises ValueError: If there is no such state
        """
        return self.mdp.observe(self._check_state(state))

    def state_of(self, observation: ArrayLike) -> int:
        """
        The state that looks like an observation.

        :param observation: A picture, (H, W, 3)
        :return: The number of the state
        :raises ValueError: If no state looks so
        """
        return self.mdp.state_of(observation)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        All that decides what comes next, the random number generator included.

        :return: Plain data and the generator, copied; for :meth:`set_checkpoint_state`
        """
        return {
            "world": world_of(self.mdp),
            "state": self._state,
            "np_random": copy.deepcopy(self._np_random),
            "np_random_seed": self._np_random_seed,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Go on from where another environment of the same world was. The window shows it at the next step.

        :param state: From :meth:`get_checkpoint_state`
        :raises ValueError: If it is of another world
        """
        check_world(state["world"], world_of(self.mdp))
        self._state = state["state"]
        self._np_random, self._np_random_seed = copy.deepcopy(state["np_random"]), state["np_random_seed"]

    def action_masks(self) -> NDArray[np.bool_]:
        """
        The current ``info["action_mask"]`` in the form of sb3-contrib's maskable learners.

        :return: True where an action may do something, (5,) bool
        :raises ResetNeeded: If the environment was not reset yet
        """
        return self.mdp.action_masks(self.state).astype(np.bool_)

    @cached_property
    def P(self) -> TransitionModel:
        """
        The exact dynamics in the form of Gymnasium's toy_text environments, for planners; built on first use.
        ``P[state][action]`` is a list of ``(probability, next_state, reward, terminated)``, see
        :func:`~gym_twoRooms.oracle.transition_model`.
        """
        return transition_model(self.mdp)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        Start an episode. Draws exactly one uniform number, or none when a state is given.

        :param seed: Seed of ``np_random``; None goes on with the present generator
        :param options: ``{"state": number}`` to start in a certain state
        :return: The observation, (H, W, 3) uint8, and the info described above
        :raises TypeError: If the state is not an integer
        :raises ValueError: If there is no such state, or an option is unknown
        """
        super().reset(seed=seed)
        given = given_state(options)
        if given is None:
            self._state = int(self.mdp.initial_states(np.array(self.np_random.random())))
        else:
            self._state = self._check_state(given)
        if self.render_mode == "human":
            self.render()
        return self.mdp.observe(self._state), {"state": self._state, "action_mask": self.mdp.action_masks(self._state)}

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """
        Act once. Draws one uniform number if anything is left to chance: on slippery floor, on a switch, or with a door open,
        unless the probabilities are 0.

        :param action: 0 up, 1 down, 2 left, 3 right or 4 toggle
        :return: The observation, (H, W, 3) uint8; the reward, 0.0; terminated and truncated, False; the info described above
        :raises InvalidAction: If there is no such action
        :raises ResetNeeded: If the environment was not reset yet
        """
        mdp, state = self.mdp, self._state
        if state is None:
            raise _reset_needed()
        try:
            number = operator.index(action)
        except TypeError:
            number = -1
        if not 0 <= number < 5:
            raise InvalidAction(f"An action must be an integer in [0, {mdp.n_actions}), got {action!r}.")
        self._state = state = mdp.step_one(state, number, self.np_random.random)
        if self.render_mode == "human":
            self.render()
        return mdp.observe(state), 0.0, False, False, {"state": state, "action_mask": mdp.action_masks(state)}

    def render(self) -> NDArray[np.uint8] | str | None:
        """
        Show the current state to people, in the way that the render mode says. In the mode ``"human"``, :meth:`reset` and
        :meth:`step` call it.

        :return: With ``"rgb_array"`` a picture, (H * cell_size, W * cell_size, 3) uint8; with ``"ansi"`` a map, H lines;
            else None
        :raises ResetNeeded: If the environment was not reset yet
        :raises DependencyNotInstalled: If the mode is ``"human"`` and there is no pygame
        """
        if self.render_mode is None:
            warn_about_rendering(self.metadata["render_modes"])
            return None
        if self.render_mode == "ansi":
            return write(self.mdp, self.state)
        picture = draw(self.mdp, self.state, self.cell_size)
        if self.render_mode == "rgb_array":
            return picture
        self._window.show(picture, self.metadata["render_fps"])
        return None

    def render_observation(self, observation: ArrayLike) -> NDArray[np.uint8]:
        """
        Draw an observation for people, whichever the current one and the render mode are.

        :param observation: A picture of one pixel per cell, (H, W, 3)
        :return: A picture, (H * cell_size, W * cell_size, 3) uint8; if no state looks so, the observation itself, enlarged
        :raises ValueError: If an observation has another shape
        """
        pixels = np.asarray(observation)
        if pixels.shape != self.observation_space.shape:
            raise ValueError(f"An observation has shape {self.observation_space.shape}, got {pixels.shape}.")
        try:
            return draw(self.mdp, self.state_of(pixels), self.cell_size)
        except ValueError:
            return pixels.astype(np.uint8).repeat(self.cell_size, axis=0).repeat(self.cell_size, axis=1)

    def close(self) -> None:
        """Close the window, if there is one. May be called again."""
        self._window.close()

    def _check_state(self, state: ArrayLike) -> int:
        states = self.mdp.check_states(state)
        if states.ndim:
            raise TypeError(f"A state must be one integer, got {state!r}.")
        return int(states)


def _reset_needed() -> ResetNeeded:
    return ResetNeeded("The environment has no state yet: call reset() first.")


# What the vector environment shares.


def observation_space(mdp: TwoRoomsMDP) -> spaces.Space[NDArray[np.uint8]]:
    """The space of a world's observations."""
    box = spaces.Box(0, 255, (mdp.layout.height, mdp.layout.width, 3), np.uint8)
    return cast("spaces.Space[NDArray[np.uint8]]", box)  # Box is typed for all dtypes at once


def check_rendering(render_mode: str | None, cell_size: int, modes: Sequence[str]) -> None:
    """Raise ValueError if there is no such mode, or a cell is not a positive whole number of pixels."""
    if render_mode is not None and render_mode not in modes:
        raise ValueError(f"render_mode must be None or one of {modes}, got {render_mode!r}.")
    if not isinstance(cell_size, int) or cell_size < 1:
        raise ValueError(f"cell_size must be an integer of at least 1, got {cell_size!r}.")


def warn_about_rendering(modes: Sequence[str]) -> None:
    """Warn that there is nothing to see."""
    gym.logger.warn(f"render() does nothing without a render mode: make the environment with render_mode in {modes}.")


def given_state(options: dict[str, Any] | None) -> Any:
    """The state given in the options of a reset, or None. Unknown options raise ValueError."""
    unknown = set(options or ()) - {"state"}
    if unknown:
        raise ValueError(f"Unknown reset options {sorted(map(str, unknown))}; the only one is 'state'.")
    return (options or {}).get("state")


def world_of(mdp: TwoRoomsMDP) -> dict[str, Any]:
    """The map and the probabilities, to be kept beside a state."""
    probabilities = {"slip_probability": mdp.slip_probability, "close_probability": mdp.close_probability}
    return {"layout": str(mdp.layout), **probabilities}


def check_world(saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise ValueError if a saved state is of another world."""
    for name in saved:
        if saved[name] != here.get(name):
            theirs, ours = (f"\n{one}\n" if name == "layout" else repr(one) for one in (saved[name], here.get(name)))
            raise ValueError(f"The state is of another world: its {name} is {theirs}, here it is {ours}.")
