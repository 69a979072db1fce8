from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tests.reporting.toy_kind import PNG

from gradleak.reporting.context import LARGEST_PICTURE, data_uri


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / "pictures").mkdir(parents=True)
    (run / "pictures" / "a.png").write_bytes(PNG)
    (tmp_path / "outside.png").write_bytes(PNG)
    return run


def test_a_picture_is_embedded_byte_for_byte(folder: Path) -> None:
    uri = data_uri(folder, "pictures/a.png")
    assert uri is not None
    head, _, content = uri.partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(content) == (folder / "pictures" / "a.png").read_bytes()


@pytest.mark.parametrize("name", ["../outside.png", "pictures", "missing.png", "", None, 3, "a\0b", "x" * 5000])
def test_what_does_not_lie_in_the_folder_is_not_shown(folder: Path, name: object) -> None:
    assert data_uri(folder, name) is None


def test_absolute_paths_links_and_other_files_are_not_shown(folder: Path) -> None:
    outside = folder.parent / "outside.png"
    assert data_uri(folder, str(outside)) is None
    (folder / "link.png").symlink_to(outside)
    assert data_uri(folder, "link.png") is None
    (folder / "text.png").write_text("<svg onload=alert(1)>")
    assert data_uri(folder, "text.png") is None
    (folder / "big.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(LARGEST_PICTURE))
    assert data_uri(folder, "big.png") is None


def test_a_record_without_file_has_no_pictures() -> None:
    assert data_uri(None, "pictures/a.png") is None
