import pandas as pd
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.speed.planned import SIZES, PlannedConfig, floor, planned_model
from sb3_manygoals import PlannedTargets
from tests.benchmarks.command_line import printed


def test_updates_from_a_plan_are_measured_beside_their_floor(tmp_path):
    options = ("--rounds=1", "--seconds=0.01", "--steps=1600", "--threads=1")
    said = printed("speed-planned", *options, f"--output={tmp_path}")
    (folder,) = tmp_path.iterdir()
    raw = pd.read_csv(folder / "planned-1-threads.csv").set_index("contender")["value"]
    assert len(raw) == 2 * len(SIZES) + 1
    assert (raw > 0).all()
    assert "share of the floor's speed, 128 x 128" in said


def test_the_floor_has_all_matrix_products_of_an_update(monkeypatch):
    model = planned_model(1_600)
    assert isinstance(model.targets, PlannedTargets)
    assert model.targets.planned_at is not None
    step = floor(model, 8, 4)
    shapes = []
    product = type(model.policy.q_net.offset.data).mm

    def noting(left, right):
        shapes.append((*left.shape, right.shape[1]))
        return product(left, right)

    monkeypatch.setattr("torch.mm", noting)
    step()
    points = 8 * 5
    # Forward, the gradient of the weights, and that of the inputs, of each layer.
    assert shapes == [
        *[(12, 300, 512), (512, 12, 300)],
        *[(12, 512, 512), (512, 12, 512), (12, 512, 512)],
        *[(8, 512, 640), (640, 8, 512), (8, 640, 512)],
        *[(4, 512, 128), (128, 4, 512), (4, 128, 512)],
        *[(points, 128, 4), (points, 4, 128), (4, points, 128)],
    ]


def test_each_update_counts_once(monkeypatch):
    contenders = PlannedConfig(steps=1_600, seconds=0.0).contenders()
    updates = []
    hook = register_optimizer_step_post_hook(lambda *_: updates.append(0))
    # An update takes a second of this clock.
    monkeypatch.setattr("time.perf_counter", lambda: float(len(updates)))
    try:
        assert {contender() for contender in contenders.values()} == {1.0}
    finally:
        hook.remove()
    assert len(updates) == 5 * (len(SIZES) + 1) + len(SIZES)
