"""Types of topics: what a program may hand to Topic(...) and how samples of it become bytes.

- `bytes`: write any object with a buffer; read bytes with `sample_info`.
- a class derived from IdlStruct or IdlUnion: instances of it, as CDR; those that are read have `sample_info`.
- a NumPy dtype without objects: write a record or tuple, or in place by loan(); read records with their fields as
  attributes and `sample_info`, or many at once without a copy by take_batch(). Those that are larger than the topic's
  slots are never copied at the reader.
- a protobuf message class: write messages; read `ProtobufSample`, a message with `sample_info`.

Rules: a codec is made once per topic. `type_name` and `type_hash` are agreed in the group: a topic has one NumPy
record, one protobuf message by name, or IDL types that its readers and writers settle among themselves
(`dds.matching.consistency`).
`size_max` is the bytes of the largest sample, None where samples have no bound of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from spindle.errors import give_way

# Where each payload has its key, for spindle_core.keyed.KeyPlaces: the bytes with which a payload begins, the size of
# each (0 = they differ), and (offset, size) of each part of the key.
KeyBytes = tuple[bytes, int, list[tuple[int, int]]]
COPIED_MAX = 64 << 10  # a larger record is sent from where it lies: who writes it waits meanwhile
EVOLVES = b"~"  # see spindle.group.topics.TopicSpec


class Codec(Protocol):
    """What readers and writers need of a type.

    key_of      sample -> its key; None for a type without one
    key_places  where payloads have it; None if not always at the same places
    encode_key  key -> a payload that has it; None where a sample needs more than its key
    """

    kind: str  # "bytes", "numpy" or "object": decides how samples go in and out
    data_type: Any
    type_name: str
    size_max: int | None
    key_of: Callable[[Any], Any] | None
    key_places: KeyBytes | None

    @property
    def encode_key(self) -> Callable[[Any], bytes] | None: ...

    def key_sample(self, key: Any) -> Any:
        """A sample whose key is `key`, and in which nothing else is set; for types with a key."""
        ...

    @property
    def type_hash(self) -> bytes: ...

    def encode(self, sample: Any) -> Any:
        """An object with a buffer. Raises TypeError for a sample of another type."""
        ...

    def decode(self, view: Any) -> Any:
        """A sample that doesn't need the memory of `view` any more. Raises ValueError."""
        ...

    def decode_lasting(self, view: Any) -> Any:
        """As decode(), of memory that stays as it is for as long as the sample, or anybody, has it."""
        ...

    def for_reader(self, seek: Callable[[], object] | None = None) -> Codec:
        """The codec for one reader, which may learn the types of other writers. It calls seek() when it meets one that
        it doesn't know."""
        ...


class BytesSample(bytes):
    """A sample of a topic of bytes that was read or chosen: bytes with `sample_info`. Those that take() gets straight
    from the log are of a class of the same name in `dds.readers.live`; both are bytes."""

    sample_info: Any


class BytesCodec:
    kind = "bytes"
    data_type = bytes
    type_name = "bytes"
    type_hash = b""
    size_max: int | None = None
    key_of: Callable[[Any], Any] | None = None
    key_places: KeyBytes | None = None
    encode_key: Callable[[Any], bytes] | None = None

    def key_sample(self, key: Any) -> Any:
        raise TypeError("a topic of bytes has no keys")

    def encode(self, sample: Any) -> Any:
        return sample if isinstance(sample, (bytes, bytearray)) else contiguous(sample)

    def decode(self, view: Any) -> BytesSample:
        return BytesSample(view)

    decode_lasting = decode

    def for_reader(self, seek: Callable[[], object] | None = None) -> Codec:
        return self


def contiguous(sample: Any) -> memoryview | bytes:
    """The memory of a buffer in C order, copied only if it isn't. Raises TypeError without a buffer."""
    try:
        view = memoryview(sample)
    except TypeError:
        raise TypeError(f"a {type(sample).__name__} has no buffer; a topic of bytes takes bytes, bytearray, memoryview "
                        "or a NumPy array") from None
    return view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes()


class NumpyCodec:
    """Fixed-layout records. A sample is what NumPy can put into one element of the dtype."""

    kind = "numpy"

    def __init__(self, dtype: Any, keys: Sequence[str] = ()) -> None:
        import numpy as np

        if dtype.hasobject:
            raise TypeError(f"{dtype} holds Python objects, which have no fixed layout")
        if dtype.itemsize == 0:
            raise TypeError(f"{dtype} has no size")
        if dtype.subdtype is not None:
            raise TypeError(f"{dtype} is an array itself; make it the field of a record")
        self.data_type = dtype
        self.dtype = dtype
        self.size_max: int | None = dtype.itemsize
        self.keys = tuple(keys)
        self.key_of: Callable[[Any], Any] | None = self._key_function() if keys else None
        self.key_places: KeyBytes | None = (
            (b"", dtype.itemsize, [self._place_of(key) for key in keys]) if 0 < len(keys) <= 8 else None)
        names = dtype.names
        text = ",".join(f"{name}:{_format_text(dtype.fields[name][0])}" for name in names) if names else str(dtype)
        self.type_name = f"numpy({text})" if len(text) < 200 else f"numpy({text[:190]}...)"
        self._np = np
        # Elements of this dtype are instances of a class of ours, so that they can carry sample_info.
        self._record_dtype = np.dtype((_record_class(), dtype)) if names else dtype

    @property
    def type_hash(self) -> bytes:
        """Raises TypeError for a record whose fields don't lie one behind the other."""
        from hashlib import blake2b

        try:
            layout = (self.dtype.descr if self.dtype.names else self.dtype.str, self.dtype.itemsize)
        except ValueError:
            raise TypeError(f"{self.dtype} has fields that overlap, or are named in another order than they lie: name "
                            "them as they lie, one behind the other") from None
        return blake2b(repr((*layout, self.keys) if self.keys else layout).encode(), digest_size=16).digest()

    def _key_function(self) -> Callable[[Any], Any]:
        """record -> its key. Raises TypeError for a key that is no field, or one that can't tell instances apart."""
        paths = [key.split(".") for key in self.keys]
        for key, path in zip(self.keys, paths, strict=True):
            dtype = self.dtype
            for name in path:
                if name not in (dtype.names or ()):
                    raise TypeError(f"key {key!r}: there is no field {name!r} in {dtype}")
                dtype = dtype.fields[name][0]
            if dtype.kind not in "biuSU":
                raise TypeError(f"key {key!r} is of type {dtype}; a key is a whole number, a boolean or text")
        import numpy as np

        whole = self.dtype

        def key_of(sample: Any) -> Any:
            record = sample if isinstance(sample, np.void) else np.asarray(sample, dtype=whole)[()]
            values = []
            for path in paths:
                value = record
                for name in path:
                    value = value[name]
                values.append(value.item())
            return values[0] if len(values) == 1 else tuple(values)

        return key_of

    def _place_of(self, key: str) -> tuple[int, int]:
        """Offset and size of a key's field, bytes."""
        dtype, offset = self.dtype, 0
        for name in key.split("."):
            dtype, within = dtype.fields[name][:2]
            offset += within
        return offset, dtype.itemsize

    def key_sample(self, key: Any) -> Any:
        sample = self._np.zeros((), self._record_dtype)
        self._set_key(sample, key)
        return sample[()]

    def _set_key(self, sample: Any, key: Any) -> None:
        for path, value in zip(self.keys, key if len(self.keys) > 1 else (key,), strict=True):
            place = sample
            *parents, name = path.split(".")
            for parent in parents:
                place = place[parent]
            place[name] = value

    def one_of_each_key(self, rows: Any) -> Any:
        """Of an array of records one for each key that is in it."""
        return self.instances_of(rows)[0]

    def instances_of(self, rows: Any) -> tuple[Any, Any]:
        """Of an array of records: one for each key that is in it, and for each record which of these has its key."""
        fields = []
        for key in self.keys:
            place = rows
            for name in key.split("."):
                place = place[name]
            fields.append(place)
        keys = self._np.rec.fromarrays(fields)
        _, first, which = self._np.unique(keys, return_index=True, return_inverse=True)
        return rows[first], which.reshape(-1)

    def encode(self, sample: Any) -> Any:
        np = self._np
        if self.dtype.names and not isinstance(sample, (np.ndarray, np.void, tuple)):
            raise TypeError(f"{sample!r} is not a record of {self.dtype}: use a tuple, or an element of an array")
        try:
            array = sample if isinstance(sample, np.ndarray) else np.asarray(sample, dtype=self.dtype)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{sample!r} is not a record of {self.dtype}: {error}") from None
        if array.dtype != self.dtype or array.size != 1:
            raise TypeError(f"one record of {self.dtype} expected, got {array.size} of {array.dtype}; "
                            "write_many() takes arrays")
        if self.dtype.itemsize > COPIED_MAX:
            return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        return array.tobytes()

    def encode_key(self, key: Any) -> bytes:
        sample = self._np.zeros((), self._record_dtype)
        self._set_key(sample, key)
        return bytes(sample.tobytes())

    def decode(self, view: Any) -> Any:
        return self.decode_lasting(bytes(view))

    def decode_lasting(self, view: Any) -> Any:
        if len(view) != self.size_max:
            raise ValueError(f"{len(view)} bytes are not a record of {self.size_max}")
        record = self._np.frombuffer(view, self._record_dtype)[0]
        return record if self.dtype.names else PlainSample(record)

    def for_reader(self, seek: Callable[[], object] | None = None) -> Codec:
        return self

    def rows(self, samples: Any) -> Any:
        """`samples` as a contiguous array of records. Raises TypeError."""
        np = self._np
        try:
            array = np.ascontiguousarray(samples, dtype=None if isinstance(samples, np.ndarray) else self.dtype)
        except (TypeError, ValueError) as error:
            raise TypeError(f"these are not records of {self.dtype}: {error}") from None
        if array.dtype != self.dtype:
            raise TypeError(f"an array of {self.dtype} expected, got {array.dtype}")
        return array

    def view(self, memory: Any) -> Any:
        """A record in place: an array without dimensions over `memory`."""
        return self._np.ndarray((), self.dtype, buffer=memory)

    def batch(self, buffer: Any, offset: int, stride: int, count: int) -> Any:
        return self._np.ndarray((count,), self.dtype, buffer=buffer, offset=offset, strides=(stride,))


def _format_text(dtype: Any) -> str:
    """A field's type in few characters: i4, f8[3], {x:f8,y:f8}."""
    if dtype.subdtype is not None:
        return _format_text(dtype.subdtype[0]) + str(list(dtype.subdtype[1])).replace(" ", "")
    if dtype.names is None:
        return str(dtype.str.lstrip("<|="))
    return "{" + ",".join(f"{name}:{_format_text(dtype.fields[name][0])}" for name in dtype.names) + "}"


_record: list[Any] = []


def _record_class() -> Any:
    """np.void with fields as attributes; made on first use, because NumPy takes long to import."""
    if not _record:
        import numpy as np

        class RecordSample(np.void):  # type: ignore[misc]  # NumPy allows it, its stubs don't
            """A sample of a topic of NumPy records: fields by name or attribute, and `sample_info`."""

            def __getattr__(self, name: str) -> Any:
                if self.dtype.names and name in self.dtype.names:
                    return self[name]
                raise AttributeError(f"neither an attribute nor a field of {self.dtype}: {name!r}")

            def __setattr__(self, name: str, value: Any) -> None:
                if name == "sample_info":
                    super().__setattr__(name, value)
                else:
                    self[name] = value

        RecordSample.__qualname__ = "RecordSample"
        _record.append(RecordSample)
    return _record[0]


class PlainSample:
    """A sample of a topic whose dtype has no fields: `value`, and `sample_info`."""

    sample_info: Any

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"PlainSample({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, PlainSample) else other))

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy as np

        return np.asarray(self.value, dtype=dtype)


class ProtobufSample:
    """A sample of a topic of protobuf messages: all attributes of `message`, and `sample_info`.

    Generated message classes don't take further attributes, hence the wrapper; the message itself is `sample.message`.
    """

    __slots__ = ("message", "sample_info")

    def __init__(self, message: Any) -> None:
        self.message = message

    def __getattr__(self, name: str) -> Any:
        return getattr(self.message, name)

    def __eq__(self, other: object) -> bool:
        return bool(self.message == (other.message if isinstance(other, ProtobufSample) else other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ProtobufSample({self.message!r})"


class ProtobufCodec:
    kind = "object"

    def __init__(self, cls: Any, keys: Sequence[str] = ()) -> None:
        self.data_type = cls
        self.type_name: str = cls.DESCRIPTOR.full_name
        self.size_max: int | None = None
        self.keys = tuple(keys)
        self.key_of: Callable[[Any], Any] | None = self._key_function() if keys else None
        self.key_places: KeyBytes | None = None

    @property
    def type_hash(self) -> bytes:
        from hashlib import blake2b

        from google.protobuf.descriptor_pb2 import DescriptorProto

        proto = DescriptorProto()
        self.data_type.DESCRIPTOR.CopyToProto(proto)
        same = blake2b(repr((self.type_name, self.keys)).encode(), digest_size=8)  # what may not differ in a topic
        described = blake2b(proto.SerializeToString(deterministic=True), digest_size=16)
        return EVOLVES + same.digest() + described.digest()

    def _key_function(self) -> Callable[[Any], Any]:
        """message -> its key. Raises TypeError for a key that is no field, or one that can't tell instances apart."""
        from operator import attrgetter

        for key in self.keys:
            descriptor, found = self.data_type.DESCRIPTOR, None
            for name in key.split("."):
                found = None if descriptor is None else descriptor.fields_by_name.get(name)
                if found is None:
                    raise TypeError(f"key {key!r}: there is no field {name!r} in {self.type_name}")
                descriptor = found.message_type if not found.is_repeated else None
            assert found is not None
            if found.is_repeated or found.cpp_type in (
                    found.CPPTYPE_MESSAGE, found.CPPTYPE_FLOAT, found.CPPTYPE_DOUBLE):
                raise TypeError(f"key {key!r}: a key is a whole number, a boolean, an enumeration, text or bytes")
        return attrgetter(*self.keys)

    def key_sample(self, key: Any) -> Any:
        message = self.data_type()
        for path, value in zip(self.keys, key if len(self.keys) > 1 else (key,), strict=True):
            *parents, name = path.split(".")
            place = message
            for parent in parents:
                place = getattr(place, parent)
            setattr(place, name, value)
        return ProtobufSample(message)

    def encode_key(self, key: Any) -> bytes:
        return self.encode(self.key_sample(key))

    def encode(self, sample: Any) -> bytes:
        if isinstance(sample, ProtobufSample):
            sample = sample.message
        if not isinstance(sample, self.data_type):
            raise TypeError(f"{sample!r} is not a {self.type_name}")
        try:
            encoded: bytes = sample.SerializeToString()
        except Exception as error:  # EncodeError: a required field has no value
            give_way(error)
            from dds.idl.members import Unencodable

            raise Unencodable(f"a sample of {self.type_name} can't be encoded: {error}") from error
        return encoded

    def decode(self, view: Any) -> ProtobufSample:
        from google.protobuf.message import DecodeError

        try:
            return ProtobufSample(self.data_type.FromString(bytes(view)))
        except DecodeError as error:
            raise ValueError(f"{len(view)} bytes are not a {self.type_name}: {error}") from None

    decode_lasting = decode

    def for_reader(self, seek: Callable[[], object] | None = None) -> Codec:
        return self


def codec_for(data_type: Any, version: int = 0, keys: Sequence[str] = ()) -> Codec:
    """The codec of a topic's type; `version` is the CDR version to write, 0 = native, for IDL types only; `keys` are
    the fields that make up the key, for types that don't say it themselves.

    Raises TypeError for what is none of the types of this module's table, and for keys that it can't have.
    """
    if keys and (data_type is bytes or hasattr(data_type, "__idl__")):
        raise TypeError("a topic of bytes has no keys" if data_type is bytes else
                        f"{data_type.__name__} says by annotations which members are keys (dds.idl.annotations.key)")
    if isinstance(keys, str) or any(not isinstance(one, str) or not one for one in keys):
        raise TypeError(f"keys must be a list of names of fields, not {keys!r}")
    if len(set(keys)) < len(keys):
        raise TypeError(f"the keys {', '.join(keys)} name a field twice")
    if data_type is bytes:
        return BytesCodec()
    if isinstance(data_type, type) and hasattr(data_type, "__idl__"):
        from dds.idl.codec import codec_of

        return codec_of(data_type, version)
    if isinstance(data_type, type) and hasattr(data_type, "DESCRIPTOR") and hasattr(data_type, "SerializeToString"):
        return ProtobufCodec(data_type, keys)
    numpy = sys.modules.get("numpy")  # who has a dtype has imported it
    if numpy is not None and isinstance(data_type, numpy.dtype):
        return NumpyCodec(data_type, keys)
    raise TypeError(f"{data_type!r} is no type for a topic: use bytes, a dataclass derived from dds.idl.IdlStruct, "
                    "a NumPy dtype or a protobuf message class")


__all__ = ["Codec", "PlainSample", "ProtobufSample", "codec_for"]
