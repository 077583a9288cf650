"""The world as a Gymnasium environment."""

import copy
import operator
from functools import cached_property
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import InvalidAction, ResetNeeded
from numpy.typing import ArrayLike, NDArray

from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import TwoRoomsMDP, compile_layout
from gym_twoRooms.oracle import TransitionModel, transition_model
from gym_twoRooms.rendering import RENDER_MODES, check_rendering, draw, show, warn_about_rendering


class TwoRoomsSwitchEnv(gym.Env[NDArray[np.uint8], np.int64]):
    """
    ## Description

    Two rooms, a wall between them, a door in the wall, a switch in each room and a block to push.
    There is no task: the world is for agents that learn to reach any observation from any other.
    It is a finite Markov decision process in which that is always possible, and every state looks
    different. The default map has exactly the 5,728 observations of the gridworld of the paper on
    many-goals reinforcement learning:

        . . . . . . . . . .
        . S . . W W . . . .       S  switch
        . . . . . . . . . .       D  door
        # # # # # # # D # #       #  wall
        . . . . . . . . . .       W  slippery floor
        . . B . . . . . . .       B  floor on which the block is drawn
        . . . . W W . . . .
        . . . . W W . . . .
        . . . . . . . . S .
        . . . . . . . . . .

    ## Observation Space, Action Space

    `Box(0, 255, (H, W, 3), uint8)`: an RGB picture with one pixel per cell. The agent and blocks
    hide what is under them.

    `Discrete(5)`: 0 up, 1 down, 2 left, 3 right, 4 toggle. On a switch, toggle flips its door;
    elsewhere it does nothing.

    ## Dynamics

    - The agent walks on any free cell and through open doors. Walls, shut doors and the edge of the
      map stop it.
    - Moving into a block pushes it one cell, and the agent follows. Blocks only go where they touch
      no wall, door or edge (orthogonally), so they are never wedged. A push elsewhere, or against a
      second block, changes nothing.
    - On slippery floor, any action becomes a random move with probability `slip_probability`.
    - After every action, each open door in which nobody stands closes with probability
      `close_probability`.

    ## Rewards, Starting State, Episode End, Information

    The reward is always 0, and an episode never terminates. Its starting state is drawn uniformly
    from all states, or given by `reset(options={"state": number})`. `reset` and `step` return
    `"state"`, the number of the state, int, and `"action_mask"`, 1 where an action may do something
    (toggling only on a switch), (5,) int8. The other actions are no error.

    :param layout: A :class:`~gym_twoRooms.layout.Layout`, the name of one (``"paper"``,
        ``"small"``, ``"locks"``, ``"warehouse"`` or ``"mansion"``), or an ASCII map
    :param slip_probability: Probability, in [0, 1], that an action on slippery floor becomes a
        random move
    :param close_probability: Probability, in [0, 1], that an open, empty door closes after an
        action, for each door
    :param render_mode: ``"rgb_array"``: :meth:`render` returns a picture, (H * cell_size, W *
        cell_size, 3) uint8; ``"ansi"``: a map in characters, H lines; None: nothing
    :param cell_size: Width and height of a cell in pictures for people, in pixels
    :raises LayoutError: If the map is not valid, or not all states can be reached from each other
    :raises ValueError: If another argument is out of range
    :ivar mdp: The compiled world, a :class:`~gym_twoRooms.mdp.TwoRoomsMDP`
    """

    # Gymnasium declares the metadata as a plain class attribute too.
    metadata = {"render_modes": RENDER_MODES, "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        layout: Layout | str = "paper",
        slip_probability: float = 0.5,
        close_probability: float = 0.01,
        render_mode: str | None = None,
        cell_size: int = 32,
    ) -> None:
        check_rendering(render_mode, cell_size)
        self.mdp: TwoRoomsMDP = compile_layout(layout, slip_probability, close_probability)
        self.observation_space = observation_space(self.mdp)
        self.action_space = spaces.Discrete(self.mdp.n_actions)
        self.render_mode = render_mode
        self.cell_size = cell_size
        self._state: int | None = None

    @property
    def state(self) -> int:
        """The number of the current state. Raises ResetNeeded before the first reset."""
        if self._state is None:
            raise ResetNeeded("The environment has no state yet: call reset() first.")
        return self._state

    def set_state(self, state: int) -> NDArray[np.uint8]:
        """
        Put the world into a state, without drawing random numbers.

        :param state: The number of the state, from 0 to ``mdp.n_states`` - 1
        :return: Its observation, (H, W, 3) uint8
        :raises TypeError: If ``state`` is not an integer
        :raises ValueError: If there is no such state
        """
        self._state = self._check_state(state)
        return self.mdp.observe(self._state)

    def observation_of(self, state: int) -> NDArray[np.uint8]:
        """
        Return the observation of any state.

        :param state: The number of the state, from 0 to ``mdp.n_states`` - 1
        :return: Its observation, a new array, (H, W, 3) uint8
        :raises TypeError: If ``state`` is not an integer
        :raises ValueError: If there is no such state
        """
        return self.mdp.observe(self._check_state(state))

    def state_of(self, observation: ArrayLike) -> int:
        """
        Return the state that looks like an observation.

        :param observation: A picture, (H, W, 3), with values from 0 to 255
        :return: The number of the state
        :raises ValueError: If no state looks like this, or the shape is another
        """
        return int(self.mdp.states_of(np.asarray(observation)[np.newaxis])[0])

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state of the environment and of its random number generator.

        :return: A dictionary for :meth:`set_checkpoint_state`. It also has the map and the
            probabilities, and it is a copy: later steps do not change it
        """
        return {
            "world": world_of(self.mdp),
            "state": self._state,
            "np_random": copy.deepcopy(self._np_random),
            "np_random_seed": self._np_random_seed,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Continue from a saved state.

        :param state: What :meth:`get_checkpoint_state` returned
        :raises ValueError: If the state is of a world with another map or other probabilities
        """
        check_world(state["world"], world_of(self.mdp))
        self._state = state["state"]
        self._np_random = copy.deepcopy(state["np_random"])
        self._np_random_seed = state["np_random_seed"]

    def action_masks(self) -> NDArray[np.bool_]:
        """
        Return ``info["action_mask"]`` for sb3-contrib's maskable learners.

        :return: Whether each action may do something, a new array, (5,) bool
        :raises ResetNeeded: If the environment was never reset
        """
        return self.mdp.action_masks(self.state).astype(np.bool_)

    @cached_property
    def P(self) -> TransitionModel:
        """The exact dynamics in the form of Gymnasium's toy_text environments."""
        return transition_model(self.mdp)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        Begin an episode. This draws one uniform number, or none if a state is given.

        :param seed: Seed of the environment's random number generator; None leaves the generator
            as it is
        :param options: ``{"state": number}`` to start in a state; None or an empty dict for a
            random one
        :return: The first observation, (H, W, 3) uint8, and its info: ``"state"``, int, and
            ``"action_mask"``, (5,) int8
        :raises TypeError: If the given state is not an integer
        :raises ValueError: If there is no such state, or there are other options
        """
        super().reset(seed=seed)
        given = given_state(options)
        if given is None:
            self._state = int(self.mdp.initial_states(np.array(self.np_random.random())))
        else:
            self._state = self._check_state(given)
        return self.mdp.observe(self._state), self._info(self._state)

    def step(
        self, action: np.int64 | int
    ) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """
        Act. This draws one uniform number if the step is random (see ``mdp.chance``), else none.

        :param action: The action, an integer in [0, 5)
        :return: The observation, (H, W, 3) uint8; the reward 0.0; False and False, because the
            episode continues; the info: ``"state"``, int, and ``"action_mask"``, (5,) int8
        :raises InvalidAction: If there is no such action
        :raises ResetNeeded: If the environment was never reset
        """
        state = self.state
        try:
            number = operator.index(action)
        except TypeError:
            number = -1
        if not 0 <= number < 5:
            raise InvalidAction(
                f"An action must be an integer in [0, {self.mdp.n_actions}), got {action!r}."
            )
        self._state = self.mdp.step_one(state, number, self.np_random.random)
        return self.mdp.observe(self._state), 0.0, False, False, self._info(self._state)

    def render(self) -> NDArray[np.uint8] | str | None:
        """
        Show the current state in the form of the render mode.

        :return: A picture, (H * cell_size, W * cell_size, 3) uint8; or a map in characters; or
            None, with a warning, if there is no render mode
        :raises ResetNeeded: If the environment was never reset
        """
        if self.render_mode is None:
            warn_about_rendering()
            return None
        return show(self.mdp, self.state, self.render_mode, self.cell_size)

    def render_observation(self, observation: ArrayLike) -> NDArray[np.uint8]:
        """
        Draw an observation for people. The render mode does not matter.

        :param observation: A picture of one pixel per cell, (H, W, 3)
        :return: A picture, (H * cell_size, W * cell_size, 3) uint8; if no state looks like this,
            the observation itself, enlarged
        :raises ValueError: If the observation has another shape
        """
        pixels = np.asarray(observation)
        if pixels.shape != self.observation_space.shape:
            raise ValueError(
                f"An observation has shape {self.observation_space.shape}, got {pixels.shape}."
            )
        try:
            return draw(self.mdp, self.state_of(pixels), self.cell_size)
        except ValueError:
            rows = pixels.astype(np.uint8).repeat(self.cell_size, axis=0)
            return rows.repeat(self.cell_size, axis=1)

    def _info(self, state: int) -> dict[str, Any]:
        return {"state": state, "action_mask": self.mdp.action_masks(state)}

    def _check_state(self, state: ArrayLike) -> int:
        states = self.mdp.check_states(state)
        if states.ndim:
            raise TypeError(f"A state must be one integer, got {state!r}.")
        return int(states)


# The vector environment shares the following functions.


def observation_space(mdp: TwoRoomsMDP) -> spaces.Space[NDArray[np.uint8]]:
    """
    Return the space of a world's observations.

    :param mdp: The compiled world
    :return: ``Box(0, 255, (H, W, 3), uint8)``
    """
    box = spaces.Box(0, 255, (mdp.layout.height, mdp.layout.width, 3), np.uint8)
    # Gymnasium annotates a Box with all dtypes at once.
    return cast("spaces.Space[NDArray[np.uint8]]", box)


def given_state(options: dict[str, Any] | None, others: tuple[str, ...] = ()) -> Any:
    """
    Return the state given in the options of a reset.

    :param options: The options, or None
    :param others: Names of options that the caller has taken out, for the message
    :return: What the user gave as ``"state"``, not yet checked; None if nothing was given
    :raises ValueError: If there are other options
    """
    unknown = set(options or ()) - {"state"}
    if unknown:
        known = "the only one is 'state'"
        if others:
            known = f"there are {', '.join(map(repr, ('state', *others)))}"
        raise ValueError(f"Unknown reset options {sorted(map(str, unknown))}; {known}.")
    return (options or {}).get("state")


def world_of(mdp: TwoRoomsMDP) -> dict[str, Any]:
    """
    Return what a checkpoint says about its world.

    :param mdp: The compiled world
    :return: The map and the probabilities, by name
    """
    return {
        "layout": str(mdp.layout),
        "slip_probability": mdp.slip_probability,
        "close_probability": mdp.close_probability,
    }


def check_world(saved: dict[str, Any], here: dict[str, Any]) -> None:
    """
    Raise an error if a checkpoint is of another world.

    :param saved: What the checkpoint says about its world, see :func:`world_of`
    :param here: What :func:`world_of` says about the world of the environment
    :raises ValueError: If an entry differs
    """
    for name in {**saved, **here}:
        if saved.get(name) != here.get(name):
            theirs, ours = (
                f"\n{value}\n" if name == "layout" else repr(value)
                for value in (saved.get(name), here.get(name))
            )
            raise ValueError(
                f"The state is of another world: its {name} is {theirs}, here it is {ours}."
            )
