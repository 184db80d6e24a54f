"""What tables share: no pattern stands for two things."""

from scoremode.checkpoint.gguf.architectures import ARCHITECTURES


def test_no_two_tensors_are_one_of_the_librarys():
    for name, table in ARCHITECTURES.items():
        assert len(set(table.names.values())) == len(table.names), name
        assert set(table.layouts) <= set(table.names), name
