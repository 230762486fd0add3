"""Shared mappings: who may write, who owns the descriptor, and what outlives what."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import subprocess
import sys
import tempfile

import pytest

from spindle_core.memory import Mapping
from tests.support import open_descriptors


def descriptors() -> int:
    gc.collect()
    return open_descriptors()


def test_two_mappings_of_one_descriptor_share_their_bytes() -> None:
    """Goal: what one side stores the other side sees. Method: attach a dup, write on both sides."""
    mine = Mapping.create("test", 10_000)
    assert mine.size == 12_288 and mine.writable and bytes(mine.view()) == bytes(12_288)
    theirs = Mapping.attach(os.dup(mine.fd), True)
    mine.view()[0] = 7
    theirs.view()[12_287] = 9
    assert (theirs.view()[0], mine.view()[12_287], theirs.size) == (7, 9, 12_288)


def test_the_size_is_sealed() -> None:
    """Goal: nobody with the descriptor can shrink or grow what others have mapped."""
    m = Mapping.create("test", 4096)
    for size in (0, 100, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(m.fd, size)


def test_sealed_writes_leave_others_read_only() -> None:
    """Goal: after seal_writes() only the maker's own mapping writes; the seals themselves can't be undone.

    Method: attach for writing, mmap for writing by hand, write() to the descriptor, more seals, a writable buffer.
    """
    m = Mapping.create("test", 4096)
    m.seal_writes()
    m.view()[0] = 1
    with pytest.raises(OSError, match="read-write"):
        Mapping.attach(os.dup(m.fd), True)
    with pytest.raises(PermissionError):
        mmap.mmap(m.fd, 4096)
    with pytest.raises(PermissionError):
        os.pwrite(m.fd, b"x", 0)
    with pytest.raises(PermissionError):
        fcntl.fcntl(m.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    reader = Mapping.attach(os.dup(m.fd))
    assert not reader.writable and reader.view().readonly and reader.view()[0] == 1
    with pytest.raises(TypeError):
        reader.view()[0] = 2
    with open("/dev/zero", "rb") as zero, pytest.raises((TypeError, BufferError)):
        zero.readinto(reader)  # type: ignore[arg-type]


def test_what_could_fault_us_is_refused() -> None:
    """Goal: only memory whose size can't change under us is mapped: a sender that truncates it would kill us.

    Method: an ordinary file, a file in shared memory, an unsealed memfd, an empty one, a pipe, no descriptor at all.
    Every refusal gives the descriptor back.
    """
    before = descriptors()
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        with pytest.raises(ValueError, match="sealed"):
            Mapping.attach(os.dup(file.fileno()))
    unsealed = os.memfd_create("test")
    os.ftruncate(unsealed, 4096)
    with pytest.raises(ValueError, match="sealed"):
        Mapping.attach(unsealed)
    with pytest.raises(ValueError, match="holds no memory"):
        Mapping.attach(os.memfd_create("test", os.MFD_ALLOW_SEALING))
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(ValueError, match="holds no memory"):
        Mapping.attach(reading)
    with pytest.raises(OSError, match="Bad file"):
        Mapping.attach(-1)
    assert descriptors() == before


@pytest.mark.parametrize("size", [0, -1, (1 << 40) + 1])
def test_impossible_sizes_are_refused(size: int) -> None:
    """Goal: the limit is in the message, and nothing is left open."""
    before = descriptors()
    with pytest.raises(ValueError, match="between 1 and"):
        Mapping.create("test", size)
    with pytest.raises(TypeError, match="create"):
        Mapping()
    assert descriptors() == before


@pytest.mark.slow
def test_close_is_idempotent_and_views_outlive_it() -> None:
    """Goal: memory goes only when nobody can look at it any more. Method: close under a view; then without one."""
    before = descriptors()
    m = Mapping.create("test", 4096)
    view = m.view()
    view[5] = 5
    m.close()
    m.close()
    assert m.fd == -1 and view[5] == 5
    part = view[5:6]
    del m, view
    gc.collect()
    assert part[0] == 5
    del part
    m = Mapping.create("test", 4096)
    m.close()
    with pytest.raises(ValueError, match="closed"):
        m.view()
    assert descriptors() == before


def test_dropping_a_mapping_gives_everything_back() -> None:
    """Goal: no descriptor and no memory is leaked, also without close(). Method: /proc/self/fd and /proc/self/maps."""
    before = descriptors()
    for _ in range(50):
        m = Mapping.create("spindle-leak-test", 4096)
        Mapping.attach(os.dup(m.fd))
    del m
    assert descriptors() == before
    with open("/proc/self/maps") as maps:
        assert "spindle-leak-test" not in maps.read()


def test_what_is_never_closed_goes_in_silence_with_the_interpreter() -> None:
    """Goal: a program that forgets to close anything ends without a word. Method: keep one of each where the
    interpreter looks last, when the modules that they came from are gone.
    """
    script = (
        "import builtins\n"
        "from tests.spindle_core.cluster import Cluster\n"
        "cluster = Cluster(2)\n"
        "builtins.kept = [cluster, cluster.reader(0), cluster.writer(1)]\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert run.stderr == ""


def test_threads_share_arenas_and_keep_little_for_themselves() -> None:
    """Goal: what each of many threads has once needed for a moment doesn't stay with each of them.

    Method: processes with sixteen threads that are there at one time, of which each takes and gives back 2 MB in pieces
    too small for a mapping of their own; one process has told its threads to share. An arena begins at a multiple of
    64 MiB.
    """
    code = """if True:
        import sys, threading
        from spindle_core.memory import share_arenas
        if sys.argv[1] == "share" and not share_arenas(2):
            print(0)
            sys.exit()
        together = threading.Barrier(16)
        def work():
            together.wait()
            pieces = [bytes(2000) for _ in range(1000)]
            keeper.append(bytes(2000))
            pieces.clear()
            together.wait()
        keeper = []
        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(sum(int(line.split("-")[0], 16) % (64 << 20) == 0 and len(line.split()) == 5
                  for line in open("/proc/self/maps")))
    """
    apart, shared = (int(subprocess.run([sys.executable, "-c", code, how], check=True, capture_output=True).stdout)
                     for how in ("each", "share"))
    assert shared < 4 < apart or shared == 0


def test_large_memory_lies_where_huge_pages_can_be_mapped() -> None:
    """Goal: huge pages can be mapped wherever such memory is; what is there stays as it is.

    Method: mappings of odd sizes around the bound, written whole after they were made ready, and read by another.
    """
    for size in (1, 4096, (4 << 20) - 1, 4 << 20, (6 << 20) + 5):
        mine = Mapping.create("test", size)
        before = len(os.listdir("/proc/self/map_files"))
        mine.make_ready(mine.size)
        mine.make_ready(mine.size)
        view = mine.view()
        assert bytes(view) == bytes(mine.size)
        view[:] = bytes([7]) * mine.size
        theirs = Mapping.attach(os.dup(mine.fd))
        for one in (mine, theirs) if size >= 4 << 20 else ():
            assert address_of(one) % (2 << 20) == 0
        assert bytes(theirs.view()) == bytes([7]) * mine.size
        del theirs
        assert len(os.listdir("/proc/self/map_files")) <= before + 1, "nothing is left of what was reserved"
    closed = Mapping.create("test", 1)
    closed.close()
    closed.make_ready(closed.size)
    assert Mapping.private(8 << 20).size == 8 << 20


def test_what_becomes_private_can_be_sealed_and_is_its_own() -> None:
    """Goal: views and arrays of it stay valid, see what was there, and change it for nobody else.

    Method: a view, and an array that NumPy makes without one; sealing, which fails as long as anybody could write.
    """
    np = pytest.importorskip("numpy")
    m = Mapping.create("test", 5 << 20)
    fd = os.dup(m.fd)
    view, array = memoryview(m)[:100], np.ndarray((5 << 20,), "u1", buffer=memoryview(m))
    array[:] = 3
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    with pytest.raises(OSError, match="busy"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    m.become_private()
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    theirs = Mapping.attach(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))
    view[0] = 4
    array[-1] = 5
    assert (array[0], view[1], array[-1]) == (4, 3, 5) and bytes(theirs.view()) == bytes([3]) * (5 << 20)
    with pytest.raises(ValueError, match="closed"):
        m.become_private()
    m.close_descriptor()
    del m, view
    gc.collect()
    array[:] = 6
    assert array.sum() == 6 * (5 << 20)
    os.close(fd)


def address_of(mapping: Mapping) -> int:
    import ctypes

    class Raw(ctypes.Structure):
        _fields_ = [("buf", ctypes.c_void_p), ("rest", ctypes.c_byte * 128)]

    raw = Raw()
    assert ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(mapping), ctypes.byref(raw), 0) == 0
    address = raw.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(raw))
    assert address is not None
    return int(address)
