"""Places: which rank a process is, by what its launcher has set."""

import pytest

from scoremode.engines.torch.ranks.places import Place, place_of
from scoremode.errors import UsageError

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
# Of SLURM 22.05, `srun --nodes 3 --ntasks 5`, its task 3.
SRUN = {
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[07-08,11]",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
}


def test_a_process_alone_has_no_place():
    assert place_of({}) is None
    assert place_of({"RANK": "1", "WORLD_SIZE": "2"}) is None
    one = {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    assert place_of(TORCHRUN | one) is None
    one = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    assert place_of(SRUN | one) is None
    # A batch script, which no srun has started.
    assert place_of({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}) is None


def test_torchrun_gives_one():
    key = "scoremode/0"
    here = Place(1, 2, "torchrun", local=1, here=2, port=29500, key=key)
    assert place_of(TORCHRUN) == here
    assert not here.spans_nodes and not here.starts_others and not here.is_first
    more = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "GROUP_RANK": "1"}
    far = Place(2, 4, "torchrun", 0, 2, node=1, host="node1", port=29500, key="scoremode/3")
    assert place_of(TORCHRUN | more | {"TORCHELASTIC_RESTART_COUNT": "3"}) == far
    assert far.spans_nodes and far.leads_node


def test_a_step_of_slurm_gives_one():
    port = 20_000 + (4711 * 31 + 2) % 10_000
    there = Place(3, 5, "srun", 1, 2, 1, host="gpu07", port=port, key="scoremode/4711.2")
    assert place_of(SRUN) == there
    chosen = place_of(SRUN | {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "7000"})
    assert chosen is not None and (chosen.host, chosen.port) == ("10.0.0.7", 7000)
    alone = place_of(SRUN | {"SLURM_STEP_TASKS_PER_NODE": "5", "SLURM_NODEID": "0"})
    assert alone is not None and alone.host == "127.0.0.1" and not alone.spans_nodes
    # torchrun within a step has the last word.
    both = place_of(SRUN | TORCHRUN)
    assert both is not None and both.launcher == "torchrun"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[07-08,11],login", "gpu07"),
        ("gpu[3,5-7]", "gpu3"),
        ("rack[2-3]n[01-16,20]", "rack2n01"),
        ("n[1-2]-ib,m1", "n1-ib"),
    ],
)
def test_the_first_node_of_a_list_is_rank_0s(nodes, first):
    place = place_of(SRUN | {"SLURM_STEP_NODELIST": nodes})
    assert place is not None and place.host == first


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"SLURM_PROCID": "0"}, "srun: task 0 is on the step's node 1"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x"}, "is no number: SLURM_STEP_TASKS_PER_NODE=2(x"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, "SLURM_STEP_TASKS_PER_NODE=2 for SLURM_NODEID=1"),
        ({"MASTER_PORT": "http"}, "is no number: invalid literal for int() with base 10: 'http'"),
    ],
)
def test_variables_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises(UsageError) as error:
        place_of(SRUN | wrong)
    assert message in str(error.value)


def test_a_missing_variable_is_named():
    without = {k: v for k, v in SRUN.items() if k != "SLURM_LOCALID"}
    with pytest.raises(UsageError, match="srun: the variable SLURM_LOCALID is not set"):
        place_of(without)
