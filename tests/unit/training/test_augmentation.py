from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.nn.functional import pad

from securefl.training.augmentation import Augmented

SEED = 3


@pytest.mark.parametrize("flips", [False, True])
def test_each_record_is_cropped_at_a_place_of_its_own(flips: bool) -> None:
    """16,200 crops: a place has 200 on average, and 110 are six deviations below.

    A flip has the share 0.5 to 0.02, which are five deviations. The seed is fixed.
    """
    image = torch.arange(1.0, 161.0).view(1, 2, 10, 8)
    around = pad(image, (4, 4, 4, 4))[0]
    places = {}
    for top in range(9):
        for left in range(9):
            crop = around[:, top : top + 10, left : left + 8]
            places[crop.numpy().tobytes()] = (top, left, False)
            places[crop.flip(2).contiguous().numpy().tobytes()] = (top, left, True)
    assert len(places) == 162
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        crops = Augmented(flips)(image.expand(16_200, -1, -1, -1))
    seen = [places[crop.contiguous().numpy().tobytes()] for crop in crops]
    count = Counter(place[:2] for place in seen)
    assert len(count) == 81
    assert min(count.values()) > 110
    flipped = sum(place[2] for place in seen) / len(seen)
    assert abs(flipped - 0.5) < 0.02 if flips else flipped == 0


def test_evaluation_sees_images_as_they_are() -> None:
    image = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(SEED))
    assert Augmented(flips=True).eval()(image) is image
