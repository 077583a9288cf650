"""Callbacks inside of callbacks."""

from collections.abc import Iterator

from stable_baselines3.common.callbacks import BaseCallback


def inner_callbacks(callback: BaseCallback) -> Iterator[BaseCallback]:
    """
    Yield a callback and all callbacks inside of it, in the order in which they are called.

    :param callback: any callback of SB3
    """
    yield callback
    inside = list(getattr(callback, "callbacks", ()))
    inside += [getattr(callback, name, None) for name in ("callback", "callback_on_new_best")]
    for one in inside:
        if isinstance(one, BaseCallback):
            yield from inner_callbacks(one)
