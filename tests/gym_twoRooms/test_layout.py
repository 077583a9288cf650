import pytest

from gym_twoRooms.layout import NAMED_LAYOUTS, Layout, LayoutError, as_layout


def test_what_may_be_given_as_a_layout():
    for name, layout in NAMED_LAYOUTS.items():
        assert as_layout(layout) is as_layout(name) is layout
        assert as_layout(str(layout)) == layout
    assert Layout.parse("\n\n    S.D.S  \n    .....\n   \n").rows == ("S.D.S", ".....")
    assert Layout(["...", "..."]) == Layout(("...", "..."))
    assert Layout.parse("S..D.S").doors == (((0, 3),),)


def test_several_doors_switches_and_blocks():
    layout = Layout.parse("S...U\nDD#F#\n..S.U\n.....\n.B.B.\n.....")
    assert layout.doors == (((1, 0), (1, 1)), ((1, 3),))
    assert layout.switches == (((0, 0), (2, 2)), ((0, 4), (2, 4)))
    region = tuple((row, column) for row in (3, 4) for column in (1, 2, 3))
    assert (layout.blocks, layout.block_regions) == (((4, 1), (4, 3)), (region, region))
    assert Layout.parse("...#...\n.B.#.B.\n....... ").block_regions == (((1, 1),), ((1, 5),))
    assert Layout.parse("..\n..").block_regions == Layout.parse("..\n..").doors == ()


BAD_MAPS = {
    "not a string": (7, "must be a string, got int"),
    "unknown": (
        "huge",
        "no layout named 'huge'; the named ones are paper, small, locks, warehouse, mansion",
    ),
    "empty": (" \n\n ", "map is empty"),
    "empty row": ("", "map is empty"),
    "one row without a switch": ("..D..", "door D at row 0, column 2 .* can never open"),
    "ragged": ("...\n..", r"Row 1 \(counted from 0\) has 2 cells where row 0 has 3"),
    "unknown symbol": ("...\n.x.", r"Unknown symbol 'x' at row 1, column 1 \(counted from 0\)"),
    "block beside a wall": (
        "....\n.B#.\n....",
        "block at row 1, column 1 .* touches a wall, a door or the edge",
    ),
    "block beside the door": ("S...\n.B..\n#D##\n.S..", "block at row 1, column 1 .* touches"),
    "block at the edge": (".B.\n...", "block at row 0, column 1 .* touches"),
    "door without switch": (
        "..D..\n.....",
        "door D at row 0, column 2 .* can never open: the map has no switch S",
    ),
    "door with another's switch": (
        "S.D.SF\n......",
        "door F at row 0, column 5 .* can never open: the map has no switch U",
    ),
    "switch without door": (
        "..S..\n.....",
        "switch S at row 0, column 2 .* nothing to do: the map has no door D",
    ),
    "too few free cells": ("##\n#.", "has 1 free cells"),
}


@pytest.mark.parametrize(("text", "message"), BAD_MAPS.values(), ids=BAD_MAPS.keys())
def test_bad_maps_are_refused(text, message):
    with pytest.raises(LayoutError, match=message):
        as_layout(text)


def test_a_map_of_one_row_is_itself_in_a_string():
    layout = Layout.parse("S.D.S")
    assert as_layout(str(layout)) == layout
    assert as_layout(f" {layout} ") == layout


def test_rows_may_be_read_from_anything_once():
    assert Layout(row.strip() for row in [" S.D.S\n"]) == Layout.parse("S.D.S")


@pytest.mark.parametrize("rows", ["S.D.S", ["..", 5], None, [[".", "."], [".", "."]]])
def test_rows_that_are_no_strings_are_refused(rows):
    with pytest.raises(LayoutError, match="rows must be strings, one for each row of the map, got"):
        Layout(rows)


def test_a_map_can_be_read_from_a_file(tmp_path):
    path = tmp_path / "corridor.txt"
    path.write_text("\n  S.D.S\n", encoding="utf-8-sig")
    layout = Layout.read(path)
    assert (layout.rows, layout.name) == (("S.D.S",), "corridor")
    path.write_text("..D..", encoding="utf-8")
    with pytest.raises(LayoutError, match=r"corridor\.txt: The door D at row 0, column 2"):
        Layout.read(str(path))
    path.write_bytes("S.D.S".encode("utf-16"))
    with pytest.raises(LayoutError, match=r"corridor\.txt: 'utf-8' codec can't decode"):
        Layout.read(path)
    with pytest.raises(FileNotFoundError):
        Layout.read(tmp_path / "nowhere.txt")
