"""
Writes the page.

It holds the world and the network as numbers. What the browser does with them is in ``script.js``.
"""

from __future__ import annotations

import base64
import copy
import gzip
import html
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, cast

import numpy as np
import torch as th
import tyro
from numpy.typing import NDArray
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from benchmarks.suite.spec import write_whole
from benchmarks.worlds import SettingError, World, building
from gym_twoRooms import TwoRoomsMDP, TwoRoomsSwitchEnv
from gym_twoRooms.mdp import COLOURS, THINGS
from sb3_manygoals import ManyGoalsDQN
from sb3_manygoals.networks import DistanceQNetwork, PaddedCNN, UniversalQNetwork

PARTS = Path(__file__).parent
"""Folder of the files of the page."""
FILES = ("page.html", "style.css", "model.js", "script.js")
"""Files of which the page is made, its template first."""
AGENTS = ("default", "td", "paper")
"""Agents of runs of mastery that the page can show."""
MOST_CELLS = 1_000
"""Most cells of a map. Beyond, the page would have hundreds of megabytes."""
MOST_STATES = 250_000
"""Most states of a map. Beyond, the page would have hundreds of megabytes."""
HEADS: dict[type[nn.Module], str] = {UniversalQNetwork: "bilinear", DistanceQNetwork: "distance"}
"""Networks that the page can compute, and what it calls their heads."""
ACTIVATIONS: dict[type[nn.Module], str] = {nn.GELU: "gelu", nn.ReLU: "relu"}
"""Activation functions that the page can compute, and what it calls them."""
AFFINE = (nn.Linear, nn.Conv2d, nn.ZeroPad2d, nn.Flatten, FlattenExtractor)
"""Layers that multiply by a matrix and add a bias. Consecutive ones become one."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class DemoConfig:
    """Write a page on which a visitor sets goals for the agent of a run."""

    folder: tyro.conf.Positional[Path]
    """Folder of a finished run of mastery in a TwoRoomsSwitch world. Its agent must be default, td
    or paper."""

    def run(self) -> Path:
        """
        Write the page.

        :return: the page
        :raises SettingError: if there can be no page of the run, see :func:`write`
        :raises LayoutError: if the run's map is not there
        """
        page = write(self.folder)
        print(f"open {page}")
        return page


def write(folder: Path) -> Path:
    """
    Write ``demo.html``, one file that opens without a network connection, into a run's folder.

    :param folder: the folder of a run of mastery
    :return: the page
    :raises SettingError: if it is another folder, or the page cannot show this world, agent or
        network
    :raises LayoutError: if the run's map is not there
    """
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))["settings"]
        agent = settings["agent"]
        world = World(settings["env_id"], settings["map"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(
            f"folder must be that of a run of mastery, got {folder}: {error!r}"
        ) from error
    if not world.is_two_rooms:
        raise SettingError(
            f"folder must be of a run in a TwoRoomsSwitch world, got {folder}, a run in {world.id}"
        )
    if agent not in AGENTS:
        raise SettingError(
            f"folder must be of a run of one of the agents {', '.join(AGENTS)}, got {folder}, "
            f"a run of {agent}"
        )
    if not (folder / "model.zip").is_file():
        raise SettingError(
            f"folder must be of a finished run, got {folder}, which has no model.zip"
        )
    with building(f"a page of {folder / 'model.zip'}"):
        model = ManyGoalsDQN.load(folder / "model.zip", device="cpu")
    mdp = cast("TwoRoomsSwitchEnv", world.make().unwrapped).mdp
    page = folder / "demo.html"
    write_whole(page, render(model, mdp))
    return page


def render(model: ManyGoalsDQN, mdp: TwoRoomsMDP) -> str:
    """
    Make the page of a model trained in a world.

    :param model: a learner with one of the networks of :data:`HEADS`
    :param mdp: the world, with its map
    :return: HTML
    :raises SettingError: if the model is of another world, or cannot be shown
    """
    layout = mdp.layout
    seen = model.observation_space["observation"].shape
    shown = (layout.height, layout.width, 3)
    if seen != shown:
        raise SettingError(
            f"the model must observe pictures of shape {shown}, as the map of the run has, "
            f"got {seen}"
        )
    if layout.height * layout.width > MOST_CELLS or mdp.n_states > MOST_STATES:
        most = f"{MOST_CELLS} cells and {MOST_STATES} states"
        raise SettingError(
            f"the page shows maps of at most {most}, got {shown[:2]} and {mdp.n_states} states"
        )
    policy = model.policy
    network, weights = _network(policy.q_net if policy.q_net_ema is None else policy.q_net_ema)
    index, packed = _packed(_tables(mdp) | weights)
    known = {
        "rows": layout.rows,
        "colours": dict(COLOURS),
        "things": dict(THINGS),
        "doors": [[row * layout.width + column for row, column in cells] for cells in layout.doors],
        "slip": mdp.slip_probability,
        "closing": mdp.closing_probability.tolist(),
        "arrays": index,
    }
    rewards = {name: getattr(model, name) for name in ("gamma", "step_reward", "goal_reward")}
    blocks = {0: "", 1: " and the block"}.get(len(layout.blocks), " and the blocks")
    doors = {0: "", 1: ", click the door"}.get(len(layout.doors), ", click the doors")
    parts = {name.partition(".")[0]: (PARTS / name).read_text(encoding="utf-8") for name in FILES}
    return Template(parts.pop("page")).substitute(
        parts,
        name=html.escape(layout.name),
        goals=f"{mdp.n_states:,}",
        how=f"drag the agent{blocks}{doors}",
        known=json.dumps(known | network | rewards).replace("<", "\\u003c"),
        arrays=packed,
    )


def _tables(mdp: TwoRoomsMDP) -> Arrays:
    """Return the tables by which the page steps the world."""
    whole = np.uint16 if mdp.n_states <= 2**16 else np.uint32
    names = ("agent", "blocks", "slips", "next_state", "closed_state")
    tables = {name: getattr(mdp, name) for name in names}
    tables["opened"] = mdp.doors_open @ (1 << np.arange(mdp.doors_open.shape[1]))
    return {name: table.astype(whole) for name, table in tables.items()}


def _network(network: UniversalQNetwork) -> tuple[dict[str, Any], Arrays]:
    """
    Return what the page must know of a network, and its weights.

    Most weights are in half precision.
    """
    preprocess, *modules = cast("Any", network.trunk)
    if type(network) not in HEADS or not preprocess.channels_last:
        kind = type(network).__name__
        raise SettingError(
            f"the page cannot compute a {kind} with channels_last={preprocess.channels_last}"
        )
    channels, height, width = preprocess.space.shape
    arrays: Arrays = {"mean": np.zeros((height, width, channels), np.float32)}
    arrays["scale"] = arrays["mean"] + 1
    if preprocess.standardize:
        for part in ("mean", "scale"):
            arrays[part] = getattr(preprocess, part).permute(1, 2, 0).numpy()

    def add(name: str, layers: list[nn.Module], units: th.Tensor) -> tuple[int, ...]:
        """
        Add some layers as one matrix, which is what they make of unit vectors, and a bias.

        :param name: what the page calls the layers
        :param layers: affine layers
        :param units: all unit vectors, in the shape of the first layer's input
        :return: the shape of the last layer's output
        """
        exact = copy.deepcopy(nn.Sequential(*layers)).double()
        with th.no_grad():
            bias = exact(th.zeros_like(units[:1]))
            matrix = (exact(units) - bias).flatten(1).T
        arrays[f"{name}.weight"] = matrix.half().numpy()
        arrays[f"{name}.bias"] = bias.half().numpy()
        return tuple(bias.shape[1:])

    activations: list[str] = []
    affine: list[nn.Module] = []
    units = _units((height, width, channels)).permute(0, 3, 1, 2)
    # The identity at the end makes a layer of the affine ones before it.
    for module in [*_layers(modules), nn.Identity()]:
        if isinstance(module, AFFINE):
            affine.append(module)
            continue
        name = {**ACTIVATIONS, nn.Identity: "none"}.get(type(module))
        is_first = name != "none" and not affine
        if name is None or is_first or getattr(module, "approximate", "none") != "none":
            raise SettingError(f"the page cannot compute networks with {module}")
        if affine:
            units = _units(add(f"layer{len(activations)}", affine, units))
            activations.append(name)
            affine = []
    add("state", [network.state_embedding], units)
    add("goal", [network.goal_embedding], units)
    if isinstance(network, DistanceQNetwork):
        arrays["head"] = th.stack([network.log_scale.exp(), network.offset]).detach().numpy()
    else:
        add("head", [network.head], _units((network.head.in_features,)))
    broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
    if broken:
        raise SettingError(
            "the page cannot compute networks whose weights are not finite in half precision: "
            f"{broken[0]}"
        )
    divisor = 255 if preprocess.normalize_images else 1
    return {"head": HEADS[type(network)], "activations": activations, "divisor": divisor}, arrays


def _units(shape: tuple[int, ...]) -> th.Tensor:
    """Return all unit vectors, in that shape."""
    return th.eye(int(np.prod(shape)), dtype=th.float64).view(-1, *shape)


def _layers(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return single layers, in the order in which they compute."""
    found: list[nn.Module] = []
    for module in modules:
        inner = module.net if type(module) is PaddedCNN else module
        found += _layers(inner) if type(inner) is nn.Sequential else [module]
    return found


def _packed(arrays: Arrays) -> tuple[dict[str, list[Any]], str]:
    """Return where each array is (type, first byte, length), and the bytes of all in base64."""
    index: dict[str, list[Any]] = {}
    content = bytearray()
    for name, array in arrays.items():
        index[name] = [array.dtype.name, len(content), array.size]
        content += array.astype(array.dtype.newbyteorder("<")).tobytes()
    return index, base64.b64encode(gzip.compress(bytes(content), mtime=0)).decode()
