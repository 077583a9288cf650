"""The dynamics written out, as Gymnasium's toy_text environments have them in ``P``."""

import numpy as np

from gym_twoRooms.layout import DIRECTIONS
from gym_twoRooms.mdp import TwoRoomsMDP

TransitionModel = dict[int, dict[int, list[tuple[float, int, float, bool]]]]
"""``{state: {action: [(probability, next_state, reward, terminated), ...]}}``"""


def transition_model(mdp: TwoRoomsMDP) -> TransitionModel:
    """
    Write the dynamics out, slipping and closing doors included. It takes about 2 kB a state; for large maps,
    :func:`~gym_twoRooms.oracle.transition_matrices` has the same in less space.

    :param mdp: The world
    :return: For each state and action, what may follow: each next state once, in ascending order, with a positive
        probability; rewards are 0.0 and nothing terminates
    """
    actions = range(mdp.n_actions)
    outcomes = [_outcomes(mdp, action) for action in actions]
    return {state: {action: outcomes[action][state] for action in actions} for state in range(mdp.n_states)}


def _outcomes(mdp: TwoRoomsMDP, action: int) -> list[list[tuple[float, int, float, bool]]]:
    """What may follow one action, for each state."""
    # Where the action itself leads, and the four random moves, and then each of these with each set of doors closing.
    n_moves = len(DIRECTIONS)
    slip = mdp.slips * mdp.slip_probability
    arrived = np.column_stack([mdp.next_state[:, action], mdp.next_state[:, :n_moves]])
    chance = np.column_stack([1.0 - slip, *[slip / n_moves] * n_moves])
    followers = mdp.closed_state[arrived].reshape(mdp.n_states, -1)
    chances = (chance[:, :, np.newaxis] * mdp.closing_probability).reshape(mdp.n_states, -1)
    return [_merged(*row) for row in zip(followers.tolist(), chances.tolist(), strict=True)]


def _merged(followers: list[int], chances: list[float]) -> list[tuple[float, int, float, bool]]:
    total: dict[int, float] = {}
    for follower, chance in zip(followers, chances, strict=True):
        if chance > 0.0:
            total[follower] = total.get(follower, 0.0) + chance
    return [(total[follower], follower, 0.0, False) for follower in sorted(total)]
