import ast
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import sb3_manygoals
from tests import ROOT

PACKAGES = ("gym_twoRooms", "sb3_manygoals")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this project, built once."""
    # It is built from a copy: setuptools builds beside the sources, where two processes would be in
    # each other's way.
    folder = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in (*PACKAGES, "benchmarks", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    build += ["--outdir", str(folder), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_holds_the_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == set(PACKAGES)
    files = {"gym_twoRooms/py.typed", "sb3_manygoals/py.typed"}
    files.add("sb3_manygoals/pretrained/TwoRoomsSwitch-v0.npz")
    for package in PACKAGES:
        files |= {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
    assert files <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_works_from_another_folder(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import gymnasium as gym, gym_twoRooms, sb3_manygoals; "
        "assert gym_twoRooms.__file__.startswith(__import__('sys').argv[1]); "
        "assert sb3_manygoals.__file__.startswith(__import__('sys').argv[1]); "
        "gym.make('TwoRoomsSwitch-v0').reset(seed=0); print(sb3_manygoals.__version__)"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "site")]
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": ""}
    done = subprocess.run(
        run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == sb3_manygoals.__version__


def test_the_wheel_requires_what_the_packages_import(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    lines = archive.read(name).decode().splitlines()
    wanted = [
        line.split(": ")[1]
        for line in lines
        if line.startswith("Requires-Dist") and "extra" not in line
    ]
    required = {re.match(r"[\w.-]+", line)[0] for line in wanted}
    foreign = {module for folder in PACKAGES for _, module in imports(folder)}
    foreign -= {*PACKAGES, *sys.stdlib_module_names}
    # These are of the extras "render", "atari", "minatar", "hub" and "film".
    extras = {"pygame", "ale-py", "lz4", "minatar", "huggingface-sb3", "yaml", "PIL"}
    assert {module.replace("_", "-") for module in foreign} - extras == required


def imports(folder):
    """Yield the modules of a package, and the package of each module that they import."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name.split(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield path, (node.module or "").split(".")[0]


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("gym_twoRooms", {"sb3_manygoals", "benchmarks", "stable_baselines3", "torch"}),
        ("sb3_manygoals", {"gym_twoRooms", "benchmarks"}),
    ],
)
def test_imports_point_one_way(folder, forbidden):
    assert [(path.name, name) for path, name in imports(folder) if name in forbidden] == []
