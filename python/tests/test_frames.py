"""pandas, pyarrow and zarr read and write files of a region."""

import pytest

import pramfs

from conftest import needs

fsspec = needs("fsspec")
np = needs("numpy")


@pytest.fixture
def url(region):
    """The URL of a region, which is closed at the end."""
    yield f"pramfs://{region}!"
    fsspec.core.url_to_fs(f"pramfs://{region}!/")[0].close()
    with pramfs.open(region) as fs:
        assert fs.info()["was_clean"] is True


def test_pandas_writes_and_reads_csv_and_parquet(url):
    pd, _ = needs("pandas"), needs("pyarrow")
    frame = pd.DataFrame({"n": range(10_000), "text": [f"row {n}" for n in range(10_000)]})
    frame.to_csv(f"{url}/frame.csv", index=False)
    assert pd.read_csv(f"{url}/frame.csv").equals(frame)
    frame.to_parquet(f"{url}/frame.parquet")
    assert pd.read_parquet(f"{url}/frame.parquet").equals(frame)
    assert pd.read_parquet(f"{url}/frame.parquet", columns=["n"]).shape == (10_000, 1)


def test_pyarrow_writes_and_reads_dataset(url):
    pa, ds = needs("pyarrow"), needs("pyarrow.dataset")
    arrow_fs = needs("pyarrow.fs")
    spec, _ = fsspec.core.url_to_fs(f"{url}/")
    files = arrow_fs.PyFileSystem(arrow_fs.FSSpecHandler(spec))
    table = pa.table({"part": [n % 4 for n in range(1000)], "n": list(range(1000))})
    ds.write_dataset(
        table, "/set", filesystem=files, format="parquet", partitioning=["part"],
        partitioning_flavor="hive",
    )
    assert len(spec.find("/set")) == 4
    back = ds.dataset("/set", filesystem=files, format="parquet", partitioning="hive")
    assert back.to_table(filter=ds.field("part") == 2)["n"].to_pylist() == list(range(2, 1000, 4))


def test_pyarrow_reads_file_of_arrow_without_copy(url):
    pa = needs("pyarrow")
    spec, _ = fsspec.core.url_to_fs(f"{url}/")
    table = pa.table({"n": np.arange(100_000)})
    with spec.open("/table.arrow", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    m = spec.fs.map("/table.arrow")
    back = pa.ipc.open_file(pa.py_buffer(m)).read_all()
    (chunk,) = back["n"].chunks
    address = chunk.buffers()[1].address
    assert m.address <= address < m.address + len(m)
    assert back.equals(table)


def test_zarr_writes_and_reads_array(url):
    zarr = needs("zarr")
    array = zarr.create_array(f"{url}/array.zarr", shape=(300, 300), chunks=(100, 100), dtype="f4")
    array[:] = np.arange(90_000, dtype="f4").reshape(300, 300)
    again = zarr.open_array(f"{url}/array.zarr", mode="r")
    assert float(again[299, 299]) == 89_999.0
    assert np.array_equal(again[:], array[:])
