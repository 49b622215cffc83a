"""How processes talk, in a team of one; `test_lost_ranks.py` has several."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

from wellcond.errors import LostRank
from wellcond.problem.ranks import team as teams
from wellcond.problem.ranks.team import Team

pytestmark = pytest.mark.usefixtures("process_group")


def test_messages_and_tensors_come_back_as_they_were() -> None:
    team = Team(distributed.group.WORLD, "a test")
    team.meet("a call")
    assert team.leads
    assert team.tell({"a": [1, None]}) == {"a": [1, None]}
    assert team.everyone("here") == ["here"]
    assert team.hand_out([(1, 2)]) == (1, 2)
    tensors = [torch.ones(2, 3), torch.arange(4), torch.zeros((), dtype=torch.float64)]
    for returned in (team.share(tensors), team.add(tensors)):
        for tensor, other in zip(returned, tensors, strict=True):
            assert tensor.dtype == other.dtype
            assert torch.equal(tensor, other)


def test_a_team_that_was_left_refuses_and_the_next_problem_has_another() -> None:
    team = Team.of(distributed.group.WORLD, "a test")
    assert Team.of(distributed.group.WORLD, "a test") is team
    team.leave()
    for call in (team.tell, lambda: team.meet("a call")):
        with pytest.raises(LostRank, match="this process has left"):
            call()
    assert Team.of(distributed.group.WORLD, "a test") is not team


def test_at_the_end_of_a_process_all_connections_are_closed() -> None:
    """Threads of gloo that outlive Python abort it."""
    of_problem, of_recorder = Team.of(distributed.group.WORLD, "Problem"), Team(distributed.group.WORLD, "Recorder")
    teams._leave_all()
    assert of_problem.is_lost
    assert of_recorder.is_lost
