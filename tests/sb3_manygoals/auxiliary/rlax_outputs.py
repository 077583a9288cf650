"""
Record outputs of rlax for ``test_losses.py``.

To record them again, run ``pip install -e ".[rlax]"`` and then this file.
"""

from pathlib import Path

import numpy as np

RECORDED = Path(__file__).with_suffix(".npz")


def record() -> dict[str, np.ndarray]:
    """Return random inputs, and rlax's outputs for them, by name."""
    import rlax

    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    found = {
        "q": normal(4, 5, 6),
        "next_q": normal(4, 5, 6),
        "actions": rng.integers(6, size=(4, 5)),
    }
    found["achieved"] = rng.random((4, 5)) < 0.3
    found["many_goals"] = np.zeros((4, 5), np.float32)
    for index in np.ndindex(4, 5):
        reward, discount = (0.0, 0.0) if found["achieved"][index] else (-0.1, 0.99)
        error = rlax.q_learning(
            found["q"][index],
            int(found["actions"][index]),
            reward,
            discount,
            found["next_q"][index],
        )
        found["many_goals"][index] = error**2

    images = normal(2, 6, 2, 10, 11)
    cells_q = normal(2, 6, 3, 2, 2)
    pixel_actions = rng.integers(3, size=(2, 5))
    found |= {"images": images, "cells_q": cells_q, "pixel_actions": pixel_actions}
    # The 8 x 8 pixels in the middle have two cells of 4 pixels on each side.
    cropped = images[..., 1:9, 1:9].transpose(0, 1, 3, 4, 2)
    found["changes"] = np.stack([rlax.pixel_control_rewards(one, 4) for one in cropped])
    values = cells_q.transpose(0, 1, 3, 4, 2)
    losses = [
        rlax.pixel_control_loss(*one, 0.9, 4)
        for one in zip(cropped, pixel_actions, values, strict=True)
    ]
    found["pixel_control"] = np.stack(losses).sum(axis=(2, 3))

    found |= {"logits": normal(9, 3), "classes": rng.integers(3, size=9)}
    labels = np.eye(3, dtype=np.float32)[found["classes"]]
    found["cross_entropy"] = [
        rlax.categorical_cross_entropy(*one) for one in zip(labels, found["logits"], strict=True)
    ]
    return {name: np.asarray(array) for name, array in found.items()}


if __name__ == "__main__":
    np.savez_compressed(RECORDED, **record())
