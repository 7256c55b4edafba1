"""CuPy works on PyTorch's current stream, in the order in which both are told to."""

import sys
from types import SimpleNamespace

import pytest
from harness.device import cupy

torch = pytest.importorskip("torch")
from psgd.torch import streams  # noqa: E402 -- where PyTorch is
from psgd.torch.streams import Streams  # noqa: E402


class Stream:
    """One that notes for which others it waits."""

    current = None

    def __init__(self, ptr, device=None):
        self.ptr, self.device, self.waits = ptr, device, []

    def record(self, event):
        return self.ptr

    def wait_event(self, event):
        self.waits.append(event)

    def use(self):
        Stream.current = self


@pytest.fixture(params=["old", "new"])
def fake(request, monkeypatch):
    """A CuPy, and which of PyTorch's streams is current."""
    null, state = Stream(0), SimpleNamespace(pointer=0, made=[], devices=[])
    Stream.current = null
    Stream.null = null

    def external(pointer, device):
        state.made.append(Stream(pointer, device))
        return state.made[-1]

    if request.param == "new":
        monkeypatch.setattr(
            Stream, "from_external", lambda foreign: external(foreign.__cuda_stream__()[1], 0), raising=False
        )
    monkeypatch.setattr(streams, "_FOREIGN", {})
    cuda = SimpleNamespace(
        Stream=Stream,
        ExternalStream=external,
        Event=lambda disable_timing: None,
        Device=lambda index: SimpleNamespace(use=lambda: state.devices.append(index)),
        get_current_stream=lambda: Stream.current,
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=state.pointer), raising=True
    )
    return state


def test_nothing_happens_while_both_have_one(fake):
    ours = Streams(torch.device("cuda", 1))
    ours.use()
    ours.follow()
    ours.leave()
    assert fake.devices == [1] and fake.made == [] and Stream.current is Stream.null and Stream.null.waits == []


def test_a_switch_waits_for_what_came_before_and_is_undone(fake):
    ours = Streams(torch.device("cuda", 0))
    fake.pointer = 7
    ours.follow()
    seven = Stream.current
    assert (seven.ptr, seven.device, seven.waits) == (7, 0, [0])
    ours.follow()
    assert seven.waits == [0]
    fake.pointer = 9
    ours.follow()
    assert Stream.current.ptr == 9 and Stream.current.waits == [7]
    fake.pointer = 7
    ours.follow()
    assert Stream.current is seven and seven.waits == [0, 9] and len(fake.made) == 2
    ours.leave()
    assert Stream.current is Stream.null and Stream.null.waits == [7]
    ours.leave()
    assert Stream.null.waits == [7]


@pytest.mark.gpu
def test_work_of_both_keeps_its_order_on_any_stream():
    xp = cupy()
    device = torch.device("cuda", torch.cuda.current_device())
    ours, values = Streams(device), torch.zeros(1 << 20, device=device)
    array = xp.from_dlpack(values)
    before = xp.cuda.get_current_stream().ptr
    for turn in range(1, 4):
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)  # without an order, the next line would come first
            values.fill_(turn)
            ours.follow()
            assert xp.cuda.get_current_stream().ptr == side.cuda_stream
            array *= 10
            values += 1
        ours.follow()  # on the default stream again: behind the side stream
        array += 1
        assert xp.unique(array).tolist() == [10 * turn + 2]
        torch.cuda.current_stream(device).wait_stream(side)
    ours.leave()
    assert xp.cuda.get_current_stream().ptr == before
