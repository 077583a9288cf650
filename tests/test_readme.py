import re
import time

import pytest

from tests import ROOT

SHORTER = {
    "README.md": {"model.learn(5e5)": "model.learn(60)"},
    "docs/checkpoints.md": {"2_000": "200"},
    "docs/guide.md": {
        f"learn({n}": "learn(200"
        for n in ("50_000", "60_000", "30_000", "10_000", "4_000", "2_000")
    }
    | {
        "learn(20_000": "learn(600",
        "range(20_000)": "range(500)",
        "    60_000,": "    1_000,",
        "eval_freq=15_000": "eval_freq=500",
        "worlds, goals)": "worlds, goals, max_steps=20)",
        "mdp, 200)": "mdp, 20)",
        "episodes_per_goal=10": "max_steps=20",
        '"Assault", 16': '"Assault", 4',
        'SuiteConfig(Path("runs/mine"))': 'SuiteConfig(Path("runs/mine"), dry_run=True)',
    },
    "docs/scale_out.md": {
        ', "ben": "benchmarks.charging:Charging-v0"': "",
        "200_000": "200",
        '"command": "mastery"': (
            '"command": "mastery", "most_goals": 5, "eval_freq": 1_600, "eval_steps": 30, '
            '"final_episodes": 1'
        ),
        'engine="ray", address="192.168.1.1:6379", workers=16': "retries=0",
    },
}
"""Numbers on pages, and smaller ones, so that their code takes seconds."""


def blocks(page):
    """Return the blocks of Python on a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)


@pytest.mark.parametrize("page", SHORTER)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    """All blocks of Python run one after the other, as for a reader, with less training."""
    if page == "docs/guide.md":
        pytest.importorskip("minigrid")
        pytest.importorskip("ale_py")
    code = "\n".join(blocks(page))
    for long, short in SHORTER[page].items():
        assert long in code
        code = code.replace(long, short)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {})
    if "ExactCheckpointCallback(" in code:
        assert list((tmp_path / "run" / "checkpoints").iterdir())
    if page == "README.md":
        rate = float(capsys.readouterr().out.split()[0])
        assert 0.0 <= rate <= 1.0
        assert (tmp_path / "model" / "model.zip").is_file()
    if page == "docs/scale_out.md":
        assert capsys.readouterr().out.splitlines()[-1] == "{}"


def test_fifteen_lines_of_the_guide_make_an_agent_that_masters_a_world_of_minigrid(capsys):
    pytest.importorskip("minigrid")
    (code,) = [block for block in blocks("docs/guide.md") if "MiniGrid-Empty-8x8-v0" in block]
    assert len([line for line in code.splitlines() if line]) <= 15
    began = time.process_time()
    exec(compile(code, "docs/guide.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0.99
    assert time.process_time() - began < 5 * 60
