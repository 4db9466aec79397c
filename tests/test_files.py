"""Files that are there whole or not at all, and nobody else's that go missing on the way."""

import pytest

from regard.files import alone, drafted, write_text
from regard.schema import InputError, RegardError


def test_what_is_called_like_a_draft_is_somebodys_own(tmp_path):
    """--out git must not take .git, nor --out venv .venv; neither when writing fails."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("mine")
    (tmp_path / ".env").write_text("mine")
    write_text(tmp_path / "env", "theirs")
    with drafted(tmp_path / "git") as draft:
        draft.mkdir()
        (draft / "a").write_text("theirs")
    with pytest.raises(RegardError, match="what was there before is intact"), drafted(tmp_path / "env"):
        raise OSError(28, "No space left on device")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".env", ".git", "env", "git"]
    assert (tmp_path / ".git" / "HEAD").read_text() == (tmp_path / ".env").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: cannot be a folder"), alone(tmp_path / "file" / "run"):
        pass
