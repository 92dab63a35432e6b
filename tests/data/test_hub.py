"""Names of data sets of the hub: only what the hub has is fetched, and nothing is unpickled."""

from pathlib import Path

import pytest

from edgefl.data.given import PLAIN_READING
from edgefl.data.hub import read
from edgefl.errors import DataError

pytest.importorskip("datasets", reason="the extra data is not installed")


TOUCHES = b"cos\nmknod\n(S'ran'\ntR."
"""A pickle that makes the file ``ran`` when it is read."""


@pytest.mark.parametrize("name", ["pandas", "webdataset", "folder", "./folder", "/etc", "a/b/c", "a\\b", "..", "csv:x", "-x"])
def test_a_reader_or_a_folder_is_no_data_set_of_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for path in ("train.pkl", "folder/train.pkl", "train.csv"):
        Path(path).write_bytes(TOUCHES)
    with pytest.raises(DataError, match="is no data set of the hub, but a folder or a reader of files"):
        read(name, PLAIN_READING)
    assert not Path("ran").exists()
