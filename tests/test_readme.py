import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_code_runs(tmp_path, monkeypatch, capsys):
    """All Python of the README, one after the other as a reader would, with less training."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S))
    shortened = code.replace("model.learn(3e6, progress_bar=True)", "model.learn(60)")
    assert shortened != code
    monkeypatch.chdir(tmp_path)
    exec(compile(shortened, str(README), "exec"), {})
    rate = float(capsys.readouterr().out.split()[0])
    assert 0.0 <= rate <= 1.0
    assert (tmp_path / "model.zip").is_file()
