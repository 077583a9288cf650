"""
Packaging.

Versions are ranges here, so that the package can be a dependency; constraints.txt pins the versions
that are tested.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$',
    (ROOT / "sb3_manygoals/__init__.py").read_text(encoding="utf-8"),
    re.M,
)
assert VERSION is not None, "sb3_manygoals/__init__.py has no __version__"

# Writes films.
FILM = ["pillow>=10.0"]
BENCHMARKS = [
    *FILM,
    # The study of worlds has Taxi-v4, and tests compare with its statistics of episodes.
    "gymnasium>=1.4",
    "jinja2>=3.1",
    "matplotlib>=3.7",
    # From 3.1 it needs pygame-ce, as RENDER does, in place of pygame.
    "minigrid>=3.1; python_version >= '3.11'",
    # rliable, which tests compare intervals with, needs pandas < 3.
    "pandas>=2.2,<3",
    "rich>=13.0",
    "tensorboard>=2.13",
    "tqdm>=4.65",
    "tyro>=0.9.5",
]
# Gymnasium takes its `pygame` module from pygame-ce, too. pygame itself, which has the same module
# name, cannot be installed beside it.
RENDER = ["pygame-ce>=2.5"]
ATARI = ["ale-py>=0.12.1", "lz4>=4.3"]
# The games are GPL-3: they are used, not included.
MINATAR = ["minatar>=1.0.15"]
HUB = ["sb3-team-hf-integration>=3.0"]
DOCS = ["furo", "myst-nb>=1.2", "myst-parser>=3.0", "sphinx>=7.0"]

setup(
    name="sb3-manygoals",
    version=VERSION.group(1),
    description=(
        "Many-goals reinforcement learning on Stable-Baselines3: "
        "learners, a visual world with an exact answer key"
    ),
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The sb3-manygoals maintainers",
    project_urls={"Paper": "https://arxiv.org/abs/1806.09605"},
    license="MIT",
    license_files=["LICENSE"],
    keywords=(
        "reinforcement-learning goal-conditioned multi-goal gymnasium stable-baselines3 "
        "universal-value-function"
    ),
    packages=find_packages(include=["gym_twoRooms*", "sb3_manygoals*"]),
    package_data={"gym_twoRooms": ["py.typed"], "sb3_manygoals": ["py.typed", "pretrained/*.npz"]},
    python_requires=">=3.10",
    install_requires=[
        # Stable-Baselines3 brings it anyway.
        "cloudpickle>=2.2",
        # torch brings it anyway.
        "filelock>=3.12",
        "gymnasium>=1.1,<2.0",
        "numpy>=1.26,<3.0",
        "psutil>=5.9",
        "scipy>=1.15",
        "stable-baselines3>=2.8,<3.0",
        "torch>=2.8,<3.0",
    ],
    extras_require={
        "atari": ATARI,
        "film": FILM,
        "hub": HUB,
        "minatar": MINATAR,
        "render": RENDER,
        "ray": ["ray>=2.40"],
        # Mazes of the command goals.
        "robotics": ["gymnasium-robotics>=1.3"],
        # Tests compare losses with its outputs; only to record these again is it needed. It brings
        # JAX and a nightly build of tfp.
        "rlax": ["rlax>=0.1.9; python_version >= '3.11'"],
        # RL Zoo's command line, which benchmarks.zoo extends.
        "zoo": ["rl_zoo3>=2.9"],
        "docs": [*ATARI, *DOCS, *MINATAR],
        "benchmarks": BENCHMARKS,
        # Tests compare bootstrap intervals with it.
        "reference": ["rliable>=1.2"],
        "dev": [
            *ATARI,
            *BENCHMARKS,
            *DOCS,
            *MINATAR,
            *RENDER,
            "build>=1.2",
            "hypothesis>=6.100",
            # They run docs/first_steps.ipynb.
            "ipykernel>=6.29",
            "mypy>=1.10",
            "nbclient>=0.10",
            "nbformat>=5.10",
            "opencv-python-headless>=4.9",
            "pytest>=8.0",
            "pytest-xdist>=3.5",
            "ruff>=0.6",
            "sb3-contrib>=2.8",
            "selenium>=4.20",
        ],
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: MIT License",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
