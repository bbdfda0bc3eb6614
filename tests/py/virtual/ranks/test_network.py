"""How long collectives take, and what NCCL takes of a GPU. Needs no torch."""

import pytest
from modscope._cli.options import one_size, several_sizes
from modscope._virtual.gpus import find_gpu
from modscope._virtual.ranks.network import communicator_bytes, seconds
from modscope._virtual.ranks.options import environment

GIB = 1 << 30
H100 = find_gpu("h100")


def test_an_all_reduce_in_a_node_passes_the_data_twice_over_nvlink() -> None:
    expected = 2 * 7 / 8 * GIB / (0.75 * 450e9)
    assert seconds(H100, "all_reduce", GIB, range(8), 8) == pytest.approx(expected, rel=0.05)
    assert seconds(H100, "all_gather", GIB, range(8), 8) == pytest.approx(expected / 2, rel=0.05)


def test_between_nodes_the_adapters_of_a_node_work_together() -> None:
    whole_nodes = seconds(H100, "all_gather", GIB, range(16), 8)
    one_of_each = seconds(H100, "all_gather", GIB, range(0, 128, 8), 8)
    assert whole_nodes == pytest.approx(15 / 16 * GIB / (0.75 * 400e9), rel=0.05)
    assert one_of_each == pytest.approx(15 / 16 * GIB / (0.75 * 50e9), rel=0.05)


def test_more_ranks_take_longer_but_not_for_one() -> None:
    assert seconds(H100, "all_gather", GIB, [3], 8) == 0
    assert seconds(H100, "all_gather", 0, range(8), 8) < seconds(H100, "all_gather", 0, range(64), 8)


def test_gpus_without_nvlink_use_the_link_to_the_host() -> None:
    assert seconds(find_gpu("rtx4090"), "all_gather", GIB, range(2), 8) == pytest.approx(
        GIB / 2 / (0.75 * 32e9), rel=0.05
    )


def test_a_communicator_of_one_rank_takes_nothing() -> None:
    assert communicator_bytes(1) == 0
    assert 0 < communicator_bytes(2) < communicator_bytes(3) == communicator_bytes(1024)


def test_the_environment_is_that_of_torchrun() -> None:
    variables = environment(19, 64, 8)
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["LOCAL_RANK"], variables["LOCAL_WORLD_SIZE"]) == (
        "19",
        "64",
        "3",
        "8",
    )
    assert (variables["GROUP_RANK"], variables["GROUP_WORLD_SIZE"], variables["MASTER_ADDR"]) == ("2", "8", "localhost")
    assert environment(0, 4, 8)["LOCAL_WORLD_SIZE"] == "4"


def test_numbers_of_ranks_are_parsed() -> None:
    assert several_sizes("8, 16,8") == [8, 16]
    for text in ("", "0", "8,", "x", "-1", "1e3"):
        with pytest.raises(Exception, match="is not a number of ranks"):
            several_sizes(text)
    for parse in (one_size, several_sizes):
        assert parse("131072") == [131072]
        with pytest.raises(Exception, match="^1000000 ranks are too many: give 131072 or fewer$"):
            parse("1000000")
