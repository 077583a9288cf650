"""A window on the screen, by pygame, which is imported when the first picture is shown."""

from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray


class Window:
    """
    Shows one picture after another. It opens with the first; a person may close it, and then it stays closed.

    pygame has one window per process: if several are open, they share it, and it shows the last picture of any. Pressed keys
    stay in pygame's queue, for whoever wants to read them.

    :param title: What is written above it
    """

    _last: ClassVar["Window | None"] = None
    """Whose picture is on the screen."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.dismissed = False
        """Whether a person has closed it."""
        self._clock: Any = None

    def __reduce__(self) -> tuple[type["Window"], tuple[str]]:
        return type(self), (self.title,)  # Copies and pickles have no window open, as there is no second one.

    def show(self, picture: NDArray[np.uint8], fps: float) -> None:
        """
        Show a picture, after waiting until the one before was there for long enough. Nothing happens once it is dismissed.

        :param picture: What to show, (H, W, 3) uint8
        :param fps: Pictures per second
        :raises DependencyNotInstalled: If there is no pygame
        """
        if self.dismissed:
            return
        pygame = import_pygame()
        size = picture.shape[1], picture.shape[0]
        screen = pygame.display.get_surface()
        if Window._last is not self or screen is None or screen.get_size() != size:
            screen = pygame.display.set_mode(size)
            pygame.display.set_caption(self.title)
            Window._last = self
        pygame.surfarray.blit_array(screen, picture.swapaxes(0, 1))
        self._clock = self._clock or pygame.time.Clock()
        self._clock.tick(fps)
        pygame.display.flip()
        # All but the keys are taken out: a full queue would lose the event that closes the window.
        events = pygame.event.get(exclude=(pygame.KEYDOWN, pygame.KEYUP))
        if any(event.type == pygame.QUIT for event in events):
            self.close()
            self.dismissed = True

    def close(self) -> None:
        """Take it off the screen, if it is there; the next picture opens it again, also after it was dismissed."""
        self.dismissed = False
        if Window._last is self:
            Window._last = None
            import_pygame().display.quit()


def import_pygame() -> ModuleType:
    """
    :return: pygame, imported if it was not yet
    :raises DependencyNotInstalled: If there is none
    """
    try:
        import pygame
    except ImportError as error:
        raise DependencyNotInstalled(
            'Pictures on the screen need pygame: run `pip install "sb3-manygoals[render]"` or `pip install pygame-ce`.'
        ) from error
    return pygame
