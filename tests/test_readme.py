import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHORTER = {
    "README.md": {"model.learn(3e6, progress_bar=True)": "model.learn(60)", "model.learn(2e6, ": "model.learn(40, "},
    "docs/checkpoints.md": {"2_000": "200"},
}


@pytest.mark.parametrize("page", SHORTER)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    """All Python of it, one block after the other as a reader would, with less training."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S))
    for long, short in SHORTER[page].items():
        assert code.count(long) == 1
        code = code.replace(long, short)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {})
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    if page == "README.md":
        rate = float(capsys.readouterr().out.split()[0])
        assert 0.0 <= rate <= 1.0
        assert (tmp_path / "model.zip").is_file()
