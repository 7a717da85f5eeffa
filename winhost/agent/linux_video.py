# Part of the probe: decoding of a picture with NVDEC, through the driver's library, and encoding with NVENC, by FFmpeg.
from __future__ import annotations

import ctypes
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from winhost.agent.linux_h264 import SIDE, picture
from winhost.agent.linux_libraries import CallFailed, Cuda, SharedLibrary, Skipped, Unfit, find_in_folders

CUVID = ("libnvcuvid.so.1", "/usr/lib/wsl/lib/libnvcuvid.so.1")
ENCODE = ("libnvidia-encode.so.1", "/usr/lib/wsl/lib/libnvidia-encode.so.1")
H264, NV12, CHROMA_420, BY_NVDEC = 4, 0, 1, 4  # cudaVideoCodec, *SurfaceFormat, *ChromaFormat, *CreateFlags
END_OF_STREAM = 1
FRAMES = 25
FFMPEG_FOLDERS = ("/usr/local/bin", "/usr/bin", "/opt/ffmpeg/bin")
FFMPEG_S = 40
TEST_SOURCE = "testsrc2=size=256x256:rate=25"

Long = ctypes.c_ulong  # as cuviddec.h has it: 8 bytes on a 64-bit Linux


class DecodeCaps(ctypes.Structure):
    _fields_ = [
        ("codec", ctypes.c_int),
        ("chroma", ctypes.c_int),
        ("depth_minus_8", ctypes.c_uint),
        ("reserved1", ctypes.c_uint * 3),
        ("supported", ctypes.c_ubyte),
        ("engines", ctypes.c_ubyte),
        ("formats", ctypes.c_ushort),
        ("most", ctypes.c_uint * 3),
        ("least", ctypes.c_ushort * 2),
        ("more", ctypes.c_ubyte * 4),
        ("reserved3", ctypes.c_uint * 10),
    ]


class Rectangle(ctypes.Structure):
    _fields_ = [(name, ctypes.c_short) for name in ("left", "top", "right", "bottom")]


class DecoderInfo(ctypes.Structure):
    _fields_ = [
        ("width", Long),
        ("height", Long),
        ("surfaces", Long),
        ("codec", ctypes.c_int),
        ("chroma", ctypes.c_int),
        ("flags", Long),
        ("depth_minus_8", Long),
        ("intra_only", Long),
        ("max_width", Long),
        ("max_height", Long),
        ("reserved1", Long),
        ("display", Rectangle),
        ("output", ctypes.c_int),
        ("deinterlace", ctypes.c_int),
        ("target_width", Long),
        ("target_height", Long),
        ("outputs", Long),
        ("lock", ctypes.c_void_p),
        ("target", Rectangle),
        ("histogram", Long),
        ("reserved2", Long * 4),
    ]


class VideoFormat(ctypes.Structure):
    """The part of NVDEC's format structure that is read."""

    _fields_ = [
        ("codec", ctypes.c_int),
        ("rate", ctypes.c_uint * 2),
        ("progressive", ctypes.c_ubyte),
        ("luma_minus_8", ctypes.c_ubyte),
        ("chroma_minus_8", ctypes.c_ubyte),
        ("least_surfaces", ctypes.c_ubyte),
        ("width", ctypes.c_uint),
        ("height", ctypes.c_uint),
    ]


SEQUENCE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(VideoFormat))
DECODE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Shown(ctypes.Structure):
    _fields_ = [
        ("index", ctypes.c_int),
        ("progressive", ctypes.c_int),
        ("top_first", ctypes.c_int),
        ("repeat", ctypes.c_int),
        ("time", ctypes.c_longlong),
    ]


DISPLAY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Shown))


class ParserInfo(ctypes.Structure):
    _fields_ = [
        ("codec", ctypes.c_int),
        ("most_surfaces", ctypes.c_uint),
        ("clock", ctypes.c_uint),
        ("errors", ctypes.c_uint),
        ("delay", ctypes.c_uint),
        ("flags", ctypes.c_uint),
        ("reserved1", ctypes.c_uint * 4),
        ("user", ctypes.c_void_p),
        ("sequence", SEQUENCE),
        ("decode", DECODE),
        ("display", DISPLAY),
        ("reserved2", ctypes.c_void_p * 7),
        ("more", ctypes.c_void_p),
    ]


class Packet(ctypes.Structure):
    _fields_ = [("flags", Long), ("size", Long), ("data", ctypes.c_char_p), ("time", ctypes.c_longlong)]


class Processing(ctypes.Structure):
    """CUVIDPROCPARAMS, with additional bytes, because newer drivers have a longer structure."""

    _fields_ = [
        ("progressive", ctypes.c_int),
        ("second_field", ctypes.c_int),
        ("top_first", ctypes.c_int),
        ("unpaired", ctypes.c_int),
        ("rest", ctypes.c_ubyte * 496),
    ]


class Cuvid(SharedLibrary):
    """NVDEC. Its errors are those of CUDA."""

    def __init__(self, cuda: Cuda) -> None:
        super().__init__(CUVID)
        self._cuda = cuda

    def name_of(self, number: int) -> str:
        return self._cuda.name_of(number)


class Decoder:
    """A decoder for a stream with one picture. decoded: the picture, once it is decoded."""

    def __init__(self, cuda: Cuda, library: Cuvid) -> None:
        self._cuda, self._library = cuda, library
        self._decoder, self._parser = ctypes.c_void_p(), ctypes.c_void_p()
        self.decoded, self._error = b"", None  # type: tuple[bytes, Exception | None]
        self._calls = (
            SEQUENCE(self._guarded(self._sequence)),
            DECODE(self._guarded(self._decode)),
            DISPLAY(self._guarded(self._display)),
        )
        begins, decodes, shows = self._calls
        info = ParserInfo(
            codec=H264, most_surfaces=1, delay=0, errors=100, sequence=begins, decode=decodes, display=shows
        )
        library("cuvidCreateVideoParser", ctypes.byref(self._parser), ctypes.byref(info))

    def _guarded(self, act: Any) -> Any:
        """Return a callback that keeps an exception for later, because the library would drop it."""

        def call(_: Any, given: Any) -> int:
            try:
                act(given)
            except Exception as error:  # noqa: BLE001 - raised again once the library returns
                self._error = self._error or error
                return 0
            return 1

        return call

    def _sequence(self, given: Any) -> None:
        found = given.contents
        width, height, surfaces = found.width, found.height, max(found.least_surfaces, 4)
        info = DecoderInfo(
            width=width, height=height, surfaces=surfaces, codec=H264, chroma=CHROMA_420, flags=BY_NVDEC,
            max_width=width, max_height=height, display=Rectangle(0, 0, width, height), output=NV12, target_width=width,
            target_height=height, outputs=1,
        )  # fmt: skip
        self._library("cuvidCreateDecoder", ctypes.byref(self._decoder), ctypes.byref(info))

    def _decode(self, given: Any) -> None:
        self._library("cuvidDecodePicture", self._decoder, ctypes.c_void_p(given))

    def _display(self, given: Any) -> None:
        where, pitch = ctypes.c_ulonglong(), ctypes.c_uint()
        how = Processing(progressive=1)
        index = ctypes.c_int(given.contents.index)
        arguments = (ctypes.byref(where), ctypes.byref(pitch), ctypes.byref(how))
        self._library("cuvidMapVideoFrame64", self._decoder, index, *arguments)
        rows, lines = SIDE * 3 // 2, []
        line = ctypes.create_string_buffer(SIDE)
        for row in range(rows):
            at = ctypes.c_uint64(where.value + row * pitch.value)
            self._cuda("cuMemcpyDtoH_v2", line, at, ctypes.c_size_t(SIDE))
            lines.append(line.raw)
        self._library("cuvidUnmapVideoFrame64", self._decoder, where)
        self.decoded = b"".join(lines)

    def feed(self, stream: bytes) -> None:
        for packet in (Packet(0, len(stream), stream, 0), Packet(END_OF_STREAM, 0, None, 0)):
            number = self._library.number("cuvidParseVideoData", self._parser, ctypes.byref(packet))
            if self._error:
                raise self._error
            if number:
                raise CallFailed("cuvidParseVideoData", number, self._cuda.name_of(number))

    def close(self) -> None:
        with suppress(CallFailed):
            self._library("cuvidDestroyVideoParser", self._parser)
            if self._decoder:
                self._library("cuvidDestroyDecoder", self._decoder)


def video(say: Any, _: Any) -> None:
    """Decode a picture whose samples are known, then encode some pictures and decode them."""
    found: dict[str, Any] = {"decodes": None, "engines": None, "encodes": None, "ffmpeg": None, "why": None}
    say("video", found)
    cuda = Cuda()
    cuda.enter(0)
    try:
        library = Cuvid(cuda)
    except CallFailed as error:
        raise Skipped(f"the driver's library for decoding is not here: {error.name}") from None
    caps = DecodeCaps(codec=H264, chroma=CHROMA_420)
    library("cuvidGetDecoderCaps", ctypes.byref(caps))
    found["engines"] = caps.engines
    if not caps.supported:
        found["decodes"] = False
        say("video", found)
        raise Unfit("the GPU decodes no H.264")
    stream, expected = picture()
    decoder = Decoder(cuda, library)
    try:
        decoder.feed(stream)
    finally:
        decoder.close()
    found["decodes"] = decoder.decoded == expected
    say("video", found)
    encode(found)
    say("video", found)


def encode(found: dict[str, Any]) -> None:
    """Encode with FFmpeg, if it is installed. NVDEC and the processor decode the result, and have to agree."""
    program = find_in_folders(FFMPEG_FOLDERS, "ffmpeg")
    if program is None:
        found["why"] = "encoding was not tried: no ffmpeg"
        return
    try:
        found["ffmpeg"] = ffmpeg(program, "-version").partition("\n")[0][:80]
        offered = ffmpeg(program, "-encoders")
    except Unfit as error:
        found["why"] = f"encoding was not tried: {error}"[:300]
        return
    if " h264_nvenc " not in offered:
        found["why"] = "encoding was not tried: this ffmpeg has no h264_nvenc"
        return
    file = str(Path(tempfile.mkdtemp()) / "made.h264")  # in the folder of this part, which is removed at its end
    try:
        SharedLibrary(ENCODE)
        ffmpeg(program, "-f", "lavfi", "-i", TEST_SOURCE, "-frames:v", str(FRAMES), "-c:v", "h264_nvenc", "-y", file)
        by_gpu = ffmpeg(program, "-c:v", "h264_cuvid", "-i", file, "-pix_fmt", "yuv420p", "-f", "framemd5", "-")
        by_processor = ffmpeg(program, "-i", file, "-pix_fmt", "yuv420p", "-f", "framemd5", "-")
    except (CallFailed, Unfit) as error:
        found.update(encodes=False, why=str(error)[:300])
        return
    sums = sums_of(by_gpu)
    found["encodes"] = len(sums) == FRAMES and sums == sums_of(by_processor)


def sums_of(text: str) -> list[str]:
    return [line.rpartition(",")[2].strip() for line in text.splitlines() if line and not line.startswith("#")]


def ffmpeg(program: str, *arguments: str) -> str:
    """Run FFmpeg, and return its output. Raises Unfit with its last line."""
    command = [program, "-hide_banner", "-nostdin", "-loglevel", "error", *arguments]
    try:
        ran = subprocess.run(  # noqa: S603 - a list of constant arguments
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=FFMPEG_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unfit(f"ffmpeg took longer than {FFMPEG_S} s") from None
    if ran.returncode:
        lines = ran.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {ran.returncode}"]
        raise Unfit(f"ffmpeg: {lines[0][:200]}")
    return ran.stdout.decode("utf-8", "replace")
