"""Batches: many samples at once.

Goal: a batch shows each sample once and in order, as rows or bytes, in place where the reader keeps all; it holds the
reader until it is released.
Method: a writer and a reader on one embedded node.
"""

import pytest

from dds import DataReader, DDSException, Policy, Qos, SampleState
from tests.dds.test_sub import LONG, Message, pair, write_all


class TestBatches:
    def test_records_in_place(self, participant):
        np = pytest.importorskip("numpy")
        dtype = np.dtype([("altitude", "<f8"), ("flags", "<u2"), ("vector", "<f4", (3,))])
        writer, reader = pair(participant, dtype)
        rows = np.zeros(1000, dtype)
        rows["altitude"] = np.arange(1000)
        assert writer.write_many(rows) == 1000
        assert writer.wait_for_acks(LONG)
        got = []
        while len(got) < 1000:
            with reader.take_batch(300) as batch:
                assert len(batch) == len(batch.array)
                assert not batch.array.flags.owndata
                assert batch.array.dtype == dtype
                assert batch.sample_info(0).node == 1
                assert batch.sample_info(-1).index - batch.sample_info(0).index == len(batch) - 1
                got.extend(batch.array["altitude"].tolist())
        assert got == list(range(1000))
        with reader.take_batch() as empty:
            assert len(empty) == 0 and empty.array.shape == (0,)
        with pytest.raises(ValueError):
            _ = batch.array
        with pytest.raises(ValueError):
            batch.sample_info(0)

    def test_take_array_owns_its_memory(self, participant):
        np = pytest.importorskip("numpy")
        writer, reader = pair(participant, np.dtype([("x", "<i4")]))
        writer.write_many(np.array([(1,), (2,)], [("x", "<i4")]))
        assert writer.wait_for_acks(LONG)
        array = reader.take_array(10)
        assert array["x"].tolist() == [1, 2] and array.flags.owndata
        assert reader.take(1) == []

    def test_bytes(self, participant):
        writer, reader = pair(participant)
        write_all(writer, [b"aa", b"bb", b"ccc"])
        with reader.take_batch(10) as batch:
            assert [bytes(batch.payload(i)) for i in range(len(batch))] == [b"aa", b"bb"]
            assert batch.payload(0).readonly
            with pytest.raises(IndexError):
                batch.payload(2)
        with reader.take_batch(10) as batch:
            assert bytes(batch.payload(0)) == b"ccc"
            assert batch.array.tolist() == [[99, 99, 99]]

    def test_after_read_and_for_readers_that_may_be_overtaken(self, participant):
        writer, reader = pair(participant)
        last = DataReader(participant, reader.topic, qos=Qos(Policy.History.KeepLast(2)))
        write_all(writer, [b"a", b"b", b"c"])
        reader.read(1)
        with reader.take_batch(2) as batch:
            assert [bytes(batch.payload(i)) for i in range(len(batch))] == [b"a", b"b"]
            assert [batch.sample_info(i).sample_state for i in (0, 1)] == [SampleState.Read, SampleState.NotRead]
        assert reader.take(9) == [b"c"]
        with last.take_batch(9) as batch:
            assert [bytes(batch.payload(i)) for i in range(len(batch))] == [b"b", b"c"]

    def test_types_without_layout(self, participant):
        _, reader = pair(participant, Message)
        with pytest.raises(DDSException) as caught:
            reader.take_batch()
        assert caught.value.code == DDSException.DDS_RETCODE_UNSUPPORTED


def test_an_open_batch_is_in_the_way(participant):
    writer, reader = pair(participant)
    write_all(writer, [b"a", b"b"])
    with reader.take_batch(1):
        for call in (reader.take, reader.read):
            with pytest.raises(DDSException) as caught:
                call()
            assert caught.value.code == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET
    assert reader.take(5) == [b"b"]
