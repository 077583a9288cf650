"""
What checkpoints know of other packages: one entry a package.

The other modules of ``checkpoint`` deal with environments, wrappers and plain data in general.
Where the classes of a package need a rule of their own, it stands in that package's
:class:`Package`. One's own classes need no entry here: they have the methods
``get_checkpoint_state()`` and ``set_checkpoint_state(state)``, or the attribute
``checkpoint_shared``. :mod:`sb3_manygoals.checkpoint.envs` describes both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space
from gymnasium.utils import EzPickle, RecordConstructorArgs
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.utils import RunningMeanStd as GymnasiumRunningMeanStd
from stable_baselines3.common.monitor import ResultsWriter
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations


@dataclass(frozen=True)
class Package:
    """
    The rules for the classes of one package.

    :param environments: base classes of its environments and their wrappers; default: none
    :param refused: classes of environments that cannot be saved, with advice what to use instead;
        default: none
    :param parts: classes of objects that environments own. Such an object is kept, and its
        attributes are restored as those of environments are; default: none
    :param constants: classes of objects that never change, so that nothing of them is saved;
        default: none
    :param left_out: by class, the attributes of its objects that are no part of the state;
        default: none
    :param info_lists: names of attributes that hold lists of infos. What cannot be saved of an info
        is left out with a warning; default: none
    :param plain_modules: beginnings of the names of modules. The state of an object of a class in
        them is its attributes and nothing else, so that it can be made anew; default: none
    :param picture_modules: beginnings of the names of environments' modules, and for each the
        beginning of the name of a module. Such environments need its objects only to draw, so these
        are not saved; default: none
    """

    environments: tuple[type, ...] = ()
    refused: Mapping[type, str] = field(default_factory=dict)
    parts: tuple[type, ...] = ()
    constants: tuple[type, ...] = ()
    left_out: Mapping[type, frozenset[str]] = field(default_factory=dict)
    info_lists: frozenset[str] = frozenset()
    plain_modules: tuple[str, ...] = ()
    picture_modules: Mapping[str, str] = field(default_factory=dict)


GYMNASIUM = Package(
    environments=(gym.Env, VectorEnv),
    refused={AsyncVectorEnv: "use a SyncVectorEnv, or SB3's SubprocVecEnv of StatefulEnvs"},
    parts=(Space, GymnasiumRunningMeanStd),
    constants=(EnvSpec,),
    left_out={
        # The arguments of constructors are there to build the same environment again.
        RecordConstructorArgs: frozenset({"_saved_kwargs"}),
        EzPickle: frozenset({"_ezpickle_args", "_ezpickle_kwargs"}),
        # The functions that made the environments are never called again.
        SyncVectorEnv: frozenset({"env_fns"}),
    },
)

# Gymnasium's classic control draws with pygame, and draws anew when a picture is asked for.
CLASSIC_CONTROL = Package(picture_modules={"gymnasium.envs.": "pygame"})

# The things in a grid have no state but their attributes. MiniGrid need not be installed.
MINIGRID = Package(plain_modules=("minigrid.",))

STABLE_BASELINES3 = Package(
    environments=(VecEnv,),
    parts=(RunningMeanStd, StackedObservations),
    # Rows go to the results file with which the new Monitor was built.
    constants=(ResultsWriter,),
    left_out={
        # Each step writes these infos before it reads them.
        DummyVecEnv: frozenset({"buf_infos"}),
        # The environments in other processes are asked in checkpoint.subproc_vec_env.
        SubprocVecEnv: frozenset({"remotes", "work_remotes", "processes"}),
        # The members of the wrapper's own class, by name.
        VecEnvWrapper: frozenset({"class_attributes"}),
    },
    info_lists=frozenset({"reset_infos"}),
)

# ALE has no entry. AtariEnv owns an ALEInterface, which does not save the screen. It is refused as
# any foreign object is, and AtariVecEnv has a checkpoint state of its own.

PACKAGES = (GYMNASIUM, CLASSIC_CONTROL, MINIGRID, STABLE_BASELINES3)

ENVIRONMENTS = tuple(kind for package in PACKAGES for kind in package.environments)
"""Base classes of environments and their wrappers."""
PARTS = tuple(kind for package in PACKAGES for kind in package.parts)
"""Classes of objects that environments own, and that are restored as environments are."""
CONSTANTS = tuple(kind for package in PACKAGES for kind in package.constants)
"""Classes of objects that never change."""


def is_environment(value: Any) -> bool:
    """
    Return whether a value is an environment, or a wrapper of one.

    :param value: any object
    :return: True for an environment of Gymnasium or SB3, one or many in one
    """
    return isinstance(value, ENVIRONMENTS)


def is_space(value: Any) -> bool:
    """
    Return whether a value is one of Gymnasium's spaces.

    :param value: any object
    :return: True for a space
    """
    return isinstance(value, Space)


def is_plain_object(value: Any) -> bool:
    """
    Return whether the state of an object is its attributes and nothing else.

    :param value: any object
    :return: True for an object of a class in ``plain_modules`` of a package, unless it is an
        environment or a space
    """
    return is_plain_module(type(value).__module__) and not isinstance(value, (*ENVIRONMENTS, Space))


def is_plain_module(name: str) -> bool:
    """
    Return whether a checkpoint may hold objects of the classes in a module.

    :param name: full name of the module, such as "minigrid.core.world_object"
    :return: True if a package has the module among its ``plain_modules``
    """
    return any(name.startswith(package.plain_modules) for package in PACKAGES)


def is_picture_object(value: Any, owner: Any) -> bool:
    """
    Return whether an environment needs an object only to draw.

    :param value: the object
    :param owner: the environment in whose attributes the object is
    :return: True if it belongs to the ``picture_modules`` of a package
    """
    return any(
        type(owner).__module__.startswith(environments)
        and type(value).__module__.startswith(drawing)
        for package in PACKAGES
        for environments, drawing in package.picture_modules.items()
    )


def is_info_list(attribute: str) -> bool:
    """
    Return whether an attribute of an environment holds a list of infos.

    :param attribute: its name
    :return: True if a package has it among its ``info_lists``
    """
    return any(attribute in package.info_lists for package in PACKAGES)


def left_out_attributes(owner: Any) -> set[str]:
    """
    Return the attributes of an object that are no part of its state.

    :param owner: an environment, a wrapper or a part of one
    :return: their names
    """
    names: set[str] = set()
    for package in PACKAGES:
        for kind, attributes in package.left_out.items():
            if isinstance(owner, kind):
                names |= attributes
    return names


def refusal_of_environment(env: Any) -> str:
    """
    Return advice for an environment of a class that cannot be saved.

    :param env: any environment
    :return: what to use instead; "" if its class is not refused
    """
    for package in PACKAGES:
        for kind, advice in package.refused.items():
            if isinstance(env, kind):
                return advice
    return ""
