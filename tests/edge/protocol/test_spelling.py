"""The valid name nearest to an unknown one."""

from __future__ import annotations

import pytest

from costmodel import units
from edge.protocol import spelling

MODELS = ["resnet18", "vgg9"]


@pytest.mark.parametrize("name", ["resnet-18", "ResNet18", "VGG9", "toaster"])
def test_the_cost_model_which_has_its_own_says_the_same(name: str) -> None:
    assert spelling.nearest(name, MODELS) == units.nearest(name, MODELS)


def test_one_is_proposed_only_if_it_is_near_enough() -> None:
    assert spelling.closest("learning_rat", ["learning_rate", "lr"]) == "learning_rate"
    assert spelling.closest("rate", ["learning_rate", "lr"], cutoff=0.7) is None


def test_a_name_of_which_it_is_a_part_comes_before_one_that_is_more_alike() -> None:
    assert spelling.closest("async", ["sync", "deadline", "fedasync", "fedbuff"]) == "fedasync"
    assert spelling.closest("prox", ["proxy", "fedprox"]) == "proxy"
    assert spelling.closest("snyc", ["sync", "fedasync"]) == "sync"
