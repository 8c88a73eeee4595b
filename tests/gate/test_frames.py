from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sottovoce.errors import WireError
from sottovoce.formats import FRAME
from sottovoce.gate import frames as messages
from sottovoce.gate.frames import KINDS, Frame, decode, encode, peek

HEADER = 26

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
arrays = st.one_of(
    hnp.arrays(np.float64, shapes, elements=st.floats(allow_nan=False, allow_infinity=False)),
    hnp.arrays(np.int64, shapes),
)
frames = st.builds(
    Frame,
    kind=st.sampled_from(KINDS),
    serial=st.integers(0, 2**64 - 1),
    plan=st.one_of(st.just(b""), st.binary(min_size=32, max_size=32)),
    round=st.integers(-(2**31), 2**31 - 1),
    query=texts,
    arrays=st.dictionaries(texts.filter(bool), arrays, max_size=3),
    text=texts,
)


def example() -> Frame:
    return Frame("ask", 7, bytes(range(32)), 3, "gradient", {"w": np.linspace(-1.0, 1.0, 5)}, "hello")


def one_array(shape: tuple[int, ...], payload: bytes, type_code: int = 0, names: tuple[bytes, ...] = (b"w",)) -> bytes:
    """A frame written by hand, so that its description can lie about its payload."""
    head = struct.pack("<4sBBBBQiHI", b"sotv", FRAME.number, KINDS.index("ask"), 0, len(names), 1, 0, 0, 0)
    for name in names:
        head += struct.pack("<BBB", len(name), type_code, len(shape)) + name + struct.pack(f"<{len(shape)}Q", *shape)
    return head + b"\0" * (-len(head) % 8) + payload


def patched(data: bytes, offset: int, value: int) -> bytes:
    return data[:offset] + bytes([value]) + data[offset + 1 :]


@given(frames)
def test_a_frame_comes_back_as_it_was(frame: Frame) -> None:
    data = encode(frame)
    back = decode(data)
    for name in ("kind", "serial", "plan", "round", "query", "text"):
        assert getattr(back, name) == getattr(frame, name)
    assert list(back.arrays) == list(frame.arrays)
    for label, array in frame.arrays.items():
        assert back.arrays[label].dtype == array.dtype
        assert back.arrays[label].shape == array.shape
        assert back.arrays[label].tobytes() == array.tobytes()
    assert encode(back) == data
    assert peek(data)[:2] == (frame.kind, frame.serial)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(0),
        np.zeros((3, 0, 2), dtype=np.int64),
        np.array(2.5),
        np.arange(12.0).reshape(3, 4).T,
        np.arange(10)[::-2],
        np.array([-0.0, 5e-324, np.finfo(float).max]),
    ],
    ids=["empty", "empty-3d", "scalar", "fortran", "strided", "extremes"],
)
def test_every_layout_arrives_in_order(array: np.ndarray) -> None:
    back = decode(encode(Frame("answer", 1, arrays={"a": array, "b": array}))).arrays
    for copy in back.values():
        assert copy.shape == array.shape
        assert copy.tobytes() == np.ascontiguousarray(array).tobytes()


def test_decoded_arrays_are_aligned_and_cannot_be_written() -> None:
    array = decode(encode(example())).arrays["w"]
    assert array.flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1.0


def test_the_layout_is_pinned() -> None:
    # A change here breaks parties of an earlier release: raise the version with it.
    header = "736f7476" + "05" + "00" + "00" + "01" + "0201000000000000" + "ffffffff" + "0100" + "02000000"
    query, text, array = "71", "7474", "01" + "00" + "01" + "77" + "0100000000000000"
    data = encode(Frame("hello", 258, round=-1, query="q", arrays={"w": np.array([1.0])}, text="tt"))
    assert data.hex() == header + query + text + array + "00" * 7 + "000000000000f03f"


@pytest.mark.parametrize("length", range(len(encode(example()))))
def test_a_truncated_frame_is_refused(length: int) -> None:
    with pytest.raises(WireError, match="truncated"):
        decode(encode(example())[:length])


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (encode(example()) + b"\0", "trailing"),
        (patched(encode(example()), 0, 0), "magic"),
        (patched(encode(example()), 4, FRAME.number + 1), f"format {FRAME.number + 1}.*format {FRAME.number}"),
        (patched(encode(example()), 5, len(KINDS)), "kind code 13"),
        (patched(encode(example()), 6, 31), "31 bytes"),
        (patched(encode(example()), HEADER + 32, 0xFF), "query is not UTF-8"),
        (patched(encode(example()), HEADER + 32 + 8, 0xFF), "text is not UTF-8"),
        (one_array((1,), bytes(8), names=(b"\xff",)), "name is not UTF-8"),
        (one_array((1,), bytes(8), type_code=3), "dtype code 3"),
        (one_array((1,), bytes(16), names=(b"w", b"w")), "duplicate"),
        (one_array((1,), bytes(8), names=(b"",)), "empty"),
        (one_array((1,) * 33, bytes(8)), "33 dimensions"),
        (one_array((3,), bytes(16)), "truncated"),
        (one_array((1,), bytes(16)), "trailing"),
        (one_array((0,), bytes(8)), "trailing"),
        (one_array((2**32, 2**32), b""), "too large"),
        (one_array((2**61,), b""), "too large"),
        (one_array((2**63, 2), b""), "too large"),
        (one_array((2**62, 0), b""), "too large"),
        (one_array((1,), struct.pack("<d", float("nan"))), "non-finite"),
        (one_array((2,), struct.pack("<dd", 1.0, float("-inf"))), "non-finite"),
        (b"", "truncated"),
    ],
)
def test_a_malformed_frame_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(WireError, match=fault):
        decode(data)


def test_padding_is_zero() -> None:
    data = one_array((1,), bytes(8))
    assert decode(data).arrays["w"] == 0.0
    with pytest.raises(WireError, match="padding"):
        decode(patched(data, len(data) - 9, 1))
    data = encode(Frame("answer", 1, arrays={"w": np.arange(3)}))
    with pytest.raises(WireError, match="the padding after array 0"):
        decode(patched(data, len(data) - 1, 1))


@pytest.mark.parametrize("largest", [2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)])
def test_whole_numbers_have_4_bytes_where_all_fit(largest: int) -> None:
    fits = -(2**31) <= largest < 2**31
    for size in (1, 2, 5):
        array = np.full(size, largest)
        array[1:] = 0
        data = encode(Frame("answer", 1, arrays={"w": array}))
        less = len(encode(Frame("answer", 1, arrays={"w": array[:0]})))
        assert len(data) - less == (8 * -(-size // 2) if fits else 8 * size)
        assert decode(data).arrays["w"].dtype == np.int64
        np.testing.assert_array_equal(decode(data).arrays["w"], array)


def test_the_length_of_words_does_not_depend_on_them() -> None:
    """Parts of a prediction are a table of words; of one party they carry no mask."""
    small, large = np.ones((5, 2), dtype=np.int64), np.full((5, 2), 2**60)
    lengths = {len(encode(Frame("predict", 1, arrays={"masked": words}))) for words in (small, large)}
    assert len(lengths) == 1
    np.testing.assert_array_equal(decode(encode(Frame("predict", 1, arrays={"masked": small}))).arrays["masked"], small)


def test_whole_numbers_of_8_bytes_that_4_hold_are_refused() -> None:
    data = encode(Frame("answer", 1, arrays={"w": np.array([2**40])}))
    assert decode(data).arrays["w"] == 2**40
    with pytest.raises(WireError, match="another size than they need"):
        decode(data[:-8] + (2**30).to_bytes(8, "little"))


def test_the_limit_is_on_the_whole_message() -> None:
    data = encode(example())
    decode(data, limit=len(data))
    with pytest.raises(WireError, match="too large"):
        decode(data, limit=len(data) - 1)


def test_integers_of_any_pattern_are_numbers() -> None:
    values = np.array([np.iinfo(np.int64).min, -1, 0x7FF8000000000000], dtype=np.int64)
    np.testing.assert_array_equal(decode(encode(Frame("answer", 1, arrays={"n": values}))).arrays["n"], values)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"kind": "gossip"}, "kind='gossip'"),
        ({"serial": -1}, "out of range"),
        ({"serial": 2**64}, "out of range"),
        ({"round": 2**31}, "out of range"),
        ({"plan": b"short"}, "5 bytes"),
        ({"query": "q" * 65536}, "out of range"),
        ({"query": "\ud800"}, "surrogate"),
        ({"text": "\ud800"}, "surrogate"),
        ({"arrays": {"": np.zeros(1)}}, "1 to 255 bytes"),
        ({"arrays": {"é" * 128: np.zeros(1)}}, "1 to 255 bytes"),
        ({"arrays": {str(i): np.zeros(1) for i in range(256)}}, "out of range"),
        ({"arrays": {"w": np.zeros(1, dtype=np.float32)}}, "float32"),
        ({"arrays": {"w": np.zeros(1, dtype=">f8")}}, ">f8"),
        ({"arrays": {"w": np.zeros(1, dtype=object)}}, "object"),
        ({"arrays": {"w": np.array([np.nan])}}, "non-finite"),
        ({"arrays": {"w": np.array([np.inf])}}, "non-finite"),
    ],
)
def test_what_decode_would_refuse_is_not_encoded(changes: dict[str, object], fault: str) -> None:
    with pytest.raises(WireError, match=fault):
        encode(Frame(**{"kind": "ask", "serial": 1} | changes))  # type: ignore[arg-type]


def test_a_frame_that_is_too_large_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_BYTES", 1000)
    encode(Frame("ask", 1, arrays={"w": np.zeros(100)}))
    for content in ({"arrays": {"w": np.zeros(126)}}, {"text": "t" * 1000}):
        with pytest.raises(WireError, match="too large"):
            encode(Frame("ask", 1, **content))


def test_neither_errors_nor_repr_carry_the_payload() -> None:
    secret = 271828.1828
    frame = Frame("answer", 1, arrays={"patient-12": np.array([secret, np.nan])}, text="diagnosis")
    assert "271828" not in repr(frame)
    assert "diagnosis" not in repr(frame)
    with pytest.raises(WireError) as sent:
        encode(frame)
    payload = np.array([secret, np.nan]).tobytes()
    with pytest.raises(WireError) as received:
        decode(one_array((2,), payload, names=(b"patient-12",)))
    with pytest.raises(WireError) as garbled:
        decode(one_array((1,), bytes(8), names=(b"diagnosis\xff",)))
    for error in (sent.value, received.value, garbled.value):
        assert error.__cause__ is None
        assert error.__suppress_context__ or error.__context__ is None
        assert "271828" not in str(error)
        assert "diagnosis" not in str(error)
    assert "patient-12" not in str(received.value)


def assert_canonical_or_refused(data: bytes) -> None:
    try:
        frame = decode(data)
    except WireError:
        return
    assert encode(frame) == data


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_canonical(data: bytes) -> None:
    assert_canonical_or_refused(data)
    assert_canonical_or_refused(b"sotv\x05" + data)


@pytest.mark.slow
@given(frames, st.data())
@settings(max_examples=300)
def test_mutated_frames_are_refused_or_canonical(frame: Frame, data: st.DataObject) -> None:
    mutated = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(mutated)))
        match data.draw(st.sampled_from(["replace", "insert", "delete"])):
            case "replace":
                mutated[position : position + 1] = bytes([data.draw(st.integers(0, 255))])
            case "insert":
                mutated[position:position] = data.draw(st.binary(max_size=9))
            case "delete":
                del mutated[position : position + data.draw(st.integers(1, 9))]
    assert_canonical_or_refused(bytes(mutated))
