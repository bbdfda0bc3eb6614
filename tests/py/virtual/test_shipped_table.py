"""The table of measurements that comes with modscope."""

from __future__ import annotations

from modscope._virtual.time import SHIPPED_TABLES, table, table_path


def test_each_shipped_table_can_be_read() -> None:
    for name in SHIPPED_TABLES:
        loaded = table.load(table_path(name))
        assert loaded.about["capability"] == [9, 0] and len(loaded) > 5_000


def test_a_file_of_the_same_name_is_preferred(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h200").touch()
    assert table_path("h200") == str(tmp_path / "h200")
